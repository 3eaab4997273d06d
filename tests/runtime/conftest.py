"""The fixture that times models on a machine of our own, for what it times by."""

from __future__ import annotations

from tests.evidence.timing.conftest import measured as measured
