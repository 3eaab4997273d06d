"""Query the operating system and the processor. Code that differs between systems stands here only.

psutil and archspec work on Linux, macOS and Windows. A feature that only some systems have is
looked up itself, as by `hasattr(os, "O_NOFOLLOW")`; the name of the system is never asked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # as on Windows
    resource = None  # type: ignore[assignment]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_FINE_STEP = 100_000
"""Nanoseconds; a clock with longer steps cannot time a short run."""

_KILL_SECONDS = 10
"""Seconds to wait for killed processes to end."""

READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags of os.open to read a file: a FIFO does not block, and line ends stay as they are."""

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of os.open that refuses a symbolic link."""

OWN_GROUP: dict[str, Any] = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
"""Arguments of Popen for a process that gets no Ctrl-C from the terminal."""

TEMPORARY = ("TMPDIR", "TEMP", "TMP")
"""Environment variables that name the folder of temporary files."""

_VECTORS = {
    "avx512vnni": "AVX-512 VNNI",
    "avx512f": "AVX-512",
    "avxvnni": "AVX2 VNNI",
    "avx2": "AVX2",
    "avx": "AVX",
    "asimddp": "NEON with dot products",
    "asimd": "NEON",
}
"""Names of vector instructions by the flags of the processor, widest first.

Linux writes avx512_vnni and macOS avx512vnni, so underscores do not count."""

CLOSED_PIPE = (errno.EPIPE, errno.EINVAL)
"""Error numbers of writing to a pipe that nobody reads; Windows has the second, too."""

END_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a process to end."""


class Processor(NamedTuple):
    """A processor.

    Attributes:
        name: the maker's name, or the name of the microarchitecture where the processor tells none.
        signature: family, model and stepping as CPUID encodes them, else the microarchitecture: a
            virtual machine may give different processors the same name.
        vectors: widest vector instructions by which ONNX Runtime chooses kernels; "" if unknown.
    """

    name: str
    signature: str
    vectors: str

    @property
    def has_avx512(self) -> bool:
        """True if a block of ONNX Runtime's packed layout holds 16 channels."""
        return self.vectors.startswith("AVX-512")


@cache
def processor() -> Processor:
    """Return the processor of this machine."""
    from archspec import cpu
    from archspec.cpu.detect import CpuidInfoCollector, detected_info

    host = cpu.host()
    # The detected flags, not those of the matched microarchitecture: a virtual machine may hide one
    # flag, and archspec then matches an older or generic processor that has fewer of the others.
    # Some ARM systems report no flags, only the match.
    features = detected_info().features or host.features
    flags = {feature.replace("_", "") for feature in features}
    name, signature = None, host.name
    # Only x86 has CPUID, and some systems let no process write code into its memory.
    with contextlib.suppress(SystemError, OSError):
        name = cpu.brand_string()
        signature = f"{CpuidInfoCollector().cpuid.registers_for(eax=1, ecx=0).eax:x}"
    vectors = next((label for flag, label in _VECTORS.items() if flag in flags), "")
    return Processor(" ".join((name or host.name).split()), signature, vectors)


def cores() -> int:
    """Return the number of cores that this process may use."""
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        return len(process.cpu_affinity())
    return psutil.cpu_count() or 1


def clock_mhz() -> float | None:
    """Return the mean clock of the cores in MHz, None if the system does not say."""
    import psutil

    try:
        clock = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):
        return None
    return round(clock.current, 1) if clock else None


@cache
def has_fine_thread_clock() -> bool:
    """Check whether the clock of a thread's processor time is fine enough to time short runs.

    On Windows it advances by 15.6 ms, at each tick of the scheduler.
    """

    def step() -> int:
        start = time.thread_time_ns()
        while (now := time.thread_time_ns()) == start:
            pass
        return now - start

    return min(step() for _ in range(3)) < _FINE_STEP


def load_average() -> float:
    """Return the number of runnable processes, averaged over the last minute."""
    import psutil

    return psutil.getloadavg()[0]


def last_cache_bytes() -> int:
    """Return the size of the last cache of the first core; 32 MiB if the system does not say."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    capacities = [
        int(size[:-1]) << 10 for size in sizes if size.endswith("K") and size[:-1].isdigit()
    ]
    return max(capacities, default=32 << 20)


def memory_bytes() -> int:
    """Return the size of the machine's memory."""
    import psutil

    return psutil.virtual_memory().total


@contextlib.contextmanager
def memory_limit(size: int | None) -> Iterator[bool]:
    """Limit the address space of this process to `size` bytes in the block, where the system can.

    An existing lower limit stays; None sets no limit.

    Yields:
        Whether a limit was set.
    """
    limits = None if size is None else _limit_memory(size)
    try:
        yield limits is not None
    finally:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_AS, limits)


def _limit_memory(size: int) -> tuple[int, int] | None:
    """Limit the address space; return the earlier limits, or None where the system cannot."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = size if soft == resource.RLIM_INFINITY else min(size, soft)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (AttributeError, ValueError, OSError):  # Windows has no limits, macOS refuses this one
        return None
    return soft, hard


def memory_at_most(extra_bytes: int) -> contextlib.AbstractContextManager[bool]:
    """Limit the address space in the block to `extra_bytes` beyond its present size."""
    import psutil

    return memory_limit(psutil.Process().memory_info().vms + extra_bytes)


def end_tree(pid: int) -> None:
    """Kill a process that has not been waited for yet, and every process that it started.

    Waits for the latter: on Windows their files stay open until they have ended.
    """
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        children = root.children(recursive=True)
        for process in [*children, root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=_KILL_SECONDS)


def interrupt(thread: int) -> None:
    """Interrupt a thread of this process, also while it waits in a system call.

    A background job of a shell ignores SIGINT; there another signal that has a handler is sent.
    """
    number = next(n for n in (signal.SIGINT, *END_SIGNALS) if callable(signal.getsignal(n)))
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, number)
    else:
        signal.raise_signal(number)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, on systems whose folders can be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
