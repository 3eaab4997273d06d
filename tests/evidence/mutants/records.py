"""Another record, while the nodes stay: the function is the same, but the record is no help."""

from __future__ import annotations

import json

from tests.evidence.mutants.folded import Fault, Folded
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY


def recorded(**changes: object) -> Fault:
    """The record says something else; the nodes stay."""

    def fault(folded: Folded) -> bool:
        entry = next(e for e in folded.conv.metadata_props if e.key == FOLD_KEY)
        record = json.loads(entry.value)
        axis = {k: v for k, v in changes.items() if k in record["axes"][-1]}
        whole = {k: v for k, v in changes.items() if k not in axis}
        changed = {**record, **whole, "axes": [*record["axes"][:-1], record["axes"][-1] | axis]}
        entry.value = json.dumps(changed)
        return changed != record

    return fault


def unreadable_record(folded: Folded) -> bool:
    entry = next(e for e in folded.conv.metadata_props if e.key == FOLD_KEY)
    entry.value = entry.value[:-1]
    return True


def other_origin(folded: Folded) -> bool:
    """The whole site says that it stands for another node."""
    for node in folded.chain:
        next(e for e in node.metadata_props if e.key == ORIGIN_KEY).value = "z"
    return True


FAULTS: dict[str, Fault] = {
    "record.samples": recorded(samples=2),
    "record.no_samples": recorded(samples=None),
    "record.batch": recorded(batch=2),
    "record.dense": recorded(dense=True),
    "record.group": recorded(group=2),
    "record.no_group": recorded(group=1),
    "record.channels": recorded(channels=[16, 16]),
    "record.digit_major": recorded(digit_major=True),
    "record.length": recorded(length=24),
    "record.no_length": recorded(length=None),
    "record.zero_length": recorded(length=0),
    "record.in_digits": recorded(in_digits=2),
    "record.out_digits": recorded(out_digits=2),
    "record.blocked": recorded(blocked=True),
    "record.unreadable": unreadable_record,
    "record.other_origin": other_origin,
}
