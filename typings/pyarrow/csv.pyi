from collections.abc import Mapping, Sequence
from types import TracebackType

from pyarrow import DataType, RecordBatch, Schema

class ReadOptions:
    def __init__(self, *, use_threads: bool = ..., block_size: int | None = ...) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Mapping[str, DataType] | None = ...,
        null_values: Sequence[str] | None = ...,
        strings_can_be_null: bool = ...,
        include_columns: Sequence[str] | None = ...,
    ) -> None: ...

class CSVStreamingReader:
    schema: Schema
    def __enter__(self) -> CSVStreamingReader: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __iter__(self) -> CSVStreamingReader: ...
    def __next__(self) -> RecordBatch: ...

def open_csv(
    input_file: str, read_options: ReadOptions | None = ..., *, convert_options: ConvertOptions | None = ...
) -> CSVStreamingReader: ...
