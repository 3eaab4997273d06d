"""Functions in a child process: results, crashes, hangs, memory, interrupts."""

import contextlib
import errno
import io
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runtime.called import (
    abort,
    abort_later,
    add,
    count,
    divide,
    echo,
    exit_with_a_reason,
    exit_with_a_thread,
    hoard,
    kept_times,
    lambda_result,
    leave,
    nothing,
    print_only,
    process_id,
    read_stdin,
    refuse,
    result_that_aborts,
    segfault,
    shout,
    spin,
    swallow,
    unreadable,
)
from tests.shared import ROOT
from widthfold_onnx.errors import (
    CheckFailedError,
    InternalError,
    UnverifiedError,
    UsageError,
    shown_log,
)
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime import child
from widthfold_onnx.runtime.child import Child, isolated


def test_the_result_comes_from_another_process():
    assert isolated(add, 2, 3) == isolated(add, 2, 3, timeout=math.inf) == 5
    assert isolated(process_id) != os.getpid()


def test_large_values_and_options_travel():
    array = np.arange(3_000_000, dtype=np.float32)
    np.testing.assert_array_equal(isolated(echo, array), array)
    options = VerifyOptions(input_shapes={"x": (1, 2)})
    assert isolated(echo, options) == options


def test_what_the_child_prints_stays_there(capfd):
    assert isolated(shout) == "done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (abort, "SIGABRT.*assertion of the runtime failed"),
        (segfault, "SIGSEGV"),
        (leave, "code 7"),
    ],
)
def test_a_crash_is_told_by_name(function, words):
    with pytest.raises(UnverifiedError, match=words):
        isolated(function)


@pytest.mark.parametrize("share", [0, 0.5])
def test_an_answer_that_breaks_off_means_that_the_child_is_gone(share):
    answer = pickle.dumps(("result", "of a long run"))
    pipes = SimpleNamespace(
        stdin=io.BytesIO(), stdout=io.BytesIO(answer[: int(share * len(answer))])
    )
    assert child._messages(pipes, b"task").get(timeout=60) == ("gone", None)


def test_a_child_that_writes_what_is_no_message_can_end():
    """A full pipe would block it for ever."""
    pipes = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(b"no message" + bytes(1 << 20)))
    assert child._messages(pipes, b"task").get(timeout=60) == ("gone", None)
    assert pipes.stdout.read() == b""


@pytest.mark.parametrize("kind", [ValueError, OSError, TypeError])
def test_what_cannot_be_read_is_a_fault_of_ours(kind):
    """An answer and a task are unreadable; the rest of both does not fit into a pipe."""
    with pytest.raises(InternalError, match=r"answer of the child.*unreadable"):
        isolated(unreadable, kind, timeout=60)
    with pytest.raises(InternalError, match=r"^[A-Z][A-Za-z]*Error: unreadable"):
        isolated(echo, unreadable(kind), timeout=60)


def test_a_child_runs_one_task_after_the_other():
    with Child() as worker:
        ids = [isolated(process_id, child=worker) for _ in range(3)]
        assert isolated(count, child=worker, on_message=ids.append) == 3
        assert isolated(add, 2, 3, child=worker, memory=1 << 40) == 5
        assert isolated(process_id, child=worker) == ids[0]
        assert isolated(process_id) != ids[0]
    assert ids == [ids[0]] * 3 + ["step 0", "step 1", "step 2"]
    assert wait_for(lambda: is_gone(ids[0]))


@pytest.mark.parametrize(
    ("fail", "arguments", "error"),
    [
        (segfault, (), UnverifiedError),
        (spin, (), UnverifiedError),
        (refuse, (UsageError,), UsageError),
    ],
)
def test_a_new_child_follows_a_failure(fail, arguments, error):
    with Child() as worker:
        first = isolated(process_id, child=worker)
        with pytest.raises(error):
            isolated(fail, *arguments, child=worker, timeout=60 if fail is not spin else 0.5)
        assert isolated(process_id, child=worker) != first
        assert wait_for(lambda: is_gone(first))


def test_a_child_that_died_after_its_task_is_replaced():
    """The next task comes before the system tells of the death."""
    with Child() as worker:
        os.kill(isolated(process_id, child=worker), signal.SIGKILL)
        assert isolated(add, 2, 3, child=worker) == 5


def test_a_task_is_blamed_for_what_it_leaves_behind():
    """An object in a cycle, or a result, whose end aborts the process."""
    with Child() as worker:
        for later in (abort_later, result_that_aborts):
            with pytest.raises(UnverifiedError, match="SIGABRT"):
                isolated(later, child=worker)
            assert isolated(add, 2, 3, child=worker) == 5


def test_a_process_that_does_not_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(child, "_END_SECONDS", 0.2)
    with pytest.raises(UnverifiedError, match="no result, and it does not end"):
        isolated(exit_with_a_thread)


def test_the_last_words_of_a_child_are_shown():
    for _ in range(3):
        with pytest.raises(UnverifiedError, match="code 3 and no result: the reason"):
            isolated(exit_with_a_reason)


