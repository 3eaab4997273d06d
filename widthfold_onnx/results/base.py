"""The base of all results: frozen structs that are also the JSON reports."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

import msgspec

Verdict = Literal["pass", "fail", "unverified"]
"""What a check says: it holds, it does not, or that is not known."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""


class Report(Result, kw_only=True, frozen=True):
    """Base of the result of a command, which a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        """Return the report as a part of a page: summary, tables, and pictures of times."""
        # By name: a notebook asks for it, and `reports` lies above the results that it renders.
        html = import_module("widthfold_onnx.reports.page.html")
        return str(html.part(self))
