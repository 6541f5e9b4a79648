from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO

from pyarrow import RecordBatch, Schema, Table

class ParquetFile:
    schema_arrow: Schema
    num_row_groups: int
    def __init__(self, source: str, *, buffer_size: int = ..., pre_buffer: bool = ...) -> None: ...
    def __enter__(self) -> ParquetFile: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def iter_batches(
        self,
        batch_size: int = ...,
        row_groups: Sequence[int] | None = ...,
        columns: Sequence[str] | None = ...,
    ) -> Iterator[RecordBatch]: ...

class ParquetWriter:
    def __init__(self, where: IO[bytes], schema: Schema) -> None: ...
    def __enter__(self) -> ParquetWriter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = ...) -> None: ...
