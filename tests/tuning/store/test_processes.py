"""Several processes write at once or are killed, and no put that returned is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.tuning.store.measurements import key, measured
from widthfold_onnx.tuning import store as store_module
from widthfold_onnx.tuning.store import Store


def _fill(path: Path, worker: int, count: int) -> None:
    for number in range(count):
        with Store(path) as store:
            store.put(key(f"{worker} {number}"), measured(pairs=number))
            store.put(key("shared"), measured(pairs=worker))


def test_processes_may_write_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(path, n, 25)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    with Store(path) as store:
        stored = dict(store.items())
    assert stored.pop(key("shared")).pairs in range(4)
    expected = {key(f"{w} {n}"): measured(pairs=n) for w in range(4) for n in range(25)}
    assert stored == expected


def test_making_the_store_is_no_race(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.tuning.store.test_processes import _fill\n"
        "sys.stdin.read(1)\n"
        "for n in range(20): _fill(Path(sys.argv[1]) / str(n), int(sys.argv[2]), 1)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    children = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    time.sleep(2)  # all of them have imported and wait for the start
    errors = []
    for child in children:
        child.stdin.close()
    for child in children:
        errors.append(child.stderr.read().decode())
        child.stderr.close()
        child.wait(60)
    assert errors == [""] * 4
    for n in range(20):
        with Store(tmp_path / str(n)) as store:
            assert len(list(store.items())) == 5


def test_a_put_is_brought_to_the_disk_itself(path: Path) -> None:
    with contextlib.closing(store_module.open_database(path).connection) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # full
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_kill_loses_no_put_that_returned(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.tuning.store.measurements import key, measured\n"
        "from widthfold_onnx.tuning.store import Store\n"
        "start = int(sys.argv[2])\n"
        "with Store(Path(sys.argv[1])) as store:\n"
        "    for n in range(start, start + 100_000):\n"
        "        store.put(key(n), measured(pairs=n)); print(n, flush=True)\n"
    )
    rng = random.Random(11)
    returned: set[int] = set()
    for start in range(0, 600_000, 100_000):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(start)], stdout=subprocess.PIPE
        )
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.2))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        *whole, _ = (first + rest).split(b"\n")
        returned |= {int(line) for line in whole}
        with Store(path) as store:
            stored = {int(item.subject): value.pairs for item, value in store.items()}
        assert returned <= stored.keys()
        assert len(stored.keys() - returned) <= start // 100_000 + 1
        assert all(subject == pairs for subject, pairs in stored.items())
    assert len(returned) > 60
