"""Modules import downwards only, without cycles, and their tests lie at their paths.

No folder holds too many of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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

ORDER = (
    ("arrays", "errors", "progress", "refusal", "system", "text"),
    ("options", "results"),
    ("algebra", "keywords", "model"),
    ("operators", "runtime"),
    ("rules",),
    ("rewrite",),
    ("decide",),
    ("evidence", "tuning"),
    ("mlir",),
    ("pipeline", "reports"),
    ("api", "cli"),
    ("olive",),
)
"""Parts of the package, lowest first; a part imports those before its row, and itself."""

LEVEL = {part: level for level, row in enumerate(ORDER) for part in row}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imports(text: str) -> Iterator[str]:
    """Yield the modules of the package that a module imports, anywhere in it.

    A module that is named in a string counts, as `importlib` may import it.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in MODULES:
            yield str(node.value)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


@cache
def imported() -> dict[str, set[str]]:
    """Modules of the package that each of them imports."""
    return {name: set(imports(path.read_text())) for name, path in MODULES.items()}


def upward(name: str, imported: str) -> bool:
    part, other = name.split(".")[1], imported.split(".")[1]
    return part != other and LEVEL[other] >= LEVEL[part]


def test_no_module_imports_upwards() -> None:
    root = PACKAGE.name  # offers the names of all parts
    upwards = [
        (name, other)
        for name, others in imported().items()
        for other in others
        if name != root and upward(name, other)
    ]
    assert upwards == []


def test_no_modules_import_each_other() -> None:
    assert len(list(TopologicalSorter(imported()).static_order())) == len(MODULES)


