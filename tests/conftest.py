"""Fixtures of all folders: functions meant for a child process run in this one."""

from __future__ import annotations

import pickle
import re
import signal
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from onnx import parser

import widthfold_onnx
from tests.lacking import READS_NAMES, lacking, naming
from widthfold_onnx.errors import InternalError, UnverifiedError, WidthfoldError
from widthfold_onnx.runtime import child
from widthfold_onnx.system import END_SIGNALS

# `--hypothesis-profile nightly` draws other examples every time, and many more of them.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("ci")

if not READS_NAMES:
    parser.parse_model = naming(parser.parse_model)

PACKAGE = Path(widthfold_onnx.__file__).parent
STARTS_CHILDREN = re.compile(r"from widthfold_onnx\.runtime\.child import .*\bisolated\b")

collect_ignore = ["bare/path", "flags/sitecustomize.py"]
"""Where a sitecustomize.py changes each process that starts with its folder on the path."""

SLOW_SECONDS = 3600
"""Time limit of a test that is marked `slow`; that of any other test is in pyproject.toml."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test that needs what an older release of onnx or of the runtime lacks."""
    try:
        return (yield)
    except Exception as error:
        if reason := lacking(error):
            pytest.skip(reason)
        raise


@cache
def isolating() -> list[ModuleType]:
    """Every module of the package that starts child processes."""
    files = [path for path in PACKAGE.rglob("*.py") if STARTS_CHILDREN.search(path.read_text())]
    paths = [path.parent if path.stem == "__init__" else path.with_suffix("") for path in files]
    return [import_module(".".join(path.relative_to(PACKAGE.parent).parts)) for path in paths]


def in_this_process(
    function: Callable[..., Any],
    *args: object,
    on_message: Callable[[Any], None] | None = None,
    **limits: object,
) -> Any:
    """Stand in for `isolated`: the same results and errors, nothing is started or limited.

    What goes there and back is pickled, as between two processes. Context variables have their
    defaults, as in a new process.
    """
    function, args = through_a_pipe((function, args))
    caller = copy_context()
    own: list[BaseException] = []

    def send(message: object) -> None:
        assert on_message is not None
        try:
            caller.run(on_message, through_a_pipe(message))
        except BaseException as error:
            own.append(error)
            raise

    try:
        result = Context().run(function, *args, **({"send": send} if on_message else {}))
    except WidthfoldError as error:
        raise (error if error in own else through_a_pipe(error)) from None
    except MemoryError:
        raise UnverifiedError("out of memory") from None
    except Exception as error:
        if error in own:  # of the caller
            raise
        raise InternalError(f"{type(error).__name__}: {error}") from error
    return through_a_pipe(result)


def through_a_pipe(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.fixture(scope="session", autouse=True)
def in_place() -> Iterator[None]:
    """Start no child processes: each takes a second or two for its imports."""
    with pytest.MonkeyPatch.context() as patch:
        for module in isolating():
            patch.setattr(module, "isolated", in_this_process)
        yield


@pytest.fixture(autouse=True)
def with_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start child processes in tests with the mark `processes`."""
    if request.node.get_closest_marker("processes"):
        for module in isolating():
            monkeypatch.setattr(module, "isolated", child.isolated)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT and what ends a program as on a terminal, here and in children.

    A background job of a script inherits an ignored SIGINT, a job under nohup an ignored SIGHUP;
    Python handles neither, and children inherit that. `exec` resets a handled signal.
    """
    handlers = {signal.SIGINT: signal.default_int_handler}
    handlers |= dict.fromkeys(END_SIGNALS, signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
