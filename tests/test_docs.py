"""The documentation: every block runs, every name exists, every quoted message is in the source."""

import ast
import doctest
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import browser as chromium
import pytest

import policyrisk as pr

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# What a shell block that is not run may hold: installing, and what takes long.
NOT_RUN = (
    "make ",
    "python -m pip install ",
    "git clone ",
    "cd ",
    "policyrisk improve ",
    "policyrisk rollout CartPole-v1 --policy sb3:",
    "python -m experiments.",
)


class Block(NamedTuple):
    language: str
    run: bool
    fails: bool  # the commands end with an error, which is what is shown
    title: str | None  # the name of the file that the block shows
    text: str
    line: int


def blocks(page):
    """The fenced blocks of a page, in order: ```python, or ``` {.python title="file.py"}."""
    found, lines = [], (DOCS / page).read_text().split("\n")
    i = 0
    while i < len(lines):
        opening = re.match(r"(`{3,})\s*(.*)$", lines[i])
        if opening is None:
            i += 1
            continue
        end = next(j for j in range(i + 1, len(lines)) if lines[j] == opening[1])
        language = re.match(r"[{.]*(\w*)", opening[2])[1]
        title = re.search(r'title="(.*)"', opening[2])
        text = "\n".join(lines[i + 1 : end])
        run, fails = ".no-run" not in opening[2], ".fails" in opening[2]
        found.append(Block(language, run, fails, title and title[1], text, i + 1))
        i = end + 1
    return found


def run_python(block, name, names):
    """python: a piece of program; pycon: prompts and what they print."""
    if block.language == "python":
        exec(compile("\n" * block.line + block.text, name, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.text + "\n", names, name, name, block.line)
    assert test.examples, f"{name}: a pycon block without a prompt"
    report = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    runner.run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    assert not report, "".join(report)


def run_shell(block, capsys):
    """What the commands print, one after the other."""
    from policyrisk.cli import run

    capsys.readouterr()
    for command in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if words:
            assert words[0] == "policyrisk", f"{command!r} is not run: mark the block {{.sh .no-run}}"
            code = run(words[1:])
            assert (code != 0) == block.fails, f"{command}: {code} {capsys.readouterr().err}"
    printed = capsys.readouterr()
    return printed.err if block.fails else printed.out


def show_file(block, where):
    """Write the file that a block shows; an excerpt of one of the examples stands for all of it."""
    text, example = block.text + "\n", ROOT / "examples" / block.title
    if example.exists():
        whole = example.read_text()
        assert text in whole, f"{where}: this is not in examples/{block.title}"
        text = whole
    Path(block.title).write_text(text)


def check_printed(expected, printed, where):
    checker, example = doctest.OutputChecker(), doctest.Example("", expected + "\n")
    difference = checker.output_difference(example, printed, FLAGS)
    assert checker.check_output(example.want, printed, FLAGS), f"{where}\n{difference}"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.service] * (page == "scaling.md")) for page in PAGES]
)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    """In order, in one namespace and in an empty folder; a text block below a shell block is its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names, printed = {"__name__": "__main__"}, None
    for block in blocks(page):
        where = f"docs/{page}:{block.line}"
        if not block.run:
            assert block.language == "sh", where
            assert all(line.startswith(NOT_RUN) for line in block.text.splitlines() if line), where
        elif block.title:
            show_file(block, where)
        elif block.language in ("python", "pycon"):
            run_python(block, where, names)
        elif block.language == "text" and printed is not None:
            check_printed(block.text, printed, where)
        else:
            others = ("sh", "text", "math", "bibtex")
            assert block.language in others, f"{where}: a block must be python, pycon, or one of {others}"
        printed = run_shell(block, capsys) if block.language == "sh" and block.run else None


# The theory page


STATEMENTS = (
    "Assumption 1", "Proposition 2", "Assumption 3", "Assumption 4", "Lemma 5", "Definition 6", "Lemma 7",
    "Lemma 8", "Theorem 9", "Theorem 10", "Assumption 11", "Lemma 12",
    *(f"({number})" for number in range(1, 22)),
    *(f"A{number}" for number in range(1, 6)),
    *(f"Figure {number}" for number in range(1, 5)),
    *(f"Criterion ({letter})" for letter in "abcd"),
)  # fmt: skip


def rows(page):
    """The cells of every table row of a page."""
    lines = (DOCS / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")
    ]


def resolve(path):
    """What a dotted path names: a module, or something in one."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            thing = getattr(thing, name)
        return thing
    raise AssertionError(path)


