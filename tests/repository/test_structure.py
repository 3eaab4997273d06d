"""Modules import each other without cycles, what is named exists, and no folder is too large.

Which part may import which is a contract of import-linter in `pyproject.toml`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from itertools import chain
from operator import attrgetter
from pathlib import Path

import pytest

from widthfold_onnx.runtime import child

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "widthfold_onnx"
CONTRIBUTING = (TESTS.parent / "CONTRIBUTING.md").read_text()
LARGEST_FOLDER = 12


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imports(text: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


def test_no_modules_import_each_other() -> None:
    imported = {name: set(imports(path.read_text())) for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(imported).static_order())) == len(MODULES)


def test_no_module_is_imported_by_a_name_in_a_string() -> None:
    """The contracts of import-linter would not see it."""
    strings = {
        (name, node.value)
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in MODULES
    }
    assert strings == set()


PARTS = sorted({name.split(".")[1] for name in MODULES if "." in name})
NAMED_PARTS = re.compile(rf"`((?:{'|'.join(PARTS)})(?:\.\w+)+)`")


def unresolved(text: str) -> list[str]:
    """Return the dotted names in backticks that name nothing of the package."""
    names = []
    for name in NAMED_PARTS.findall(text):
        parts = f"{PACKAGE.name}.{name}".split(".")
        paths = [".".join(parts[:end]) for end in range(len(parts), 1, -1)]
        module = next((path for path in paths if path in MODULES), "")
        rest = parts[module.count(".") + 1 :]
        source = MODULES[module].read_text() if module else ""
        if not module or any(not re.search(rf"\b{part}\b", source) for part in rest):
            names.append(name)
    return names


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_functions_that_a_file_names_exist(name: str) -> None:
    assert unresolved(MODULES[name].read_text()) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`rules.layers`, `options.MAX_FACTOR` and `rules`", []),
        ("`rules.nowhere` and `options.NOTHING`", ["rules.nowhere", "options.NOTHING"]),
    ],
)
def test_a_name_of_nothing_is_seen(text: str, wrong: list[str]) -> None:
    assert unresolved(text) == wrong


FUNCTION_ROW = re.compile(r"^\| (?:[^|`]*\| )?`([\w/]+)\.py` \| `([\w.]+)` \|", re.MULTILINE)


def test_the_functions_in_the_tables_of_contributing_exist() -> None:
    rows = FUNCTION_ROW.findall(CONTRIBUTING)
    assert len(rows) >= 30
    for path, name in rows:
        module = path.replace("/", ".").removesuffix(".__init__")
        attrgetter(name)(import_module(f"{PACKAGE.name}.{module}"))


def unknown_names(text: str) -> list[str]:
    """Return the names in backticks that no other file holds, such as `Layers.forms_of`."""
    sources = chain(PACKAGE.rglob("*.py"), TESTS.rglob("*.py"), TESTS.parent.glob("scripts/**/*"))
    files = [f for f in sources if f.is_file() and f != Path(__file__)]
    words = set(WORD.findall("\n".join(f.read_text(errors="replace") for f in files)))
    return [name for name in CODE_NAME.findall(text) if not words.issuperset(name.split("."))]


WORD = re.compile(r"\w+")
CODE_NAME = re.compile(r"`(_?[A-Za-z]\w*(?:\.\w+)*)`")


def test_the_names_in_contributing_exist() -> None:
    assert unknown_names(CONTRIBUTING) == []
    assert unknown_names("`_Search.run` and `Layers.forms_of`") == ["_Search.run"]


def test_no_module_starts_a_child_in_a_test_that_is_not_about_children() -> None:
    names = [name for name, path in MODULES.items() if "isolated" in path.read_text()]
    starting = [n for n in names if vars(import_module(n)).get("isolated") is child.isolated]
    assert starting == [child.__name__], "tests/conftest.py stands in for it elsewhere"


def imported_names(text: str) -> Iterator[str]:
    """Yield every part of the names that a file imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [getattr(node, "module", None) or ""]
            for name in [*module, *(alias.name for alias in node.names)]:
                yield from name.split(".")


def test_no_test_file_imports_another() -> None:
    """Helpers of several files lie beside them, in a file that holds no test."""
    names = {path: set(imported_names(path.read_text("utf-8"))) for path in TESTS.rglob("*.py")}
    assert [p.name for p, parts in names.items() if any(n.startswith("test_") for n in parts)] == []


@pytest.mark.parametrize(
    "text",
    ["import tests.a.test_b", "from tests.a import (\n    test_b,\n)", "from .test_b import x"],
)
def test_an_import_of_a_test_file_is_seen(text: str) -> None:
    assert "test_b" in set(imported_names(text))


@pytest.mark.parametrize("root", [PACKAGE, TESTS], ids=lambda path: path.name)
def test_no_folder_holds_more_modules_than_can_be_overlooked(root: Path) -> None:
    paths = [path for path in root.rglob("[!_]*.py") if path.name != "conftest.py"]
    sizes = Counter(str(path.parent.relative_to(root.parent)) for path in paths)
    assert {name: size for name, size in sizes.items() if size > LARGEST_FOLDER} == {}