def test_an_error_shows_no_output_of_an_earlier_task():
    with Child() as worker:
        assert isolated(print_only, child=worker) is None
        with pytest.raises(UnverifiedError, match=r"code 7 and no result$"):
            isolated(leave, child=worker)
        assert isolated(shout, child=worker) == "done"
        with pytest.raises(UnverifiedError, match=r"assertion of the runtime failed$"):
            isolated(abort, child=worker)


def test_a_limit_of_memory_ends_with_its_task():
    pytest.importorskip("resource")
    with Child() as worker:
        ids = isolated(process_id, child=worker, memory=1 << 30)
        assert isolated(hoard, child=worker) == 1 << 30
        assert isolated(process_id, child=worker) == ids


def test_an_endless_loop_is_stopped():
    with pytest.raises(UnverifiedError, match=r"no result after 0\.5 s"):
        isolated(spin, timeout=0.5)


@pytest.mark.parametrize("step", [0.01, 10])
def test_a_wait_in_steps_is_as_long_as_it_was_meant(monkeypatch, step):
    monkeypatch.setattr(child, "_STEP", step)
    with pytest.raises(UnverifiedError, match=r"no result after 0\.5 s"):
        isolated(spin, timeout=0.5)
    assert isolated(add, 2, 3, silence=100) == 5


def test_the_memory_limit_holds():
    pytest.importorskip("resource")
    with pytest.raises(UnverifiedError, match=r"out of memory.*1024 MiB"):
        isolated(hoard, memory=1 << 30)


@pytest.mark.parametrize("kind", [UsageError, CheckFailedError, UnverifiedError])
def test_errors_of_ours_keep_their_class(kind):
    with pytest.raises(kind, match="one line\twith a tab") as caught:
        isolated(refuse, kind)
    assert type(caught.value) is kind


def test_other_errors_are_faults_of_ours_with_the_trace():
    with pytest.raises(InternalError, match="ZeroDivisionError") as caught:
        isolated(divide)
    assert "in divide" in caught.value.__notes__[0]


def test_a_result_that_cannot_travel_is_a_fault_of_ours():
    with pytest.raises(InternalError):
        isolated(lambda_result)


def test_progress_arrives_in_order():
    lines = []
    assert isolated(count, on_message=lines.append) == 3
    assert lines == ["step 0", "step 1", "step 2"]


@pytest.mark.parametrize("end", [nothing, spin, segfault, leave])
def test_a_child_leaves_no_files_behind_however_it_ends(tmp_path, monkeypatch, end):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = []

    def look(times):
        written.append(Path(times).is_relative_to(tmp_path))
        if end is spin:
            raise UsageError("enough")

    with contextlib.suppress(UsageError, UnverifiedError):
        isolated(kept_times, end, on_message=look)
    assert written == [True]
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_progress_callback_is_raised():
    def refuse_line(line):
        raise UsageError(line)

    with pytest.raises(UsageError, match="step 0"):
        isolated(count, on_message=refuse_line)


def test_the_child_reads_nothing_from_the_terminal():
    assert isolated(read_stdin) == ""


def run_script(tmp_path, text, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return [sys.executable, str(script), *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}


def test_an_unguarded_script_can_call_it(tmp_path):
    command, environment = run_script(
        tmp_path,
        """
        from tests.runtime import called
        from widthfold_onnx.runtime.child import isolated
        print("main runs")
        print(isolated(called.add, 1, 2))
        """,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["main runs", "3", ""]
    assert done.stderr == ""


def test_a_function_of_the_script_itself_is_refused(tmp_path):
    command, environment = run_script(
        tmp_path,
        """
        from widthfold_onnx.runtime.child import isolated
        def own(): return 1
        isolated(own)
        """,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "own must live in an importable module" in done.stderr


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, getattr(signal, "SIGKILL", None)])
def test_the_child_dies_with_an_interrupted_parent(tmp_path, number):
    mark, own = tmp_path / "pid", tmp_path / "own"
    own.mkdir()
    command, environment = run_script(
        tmp_path,
        """
        import sys
        from tests.runtime import called
        from widthfold_onnx.runtime.child import isolated
        isolated(called.sleep_and_mark, sys.argv[1])
        """,
        str(mark),
    )
    environment["TMPDIR"] = str(own)
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        assert wait_for(lambda: mark.exists() and mark.read_text())
        assert len(list(own.glob("widthfold-*/*"))) == 1
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.communicate()
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
    assert wait_for(lambda: is_gone(int(mark.read_text())))
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EINVAL])
def test_a_pipe_whose_child_is_gone_can_be_closed(number):
    """Closing the pipe writes the unread bytes again; on Windows that is an invalid argument."""

    def fail():
        raise OSError(number, os.strerror(number))

    child._end(SimpleNamespace(poll=lambda: 0, stdin=SimpleNamespace(close=fail), stdout=None))


def test_what_is_swallowed_in_a_child_is_logged_here(capsys):
    isolated(swallow)
    assert not capsys.readouterr().err
    with shown_log():
        isolated(swallow)
    text = capsys.readouterr().err
    assert text.startswith("nothing follows:\nTraceback")
    assert text.endswith("KeyError: 'of a library'\n")
    isolated(swallow)
    assert not capsys.readouterr().err