@cache
def names_in(file):
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_statement_of_the_paper_has_code_and_a_test(statement):
    mine = [
        row
        for row in rows("theory.md")
        if re.search(rf"(^|, ){re.escape(statement)}($|,| (left|right)$)", row[0])
    ]
    assert mine, statement
    for row in mine:
        assert "`policyrisk." in row[2] or "`experiments." in row[2], statement
        assert "`tests/" in row[2], statement


def test_names_on_the_theory_page_exist():
    text = (DOCS / "theory.md").read_text()
    named = set(re.findall(r"`((?:policyrisk|experiments)\.[\w.]+)`", text))
    assert len(named) > 50
    for path in sorted(named):
        assert resolve(path) is not None, path
    tests = set(re.findall(r"`(tests/\w+\.py)::(\w+)`", text))
    assert len(tests) > 50
    for file, name in sorted(tests):
        assert name in names_in(file), f"{file}::{name}"


# The troubleshooting page


def template(node):
    """A string as it is written in the source, … standing for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    return "…"


@pytest.fixture(scope="module")
def source_strings():
    """Every whole string of the package: the pieces of an f-string do not count."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        pieces = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
        texts = (
            node
            for node in nodes
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in pieces
        )
        found |= {template(node) for node in texts}
    return found


MESSAGES = [row[0] for row in rows("troubleshooting.md") if " " in row[0] and row[0].startswith("`")]


def test_there_are_messages():
    assert len(MESSAGES) > 60
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_quoted_messages_are_beginnings_of_messages_in_the_source(message, source_strings):
    pattern = ".*".join(re.escape(piece) for piece in message.strip("`").split("…"))
    assert any(re.match(pattern, text, flags=re.DOTALL) for text in source_strings), message


# The reference


def documented():
    """What the reference shows: dotted paths, and the members that a module's entry lists."""
    paths = set()
    for entry in re.findall(r"^::: (\S+)((?:\n {4,}.*)*)", (DOCS / "api.md").read_text(), flags=re.MULTILINE):
        members = re.search(r"members: \[(.*)\]", entry[1])
        thing = resolve(entry[0])
        if members:
            paths |= {f"{entry[0]}.{name}" for name in members[1].split(", ")}
        elif inspect.ismodule(thing):
            paths |= {f"{entry[0]}.{name}" for name in vars(thing) if not name.startswith("_")}
        paths.add(entry[0])
    return paths


@pytest.mark.parametrize(
    "module", ["policyrisk", "policyrisk.domains", "policyrisk.errors", "policyrisk.readers"]
)
def test_the_reference_shows_every_public_name(module):
    shown = {id(resolve(path)) for path in documented()}
    for name in resolve(module).__all__:
        thing = getattr(resolve(module), name)
        if not inspect.ismodule(thing):
            assert id(thing) in shown, f"{module}.{name} is not in docs/api.md"


def test_what_the_reference_names_exists():
    assert all(resolve(path) is not None for path in documented())


# The site


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, and what building it said."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return folder, subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.service
def test_the_site_builds_without_a_warning(site):
    """Every link leads somewhere, every page is in the navigation, nothing comes from the network."""
    folder, done = site
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.glob("*.html")} >= {"index.html", "api.html", "theory.html"}
    assert (folder / "theory.html").read_text().count("<math") > 100


