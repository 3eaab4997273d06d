"""Run one function in a child process, so that a crash, a hang or a lack of memory stays there.

A fresh interpreter is started, never a fork (CUDA does not survive one) and never the caller's
own script (which need not guard its main part). Both ends are ours: pickles, which tell where they
end, go over two pipes.
A thread inside the runtime does not see Ctrl-C until it returns, so the parent waits in Python
and kills the child with all that it started.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import IO, Any, TypeVar

from widthfold_onnx.errors import InternalError, UnverifiedError, WidthfoldError
from widthfold_onnx.system import OWN_GROUP, TEMPORARY, end_tree, limit_memory
from widthfold_onnx.text import printable

Result = TypeVar("Result")

_START = (
    "import json, sys; sys.path[:], folder = json.loads(sys.argv[1]); "
    "from widthfold_onnx.runtime.child import serve; serve(folder)"
)
_STEP = 1.0
"""Seconds of one wait at most: on Windows Ctrl-C is not heard before it ends."""

_TAIL = 2000
"""Bytes of the child's own output that are looked at for an error message."""


def isolated(
    function: Callable[..., Result],
    *args: object,
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
        timeout: seconds until the child is killed.
        silence: seconds without a message until the child is killed.
        memory: most bytes of address space, where the system can limit it; leave it None for CUDA,
            which reserves far more.
        on_message: called in this process with every message.

    Raises:
        UnverifiedError: the child crashed, ran out of time or out of memory.
        InternalError: the function raised something that is not a `WidthfoldError`; those are
            raised here as they are.
    """
    if function.__module__ == "__main__":
        raise InternalError(f"{function.__qualname__} must live in an importable module")
    task = pickle.dumps((function, args, on_message is not None, memory))
    start = heard = time.monotonic()
    with tempfile.TemporaryFile() as noise, _child(noise) as child:
        messages = _messages(child, task)
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
                return value  # type: ignore[no-any-return] # what the function returned
            elif kind == "error":
                raise value
            elif kind == "gone":
                raise UnverifiedError(_exit_message(child.wait(), noise, memory))
            heard = time.monotonic()


@contextlib.contextmanager
def _child(noise: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child in a session of its own, which ends with the block in any case.

    Its temporary files are in a folder of ours: a child that is killed cannot remove them.
    """
    # Children of the child end with its pipe and may write until then: such files are left.
    with tempfile.TemporaryDirectory(prefix="widthfold-", ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps([sys.path, folder])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env=os.environ | dict.fromkeys(TEMPORARY, folder),
            **OWN_GROUP,
        )
        try:
            yield child
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:  # not reaped yet, so its id is still its own
        end_tree(child.pid)
        child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # the child died before it read all
                pipe.close()


def _messages(child: subprocess.Popen[bytes], task: bytes) -> queue.SimpleQueue[tuple[str, Any]]:
    """Send the task and collect what comes back; waiting on the queue stays interruptible."""
    messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def talk() -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(OSError):  # it may end before it has read all, and say why
                _send(child.stdin, task)
            with contextlib.suppress(EOFError, pickle.UnpicklingError):  # it ends, perhaps half-way
                while True:
                    messages.put(pickle.load(child.stdout))
            child.stdout.read()  # after a broken message: a full pipe would keep it from ending
        except Exception as error:  # without this an answer that does not unpickle would hang
            messages.put(("error", _fault(f"answer of the child: {error!r}")))
        messages.put(("gone", None))

    threading.Thread(target=talk, daemon=True).start()
    return messages


def serve(folder: str) -> None:
    """Read one task as the child, answer, end. Only `isolated` starts it, in its `folder`."""
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - os.devnull is no path of ours
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of C libraries must not get into the answers

    lock = threading.Lock()

    def answer(kind: str, value: object) -> None:
        message = pickle.dumps((kind, value))  # first, as it may fail half-way
        with lock:
            _send(answers, message)

    memory = None
    try:
        function, args, sends, memory = pickle.load(source)
        threading.Thread(target=_end_with_parent, args=(source, folder), daemon=True).start()
        if memory is not None and not limit_memory(memory):
            memory = None
            answer("unlimited", None)
        options = {"send": lambda message: answer("message", message)} if sends else {}
        answer("result", function(*args, **options))
    except WidthfoldError as error:
        answer("error", error)
    except MemoryError:
        answer("error", UnverifiedError(f"out of memory{_limit(memory)}"))
    except Exception as error:
        answer("error", _fault(f"{type(error).__name__}: {error}"))


def _fault(summary: str) -> InternalError:
    """Return an internal error with the trace of the error that is handled."""
    error = InternalError(printable(summary))
    error.add_note(traceback.format_exc())
    return error


def _end_with_parent(source: IO[bytes], folder: str) -> None:
    source.read(1)  # returns when the parent's end closes, even if the parent was killed
    shutil.rmtree(folder, ignore_errors=True)  # a parent that was killed cannot
    os._exit(1)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(message)
    stream.flush()


def _limit(memory: int | None) -> str:
    return "" if memory is None else f" (limit {memory >> 20} MiB)"


def _exit_message(code: int, noise: IO[bytes], memory: int | None) -> str:
    noise.seek(0, os.SEEK_END)
    noise.seek(max(noise.tell() - _TAIL, 0))
    lines = [line for line in noise.read().splitlines() if line.strip()]
    last = f": {printable(lines[-1])}" if lines else ""
    if b"bad_alloc" in b"".join(lines):
        return f"out of memory{_limit(memory)}{last}"
    if code < 0:
        return f"the child process died of {signal.Signals(-code).name}{_limit(memory)}{last}"
    return f"the child process ended with code {code} and no result{last}"
