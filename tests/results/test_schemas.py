"""The JSON Schemas that are shipped with the package."""

from __future__ import annotations

import importlib
from inspect import cleandoc
from typing import Any

import pytest

from tests.cli.tool import SCHEMAS, schema_of
from tests.shared import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in SCHEMAS.glob("*.json")))
def test_a_shipped_schema_is_that_of_the_structs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    script = importlib.import_module("make_schemas")
    assert {path.stem for path in SCHEMAS.iterdir()} == set(script.STRUCTS)
    assert in_one_order(schema_of(name)) == in_one_order(script.schema_of(name))


def in_one_order(schema: Any) -> Any:
    """Sort the alternatives of a schema, and take the indent from its texts.

    Releases of msgspec order alternatives differently. Python 3.13 dedents docstrings.
    """
    if isinstance(schema, str):
        return cleandoc(schema)
    if isinstance(schema, dict):
        return {key: in_one_order(part) for key, part in schema.items()}
    return sorted(map(in_one_order, schema), key=str) if isinstance(schema, list) else schema
