"""Tell the flags of another processor to a process that starts with this folder on its path."""

from __future__ import annotations

import archspec.cpu.detect
from processors import CHOSEN, FLAGS, told  # type: ignore[import-not-found] # beside this file

if CHOSEN is not None:
    info = told(FLAGS[CHOSEN])
    archspec.cpu.detect.detected_info = lambda: info
