"""onnx_ir without sympy, until something calculates with an extent."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from widthfold_onnx.model import library
from widthfold_onnx.model.library import _deferred_imports, ir

START = "import sys; from widthfold_onnx.model.library import ir; n = ir.SymbolicDim('n'); "


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in an interpreter that has imported nothing yet."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def shown(code: str) -> str:
    run = python(code)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_sympy_is_imported_when_an_extent_is_calculated_with() -> None:
    count = "sum(name.partition('.')[0] == 'sympy' for name in sys.modules)"
    line = f"print({count}, (2 * n + 1).value, {count} > 1, (n + 1).evaluate({{'n': 12}}))"
    assert shown(START + line) == "0 2*n + 1 True 13"


def test_the_rest_of_the_program_gets_sympy_itself() -> None:
    line = (
        "import sympy.core; from sympy import Symbol; import onnx_ir._symbolic_shapes as s; "
        "print(sympy is sys.modules['sympy'], isinstance(sympy.Symbol('a'), Symbol), "
        "type(sympy).__name__, type(s).__name__, (n + 1).value)"
    )
    assert shown(START + line) == "True True module module n + 1"


@pytest.mark.parametrize("first", ["sympy", "onnx_ir"])
def test_what_was_imported_before_stays_as_it_is(first: str) -> None:
    before = f"import {first}, sys; sympy = sys.modules['sympy']; "
    assert shown(before + START + "print(sympy is sys.modules['sympy'], (n + 1).value)") == (
        "True n + 1"
    )


def test_another_thread_gets_sympy_itself_while_onnx_ir_is_imported(tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("VALUE = 7")
    code = """
import sys, threading

found = []

def import_sympy():
    import sympy
    found.append((type(sympy).__name__, sympy is sys.modules["sympy"], vars(sympy).get("VALUE")))

def during_import(event, arguments):
    if event == "import" and arguments[0] == "onnx_ir._core" and not found:
        thread = threading.Thread(target=import_sympy)
        thread.start()
        thread.join()

sys.addaudithook(during_import)
import widthfold_onnx.model.library
print(*found)
"""
    run = python(code, PYTHONPATH=str(tmp_path))
    assert run.stdout == "('module', True, 7)\n", run.stderr


def test_a_broken_sympy_says_so_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("raise ImportError('sympy is broken')")
    run = python(START + "print('here'); n + 1", PYTHONPATH=str(tmp_path))
    assert run.stdout == "here\n"
    assert run.stderr.endswith("ImportError: sympy is broken\n")


def test_extents_are_what_they_are_with_sympy_imported_at_once() -> None:
    import sympy  # half a second, which only this test needs

    formula = ir.SymbolicDim("n") + 1
    again = pickle.loads(pickle.dumps(formula))
    assert again == formula == ir.SymbolicDim(sympy.Symbol("n", integer=True, positive=True) + 1)
    with pytest.raises(TypeError, match="Expr"):
        ir.SymbolicDim(1.5)


def test_a_package_in_an_archive_is_imported_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("wf_packed/__init__.py", "from wf_packed import used\nVALUE = used.VALUE")
        archive.writestr("wf_packed/used.py", "VALUE = 7")
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    with _deferred_imports("wf_packed"):
        import wf_packed
    assert wf_packed.VALUE == 7


def test_a_module_that_is_used_while_its_user_is_imported_is_imported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(library, "DEFERRED", {"wf_used", "wf_unused", "wf_user.lazy"})
    (tmp_path / "wf_used.py").write_text("VALUE = 7")
    (tmp_path / "wf_unused.py").write_text("VALUE = 8")
    folder = tmp_path / "wf_user"
    folder.mkdir()
    (folder / "eager.py").write_text("VALUE = 9")
    (folder / "lazy.py").write_text("VALUE = 10")
    (folder / "__init__.py").write_text("from wf_user import _core")
    (folder / "_core.py").write_text(
        "import wf_used, wf_unused\nfrom wf_user import eager, lazy\n"
        "VALUE = wf_used.VALUE + eager.VALUE\nlater = lambda: (wf_unused.VALUE, lazy.VALUE)\n"
    )
    with _deferred_imports("wf_user"):
        import wf_user
    assert wf_user._core.VALUE == 16
    assert "wf_used" in sys.modules
    assert sys.modules.keys().isdisjoint({"wf_unused", "wf_user.lazy"})
    assert wf_user._core.later() == (8, 10)
    with pytest.raises(AttributeError, match="wf_unused"):
        wf_user._core.wf_unused.nothing  # noqa: B018 - the access is what fails