def test_contributing_lists_all_parts_lowest_first() -> None:
    table = CONTRIBUTING.partition("## Layout of the code")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    parts = [part for row in rows for part in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    levels = [LEVEL[part] for part in parts if part in LEVEL]
    assert levels == sorted(levels)
    rest = set(LEVEL) - set(parts) - {"olive"}  # which Olive imports
    assert all(f"`{part}.py`" in table for part in rest), rest


NAMED = ("rules.layers", "tuning.cost")
LONGEST = 9
FOLDERS = {name: path for name, path in MODULES.items() if path.name == "__init__.py"}
del FOLDERS[PACKAGE.name]  # its `__init__` offers the names of all parts

IMPORTED_BY = re.compile(
    r"(?P<names>(?:`[\w.]+`(?:, | and | ))*)(?P<above>everything above )?imports? it"
)


def inside(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}.")


def importers_of(folder: str) -> set[str]:
    return {
        name
        for name, others in imported().items()
        if not inside(name, folder) and any(inside(other, folder) for other in others)
    } - {PACKAGE.name}


def misstated(docstring: str, importers: set[str]) -> list[str]:
    """Return the mistakes in the sentence that names the importers of a folder."""
    sentences = list(IMPORTED_BY.finditer(" ".join(docstring.split())))
    if len(sentences) != 1:
        return [f"{len(sentences)} sentences say who imports it"]
    names = re.findall(r"`([\w.]+)`", sentences[0]["names"])
    stale = [n for n in names if not any(inside(i, f"{PACKAGE.name}.{n}") for i in importers)]
    least = min((LEVEL[n.split(".")[0]] for n in names), default=0)
    missing = [
        importer
        for importer in sorted(importers)
        if not any(inside(importer, f"{PACKAGE.name}.{name}") for name in names)
        and not (sentences[0]["above"] and LEVEL[importer.split(".")[1]] >= least)
    ]
    return [*(f"{n} does not import it" for n in stale), *(f"{n} imports it" for n in missing)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_who_imports_it(folder: str) -> None:
    docstring = ast.get_docstring(ast.parse(FOLDERS[folder].read_text())) or ""
    assert misstated(docstring, importers_of(folder)) == []


@pytest.mark.parametrize(
    ("docstring", "wrong"),
    [
        ("It is `a`. `rules` and `tuning.cost` import it.", []),
        ("`rules` and everything above import it.", []),
        ("`rules` imports it.", ["widthfold_onnx.tuning.cost imports it"]),
        ("`api`, `rules` and `tuning` import it.", ["api does not import it"]),
        ("`tuning` and everything above import it.", ["widthfold_onnx.rules.layers imports it"]),
        ("Nothing imports it.", [f"widthfold_onnx.{n} imports it" for n in NAMED]),
        ("It says nothing.", ["0 sentences say who imports it"]),
    ],
)
def test_a_wrong_list_of_importers_is_seen(docstring: str, wrong: list[str]) -> None:
    assert misstated(docstring, {f"widthfold_onnx.{name}" for name in NAMED}) == wrong


def test_a_folder_says_in_a_few_lines_what_it_holds() -> None:
    long = {
        folder
        for folder, path in FOLDERS.items()
        if len((ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()) > LONGEST
    }
    assert long == set()


NAMED_PARTS = re.compile(rf"`((?:{'|'.join(LEVEL)})(?:\.\w+)+)`")


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
    """Return the names in backticks that no other file holds, such as `Trials.final`."""
    sources = chain(PACKAGE.rglob("*.py"), TESTS.rglob("*.py"), TESTS.parent.glob("scripts/**/*"))
    files = [f for f in sources if f.is_file() and f != Path(__file__)]
    words = set(WORD.findall("\n".join(f.read_text(errors="replace") for f in files)))
    return [name for name in CODE_NAME.findall(text) if not words.issuperset(name.split("."))]


WORD = re.compile(r"\w+")
CODE_NAME = re.compile(r"`(_?[A-Za-z]\w*(?:\.\w+)*)`")


def test_the_names_in_contributing_exist() -> None:
    assert unknown_names(CONTRIBUTING) == []
    assert unknown_names("`_Search.run` and `Trials.final`") == ["_Search.run"]


def test_no_module_starts_a_child_in_a_test_that_is_not_about_children() -> None:
    names = [name for name, path in MODULES.items() if "isolated" in path.read_text()]
    starting = [n for n in names if vars(import_module(n)).get("isolated") is child.isolated]
    assert starting == [child.__name__], "tests/conftest.py stands in for it elsewhere"


DIFFERENCES = re.compile(
    r"sys\.platform|os\.name\b|/proc|hasattr\((os|signal)|getattr\((os|signal)|version_info"
    r"|psutil|import (fcntl|resource)\b|__version__ (<|>|==|!=)"
)


def test_one_file_knows_where_systems_differ() -> None:
    files = {name for name, path in MODULES.items() if DIFFERENCES.search(path.read_text())}
    assert files == {"widthfold_onnx.system"}


UNIX = re.compile(r"^(import|from) (fcntl|grp|pty|pwd|resource|termios|tty)\b", re.MULTILINE)


def test_every_test_can_be_collected_on_windows() -> None:
    """A module that Windows lacks is imported by `pytest.importorskip` where it is needed."""
    files = Path(__file__).parents[1].rglob("*.py")
    assert [path.name for path in files if UNIX.search(path.read_text(encoding="utf-8"))] == []


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


def test_bounds_are_named_by_one_word() -> None:
    """A constant that bounds something begins with MAX or MIN."""
    pattern = re.compile(r"^_?(?:MOST|LARGEST|LEAST|SMALLEST|FEWEST)\w* *[:=]", re.MULTILINE)
    names = {p.name: pattern.findall(p.read_text("utf-8")) for p in PACKAGE.rglob("*.py")}
    assert {name: constants for name, constants in names.items() if constants} == {}


WHOLES = (
    "bare",
    "cli",
    "evidence/proof/faults",
    "evidence/proof/mutants",
    "repository",
    "rewrite/quantized",
    "scripts",
    "whole_models",
)
"""Folders of tests whose subject is larger than a module: the command, the proof, the rewriting of
quantized models, the repository, its scripts, the package on a bare system."""

TESTED_ELSEWHERE = {
    # Values and tables, which do nothing alone.
    "errors": "cli/optimize/test_refused.py",
    "refusal": "rules/legality",
    "rules/companions/companion": "rewrite/test_exchange.py",
    "rules/layers": "rules/test_layer_reading.py",
    "tuning/effort": "tuning/search/test_search.py",
    # Parts that show in what a whole command writes.
    "cli/options": "cli/test_names.py",
    "model/interop": "api/test_api.py",
    "reports/described/inputs": "reports/described/test_layers.py",
    "reports/described/tuning": "cli/test_tune.py",
    "reports/pictures": "reports/test_html.py",
}
"""Modules without a test at their path, and where their tests are."""


def below(root: Path, pattern: str) -> set[str]:
    return {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob(pattern)}


TEST_FILES = below(TESTS, "test_*.py")


def modules_of(test: str) -> set[str]:
    """Return what a test may belong to, by its path: modules, which may be there or not."""
    folder, slash, name = test.rpartition("/")
    subject = name.removeprefix("test_")
    package = {f"{folder}/__init__"} if subject == folder.rpartition("/")[2] else set()
    return {f"{folder}{slash}{subject}", folder, *package}


def whole_of(test: str) -> str:
    return next((whole for whole in WHOLES if test.startswith(f"{whole}/")), "")


def test_every_module_has_its_tests_at_its_path() -> None:
    modules = {path for path in below(PACKAGE, "*.py") if not path.endswith("__init__")}
    assert modules - set().union(*map(modules_of, TEST_FILES)) == TESTED_ELSEWHERE.keys()
    assert [path for path in TESTED_ELSEWHERE.values() if not (TESTS / path).exists()] == []


def test_a_module_has_a_file_of_tests_or_a_folder_of_them() -> None:
    folders = {test.rpartition("/")[0] for test in TEST_FILES}
    assert {test for test in TEST_FILES if test.replace("test_", "") in folders} == set()


def test_every_test_has_the_path_of_a_module_or_lies_in_the_folder_of_a_whole() -> None:
    paths = below(PACKAGE, "*.py")
    assert {t for t in TEST_FILES if not whole_of(t) and paths.isdisjoint(modules_of(t))} == set()
    assert set(map(whole_of, TEST_FILES)) == {*WHOLES, ""}


@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("test_text", "text"),
        ("rules/test_op", "rules/op"),
        ("rules/legality/test_nonfinite", "rules/legality"),
        ("tuning/search/test_search", "tuning/search/__init__"),
    ],
)
def test_a_test_belongs_to_the_module_at_its_path(test: str, module: str) -> None:
    assert module in modules_of(test)
    assert module not in modules_of(f"elsewhere/{test}")
    assert module not in modules_of(f"{test}_too") or module == test.rpartition("/")[0]


@pytest.mark.parametrize("root", [PACKAGE, TESTS], ids=lambda path: path.name)
def test_no_folder_holds_more_modules_than_can_be_overlooked(root: Path) -> None:
    paths = [path for path in root.rglob("[!_]*.py") if path.name != "conftest.py"]
    sizes = Counter(str(path.parent.relative_to(root.parent)) for path in paths)
    assert {name: size for name, size in sizes.items() if size > LARGEST_FOLDER} == {}


@pytest.mark.parametrize(
    ("importing", "text", "wrong"),
    [
        ("widthfold_onnx.rules.selection", "from widthfold_onnx.rewrite import rewriting", True),
        ("widthfold_onnx.tuning.search.trials", "import widthfold_onnx.evidence.checks", True),
        ("widthfold_onnx.tuning.search.trials", "from widthfold_onnx.rewrite import chain", False),
    ],
)
def test_an_import_is_judged_by_its_parts(importing: str, text: str, wrong: bool) -> None:
    assert [upward(importing, name) for name in imports(text)] == [wrong]
