"""One word, one meaning: no two classes or types of the package have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import policyrisk

ROOT = Path(policyrisk.__file__).parent


def names(path):
    """The classes of a module, and its type aliases: names such as ``Quantity = Literal[...]``."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if (
                isinstance(target, ast.Name)
                and target.id.lstrip("_")[:1].isupper()
                and not target.id.isupper()
            ):
                yield target.id


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for name in names(path):
            places[name].append(path.relative_to(ROOT).as_posix())
    assert {"RiskFunction", "Quantity"} <= places.keys()  # both kinds are found
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
