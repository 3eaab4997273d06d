"""The fixture of a simulated machine, for the tests of the functions that time models."""

from __future__ import annotations

from tests.evidence.timing.conftest import measured as measured
