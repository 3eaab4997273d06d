"""Run a function in a child process, so that a crash, a hang or a lack of memory stays there.

A fresh interpreter is started, never a fork (CUDA does not survive one) and never the caller's
own script (which need not guard its main part). Parent and child exchange pickles over two pipes: a
pickle marks its own end, and both sides are this module. Python handles Ctrl-C only between its own
instructions, not inside a call of the runtime; so the parent waits in Python, and on Ctrl-C kills
the child with every process that it started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Self, TypeVar

from widthfold_onnx.errors import LOG, InternalError, UnverifiedError, WidthfoldError
from widthfold_onnx.system import OWN_GROUP, TEMPORARY, end_tree, memory_limit
from widthfold_onnx.text import printable

Result = TypeVar("Result")

_START = (
    "import json, sys; sys.path[:], folder, logs = json.loads(sys.argv[1]); "
    "from widthfold_onnx.runtime.child import serve; serve(folder, logs=logs)"
)
_STEP = 1.0
"""Longest single wait in seconds: on Windows Ctrl-C is not handled before a wait ends."""

_END_SECONDS = 5.0
"""Seconds that a process may take to end after its last message."""

_LAST = ("result", "error")
"""Kinds of messages that end a task."""

_TAIL = 2000
"""Last bytes of the child's own output, which are searched for an error message."""

_NO_TASK = pickle.dumps(pickle.dumps((bool, (), False, None)))
"""A task that does nothing, as `isolated` sends tasks."""


class Child:
    """A process that runs tasks one after the other; after an error a new one takes its place.

    Only one thread at a time may use it. Starting a process and importing the runtime takes 0.3 s.
    """

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._waiting: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, if there is one; the next task starts a new one."""
        self._waiting = None
        self._resources.close()

    @contextlib.contextmanager
    def process(self) -> Iterator[_Process]:
        """Yield the waiting process, or a new one; end it if the block raises an error."""
        try:
            if self._waiting is not None and not self._waiting.answers():
                self.end()  # it died after its last task
            if self._waiting is None:
                self._waiting = self._resources.enter_context(_new_process())
            yield self._waiting
        except BaseException:
            self.end()
            raise


def isolated(
    function: Callable[..., Result],
    *args: object,
    child: Child | None = None,
    timeout: float = math.inf,
    silence: float = math.inf,
    memory: int | None = None,
    on_message: Callable[[Any], None] | None = None,
) -> Result:
    """Call ``function(*args)`` in a child process and return its result.

    Args:
        function: module-level, importable; with `on_message` it also gets ``send=``, a
            callable that takes a picklable message.
        args: picklable.
        child: runs the task, and waits for the next one; None starts a process for this task
            alone.
        timeout: seconds until the process is killed.
        silence: seconds without any message until the process is killed.
        memory: limit of the address space in bytes, where the system has such limits; None for
            CUDA, which reserves far more than it uses.
        on_message: called in this process with every message.

    Raises:
        UnverifiedError: the process crashed, ran out of time or out of memory.
        InternalError: the function raised something that is not a `WidthfoldError`; those are
            raised here as they are.
    """
    if function.__module__ == "__main__":
        raise InternalError(f"{function.__qualname__} must live in an importable module")
    call = pickle.dumps((function, args, on_message is not None, memory))
    # Two pickles: the thread that reads tasks opens only the outer one, which cannot fail. The
    # inner one imports modules and may fail; that is an error of the task.
    task = pickle.dumps(call)
    owner = Child() if child is None else contextlib.nullcontext(child)
    with owner as runner, runner.process() as process:
        result: Result = process.result_of(task, timeout, silence, memory, on_message)
    return result


@dataclass(frozen=True)
class _Process:
    """A child process.

    Attributes:
        popen: the process, with pipes to it and from it.
        noise: file that holds its own output, such as messages of C libraries.
    """

    popen: subprocess.Popen[bytes]
    noise: IO[bytes]

    def answers(self) -> bool:
        """Check by an empty task whether it is alive: `poll` shows a death some ms later."""
        try:
            self.result_of(_NO_TASK, timeout=_END_SECONDS)
        except UnverifiedError:
            return False
        return True

    def result_of(
        self,
        task: bytes,
        timeout: float = math.inf,
        silence: float = math.inf,
        memory: int | None = None,
        on_message: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a task and wait for its result; arguments and errors are those of `isolated`."""
        start = heard = time.monotonic()
        noise_start = self.noise.seek(0, os.SEEK_END)
        messages = _messages(self.popen, task)
        while True:
            ends, now = (start + timeout, heard + silence), time.monotonic()
            try:
                kind, value = messages.get(timeout=max(min(*ends, now + _STEP) - now, 0.0))
            except queue.Empty:
                if time.monotonic() < min(ends):
                    continue
                if ends[0] <= ends[1]:
                    raise UnverifiedError(f"no result after {timeout:g} s; stopped") from None
                raise UnverifiedError(f"silent for {silence:g} s; stopped") from None
            if kind == "message" and on_message is not None:
                on_message(value)
            elif kind == "unlimited":
                memory = None
            elif kind == "result":
                return value
            elif kind == "error":
                raise value
            elif kind == "gone":
                try:
                    code = self.popen.wait(_END_SECONDS)  # first, as it may write until it ends
                except subprocess.TimeoutExpired:
                    raise UnverifiedError("no result, and it does not end; stopped") from None
                output = self._output_since(noise_start)
                raise UnverifiedError(_exit_message(code, output, memory))
            heard = time.monotonic()

    def _output_since(self, start: int) -> bytes:
        """Return the end of the process's own output since a position."""
        self.noise.seek(max(self.noise.seek(0, os.SEEK_END) - _TAIL, start))
        return self.noise.read()


