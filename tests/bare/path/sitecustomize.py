"""Take from Python what only some systems have; a process with this folder on its path runs it.

Windows has none of it, macOS no /proc and no affinity. What stands in for the system's own answers,
psutil and archspec, still reads /proc here, as it would ask another system otherwise.
"""

from __future__ import annotations

import os
import signal
import subprocess  # noqa: F401 - it needs functions of this system that are removed below
import sys
from collections.abc import Callable
from typing import Any

import psutil

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
OF_OS = (
    *("fork", "forkpty", "getloadavg", "getpgid", "killpg", "mkfifo", "sched_getaffinity"),
    *("sched_setaffinity", "setsid", "sysconf", "wait4"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
)
OF_SIGNAL = ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "pthread_kill", "setitimer")
FOLDERS = ("/proc/", "/sys/")
SYSTEM = {"archspec", "psutil"}


def _check(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(FOLDERS):
        return
    frame = sys._getframe(1)
    while frame:
        if frame.f_globals.get("__name__", "").partition(".")[0] in SYSTEM:
            return
        frame = frame.f_back
    raise FileNotFoundError(2, "this system has no such folder", os.fspath(path))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        _check(arguments[0])


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        _check(path)
        return function(path, *arguments, **options)

    return call


def _unopened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fail as Windows does for a file that this process has open."""

    def call(*paths: Any, **options: Any) -> Any:
        names = {os.path.realpath(path) for path in paths if isinstance(path, str | os.PathLike)}
        if names & {file.path for file in psutil.Process().open_files()}:
            raise PermissionError(13, "the file is open", os.fspath(paths[0]))
        return function(*paths, **options)

    return call


for name in MODULES:
    sys.modules[name] = None
for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
os.stat, os.lstat = _checked(os.stat), _checked(os.lstat)
for name in ("remove", "rename", "replace", "unlink"):
    setattr(os, name, _unopened(getattr(os, name)))
sys.addaudithook(_audit)
