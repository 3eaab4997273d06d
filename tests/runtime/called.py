"""Functions that a child process runs; it imports this module, so nothing is imported beside it."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path


def add(a, b):
    return a + b


def echo(value):
    return value


def process_id():
    return os.getpid()


def shout():
    os.write(1, b"to stdout\n")
    os.write(2, b"to stderr\n")
    print("from python", flush=True)
    return "done"


def abort():
    os.write(2, b"assertion of the runtime failed\n")
    os.abort()


class Aborting:
    """A value that aborts the process at its end; it travels as a text."""

    def __reduce__(self):
        return str, ("a text",)

    def __del__(self):
        abort()


def abort_later():
    aborting = Aborting()
    aborting.own = aborting


def result_that_aborts():
    return Aborting()


def print_only():
    print("from python, and not flushed")


def exit_with_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()
    sys.exit(3)


def exit_with_a_reason():
    print("the reason")
    sys.exit(3)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(7)


def spin():
    while True:
        pass


def sleep_and_mark(path):
    tempfile.mkstemp()
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def hoard():
    return len(b"\1" * (1 << 30))


def refuse(kind, words="one line\twith a tab"):
    raise kind(words)


def divide():
    return 1 // 0


def count(*, send):
    for number in range(3):
        send(f"step {number}")
    return 3


def lambda_result():
    return lambda: 0


class Unreadable:
    """A value that travels, and fails where it arrives."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return refuse, (self.kind, "unreadable")


def unreadable(kind):
    return Unreadable(kind), bytes(1 << 20)


def read_stdin():
    return sys.stdin.read()


def kept_times(end, *, send):
    """Report where TensorRT would keep the times of its kernels, with a file there."""
    from widthfold_onnx.options import Provider
    from widthfold_onnx.runtime.provider_traits import traits_of
    from widthfold_onnx.runtime.providers import ranking

    options = dict(ranking(Provider.TENSORRT, {}, 1, tf32=True))[traits_of(Provider.TENSORRT).name]
    times = Path(options["trt_timing_cache_path"], "times")
    times.write_text("of kernels")
    send(str(times))
    end()


def nothing():
    pass


def swallow():
    from widthfold_onnx.errors import note_swallowed

    try:
        raise KeyError("of a library")
    except KeyError:
        note_swallowed("nothing follows")