@contextlib.contextmanager
def _new_process() -> Iterator[_Process]:
    """Start a process in a session of its own; it is ended with the block in any case.

    Its temporary files go to a folder that this process removes: a killed process cannot.
    """
    # Processes that it started may write there a little longer; what they write then may stay.
    with (
        tempfile.TemporaryFile() as noise,
        tempfile.TemporaryDirectory(prefix="widthfold-", ignore_cleanup_errors=True) as folder,
    ):
        logs = LOG.isEnabledFor(logging.DEBUG)
        popen = subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", _START, json.dumps([sys.path, folder, logs])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=os.environ | dict.fromkeys(TEMPORARY, folder),
            **OWN_GROUP,
        )
        try:
            yield _Process(popen, noise)
        finally:
            _end(popen)


def _end(popen: subprocess.Popen[bytes]) -> None:
    if popen.poll() is None:  # not reaped yet, so its id is still its own
        end_tree(popen.pid)
        popen.wait()
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # the process died before it read all
                pipe.close()


def _messages(popen: subprocess.Popen[bytes], task: bytes) -> queue.SimpleQueue[tuple[str, Any]]:
    """Send a task, and collect the answers in a queue, on which a wait can be interrupted."""
    messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def talk() -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        try:
            with contextlib.suppress(OSError):  # it may end before it has read all, and say why
                _send(popen.stdin, task)
            with contextlib.suppress(EOFError, pickle.UnpicklingError):  # it ends, perhaps half-way
                kind = ""
                while kind not in _LAST:
                    kind, value = pickle.load(popen.stdout)
                    if kind == "log":
                        LOG.debug(value)
                    else:
                        messages.put((kind, value))
                return
            popen.stdout.read()  # after a broken message: a full pipe would keep it from ending
        except Exception as error:  # without this an answer that does not unpickle would hang
            messages.put(("error", _fault(f"answer of the child: {error!r}")))
        messages.put(("gone", None))

    threading.Thread(target=talk, daemon=True).start()
    return messages


def serve(folder: str, *, logs: bool) -> None:
    """Run tasks one after the other in the child.

    Only `isolated` starts it.

    Args:
        folder: holds its temporary files.
        logs: whether what is logged is sent to the parent (`--debug`).
    """
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - os.devnull is no path of ours
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of C libraries must not get into the answers

    lock = threading.Lock()

    def answer(message: bytes) -> None:
        with lock:
            _send(answers, message)

    if logs:
        LOG.setLevel(logging.DEBUG)
        LOG.addHandler(_Sender(lambda text: answer(pickle.dumps(("log", text)))))
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_tasks, args=(source, tasks, folder), daemon=True).start()
    while True:
        _run(tasks.get(), answer)


class _Sender(logging.Handler):
    """Sends what is logged as text."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record with its traceback."""
        self._send(self.format(record))


def _run(task: bytes, answer: Callable[[bytes], None]) -> None:
    """Run a task, and answer with its result or its error.

    The result is pickled before anything of it is sent: if that fails, the answer is an error.
    """

    def tell(kind: str, value: object) -> None:
        answer(pickle.dumps((kind, value)))

    memory = None
    try:
        function, args, sends, memory = pickle.loads(task)
        options = {"send": partial(tell, "message")} if sends else {}
        with memory_limit(memory) as is_limited:
            if memory is not None and not is_limited:
                memory = None
                tell("unlimited", None)
            result = function(*args, **options)
        message = pickle.dumps(("result", result))
        del args, options, result
        gc.collect()  # closes models now; else they would take time and memory of the next task
        answer(message)
    except WidthfoldError as error:
        tell("error", error)
    except MemoryError:
        tell("error", UnverifiedError(f"out of memory{_limit(memory)}"))
    except Exception as error:
        tell("error", _fault(f"{type(error).__name__}: {error}"))


def _fault(summary: str) -> InternalError:
    """Return an internal error with the traceback of the error being handled as a note."""
    error = InternalError(printable(summary))
    error.add_note(traceback.format_exc())
    return error


def _read_tasks(source: IO[bytes], tasks: queue.SimpleQueue[bytes], folder: str) -> None:
    """Pass tasks on, and end the child when the parent closes the pipe or is killed."""
    try:
        while True:
            tasks.put(pickle.load(source))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a parent that was killed cannot
        os._exit(1)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(message)
    stream.flush()


def _limit(memory: int | None) -> str:
    return "" if memory is None else f" (limit {memory >> 20} MiB)"


def _exit_message(code: int, output: bytes, memory: int | None) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    last = f": {printable(lines[-1])}" if lines else ""
    if b"bad_alloc" in b"".join(lines):
        return f"out of memory{_limit(memory)}{last}"
    if code < 0:
        return f"the child process died of {signal.Signals(-code).name}{_limit(memory)}{last}"
    return f"the child process ended with code {code} and no result{last}"
