"""Select the forms of layers that are also measured inside a region, between packed tensors.

A form alone pays for folding its input and unfolding its output. Between neighbours that agree on
a layout it pays neither. So a form whose layout a neighbour could share is measured a second time
with packed tensors at its ends; the difference is the cost of its folds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from widthfold_onnx.tuning.store.identity import canonical
from widthfold_onnx.tuning.workload.layout_edges import Link
from widthfold_onnx.tuning.workload.workloads import PredictedForm, Workload


def inside_subject(subject: str) -> str:
    """Return the subject of the same layer between packed tensors."""
    return canonical({**json.loads(subject), "inside": True})


def inside(workloads: Mapping[str, Workload], links: Sequence[Link]) -> dict[str, Workload]:
    """Return the workloads to run between packed tensors as well, with the forms that matter there.

    Args:
        workloads: layers by subject.
        links: the tensors between them.

    Returns:
        Workloads by the subject of the layer; a form is included if another layer, or another of
        its kind, could make or read the same tensor in the same layout.
    """
    shared: dict[str, set[PredictedForm]] = {}
    for link in links:
        made = [(s, {f: f.returns for f in workloads[s].forms}) for s in link.makers]
        read = [(s, {f: f.reads for f in workloads[s].forms}) for s in link.readers]
        # A layer counts once for a layout, however many of its forms have it.
        layers = Counter(
            layout for _, layouts in (*made, *read) for layout in set(layouts.values())
        )
        for subject, layouts in (*made, *read):
            fitting = {
                f for f, layout in layouts.items() if layout is not None and layers[layout] > 1
            }
            shared.setdefault(subject, set()).update(fitting)
    return {
        subject: replace(
            workloads[subject],
            subject=inside_subject(subject),
            forms=tuple(form for form in workloads[subject].forms if form in forms),
            inside=True,
        )
        for subject, forms in shared.items()
        if forms
    }