@pytest.mark.service
def test_every_page_fits_a_screen_and_a_phone(site, tmp_path):
    """In a browser: nothing sticks out to the side, no error, and nothing is asked of the network."""
    if lacking := chromium.missing():
        pytest.skip(f"not installed: {lacking} (Debian: apt-get install chromium chromium-driver)")
    pages = sorted(page for page in site[0].glob("*.html") if page.name != "404.html")  # a server's
    assert len(pages) > 10
    with chromium.Browser(tmp_path) as browser:
        browser.post("/url", url="about:blank")
        browser.logs("performance")  # what the browser's own first page asked for
        for width, height in ((1440, 900), (390, 844)):
            browser.on_a_phone(width, height)
            for page in pages:
                browser.open(page)
                wide = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
                assert wide <= 0, f"{page.name} at {width}"
            browser.open(site[0] / "theory.html")
            flat = browser.run(
                "return [...document.querySelectorAll('math')].filter((one) => one.checkVisibility()"
                " && one.getBoundingClientRect().height < 5).length"
            )
            assert flat == 0, "every formula is drawn"
        assert [entry["message"] for entry in browser.logs("browser") if entry["level"] == "SEVERE"] == []
        events = [json.loads(entry["message"])["message"] for entry in browser.logs("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked


@pytest.mark.parametrize(
    "tag", ['<script src="https://x/y.js">', '<link href="//x/y.css">', '<img src="http://x/y">']
)
def test_a_page_that_loads_from_the_network_ends_the_build(tag, tmp_path):
    hook = load_tool("local_only")
    page = tmp_path / "page.html"
    page.write_text('<a href="https://x"></a><img src="y.png">')
    hook.on_post_build({"site_dir": str(tmp_path)})
    page.write_text(tag)
    with pytest.raises(Exception, match="must load nothing from the network"):
        hook.on_post_build({"site_dir": str(tmp_path)})


def test_docstrings_become_markdown():
    text = "See :func:`~x.y`::\n\n    a = b\n\n>>> 1 + 1\n2\n\nDone."
    markdown = "See `y`:\n\n    a = b\n\n```pycon\n>>> 1 + 1\n2\n```\n\nDone."
    assert load_tool("our_docstrings").to_markdown(text) == markdown


def test_names_break_in_tables_only():
    hook = load_tool("breakable_names")
    html = "<code>a.b</code><td><code>a.b</code> <code>t.py::x_y</code></td>"
    assert hook.on_page_content(html) == (
        "<code>a.b</code><td><code>a.<wbr>b</code> <code>t.<wbr>py::<wbr>x_<wbr>y</code></td>"
    )


def test_formulas_become_mathml():
    """In a table and at the beginning of a line too, and nothing else does."""
    hook = load_tool("typeset")
    block = "```math\n\\begin{align*} a &= b \\end{align*}\n```"
    page = f"| $`x_t`$ | `$` |\n\n$`\\gamma`$ is 1 $ and `$x$`\n\n{block}\n"
    html = hook.on_page_markdown(page)
    assert html.count("<math ") == 3
    assert html.count('display="block"') == 1
    assert "<span><math" in html.split("\n\n")[1], "which Markdown takes for a part of the line"
    assert "<msub><mi>x</mi><mi>t</mi></msub>" in html
    assert '<mtd style="text-align: right"><mi>a</mi></mtd>' in html
    assert "is 1 $ and `$x$`" in html
    assert html.split("\n")[0].count("|") == 3


def test_no_formula_of_the_documents_is_left_as_it_was():
    hook = load_tool("typeset")
    for page in PAGES:
        html = hook.on_page_markdown((DOCS / page).read_text())
        shown = re.sub(r"```.*?```|`[^`]*`", "", html, flags=re.DOTALL)
        assert not re.search(r"\\\\?[a-zA-Z]{2,}", "".join(re.findall(r"<math.*?</math>", shown))), page
        assert "$`" not in shown, page


def test_what_to_cite_is_this_version():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"version: {pr.__version__}\n" in cited
    entries = re.search(r"```bibtex\n.*?```", (DOCS / "paper.md").read_text(), re.DOTALL)[0]
    assert f"version = {{{pr.__version__}}}" in entries
    assert "Policy Evaluation with Variance Related Risk Criteria" in cited


def test_contributing_names_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    package = ROOT / "src" / "policyrisk"
    rooms = {f"{path.parent.relative_to(package).parts[0]}/" for path in package.glob("*/**/*.py")}
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py", "readers.py"}
    assert not [name for name in rooms | modules if f"`{name}`" not in text]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(document):
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / document).read_text())) - {"my_module.py"}
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "policyrisk").rglob("*.py")}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []
