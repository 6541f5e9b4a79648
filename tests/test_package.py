"""The package as a whole: what importing it loads, and that every example in the documents runs."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import policyrisk as pr

ROOT = Path(__file__).parent.parent
OPTIONAL = {"matplotlib", "plotly", "jinja2", "ray", "gymnasium", "minari", "pyarrow"}


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_import_loads_no_optional_dependency():
    assert not OPTIONAL & modules_after("import policyrisk")


def test_no_public_name_loads_an_optional_dependency():
    code = "import policyrisk as pr\nfor name in pr.__all__: getattr(pr, name)"
    assert not OPTIONAL & modules_after(code)


def test_the_package_knows_nothing_of_the_experiments():
    files = Path(pr.__file__).parent.rglob("*.py")
    assert not [file for file in files if re.search(r"(import|from) experiments", file.read_text())]


def test_public_names():
    for name in pr.__all__:
        assert getattr(pr, name) is not None
        assert name in dir(pr)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = pr.nothing_of_that_name


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_examples_in_documents_run(document, tmp_path, monkeypatch):
    """Every ```python block is run as a doctest, one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / document).read_text()
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)):
        test = doctest.DocTestParser().get_doctest(block, names, f"{document} block {number}", document, 0)
        if not test.examples:
            exec(compile(block, f"{document} block {number}", "exec"), names)
            continue
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        assert not report, "".join(report)
