"""Measures where the time of a model goes, node by node, with the runtime's own profiler.

Such times show slow nodes. They do not measure the model, because profiling costs time.
Nodes in the body of a node are listed by themselves, so it has the rest of its time only.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from widthfold_onnx.evidence.timing.roofline import Least
from widthfold_onnx.results import NodeTime
from widthfold_onnx.runtime.sessions.session import Feeds, Session

WARM_RUNS = 3
PROFILED_RUNS = 10
PROFILED_SECONDS = 0.5
"""Fewer runs, though at least one, are profiled where ten would take longer."""

SHORTEST = 10
"""Microseconds below which no node is compared with its least time, as times are whole ones."""

HOLDING = ("If", "Loop", "Scan")
"""Operators in whose time other nodes run."""


def profile(open_with: Callable[[Path], Session], feeds: Feeds, least: Least) -> list[NodeTime]:
    """Profile a model.

    Args:
        open_with: opens the session with profiling into the given prefix.
        feeds: one input set.
        least: says the least time of a node on this machine.

    Returns:
        All nodes of the optimized graph that ran, slowest first; time in microseconds per run.

    Raises:
        UnverifiedError: the model does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = open_with(Path(folder) / "profile")
        once = session.bound(feeds)
        for _ in range(WARM_RUNS):
            once()
        ends = time.perf_counter() + PROFILED_SECONDS
        once()
        runs = 1
        while runs < PROFILED_RUNS and time.perf_counter() < ends:
            once()
            runs += 1
        events = json.loads(session.end_profile().read_bytes(), strict=False)
    nodes = _nodes(events, WARM_RUNS + runs, least)
    return sorted(nodes, key=lambda node: (-node.us, node.name))


def _nodes(events: list[dict[str, Any]], runs: int, least: Least) -> list[NodeTime]:
    """Return the mean time of every node over the runs after the warm ones; `runs` counts all."""
    ran: dict[tuple[str, str, str], list[tuple[int, float | None]]] = defaultdict(list)
    for event, duration in _own_times(events):
        details = event["args"]
        name = event["name"].removesuffix("_kernel_time")
        key = name, details["op_name"], details["provider"]
        ran[key].append((duration, least(name, details)))
    results = []
    for (name, op, provider), times in ran.items():
        # A node of a loop body runs several times in a run: the sum of a run is what counts.
        per_run = max(len(times) // runs, 1)
        warm = times[WARM_RUNS * per_run :]
        total = sum(duration for duration, _ in warm)
        mean = total / max(len(warm) / per_run, 1)
        floors = [seconds for _, seconds in warm if seconds is not None]
        is_known = len(floors) == len(warm) and mean >= SHORTEST
        reached = round(sum(floors) * 1e6 / total, 4) if is_known else None
        results.append(
            NodeTime(name=name, op=op, provider=provider, us=round(mean, 2), reached=reached)
        )
    return results


def _own_times(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return the events of nodes in the order of their begin, with times without their bodies.

    A node runs in the innermost node that holds a body and has not ended when it begins. Times
    are whole microseconds, rounded down, so a node that begins as another ends is not inside it.
    """
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    ran.sort(key=lambda e: (e["ts"], -e["dur"], e["args"]["op_name"] not in HOLDING))
    own = [int(event["dur"]) for event in ran]
    around: list[int] = []
    for index, event in enumerate(ran):
        while around and event["ts"] >= ran[around[-1]]["ts"] + ran[around[-1]]["dur"]:
            around.pop()
        if around:
            own[around[-1]] -= event["dur"]
        if event["args"]["op_name"] in HOLDING:
            around.append(index)
    return [(event, max(duration, 0)) for event, duration in zip(ran, own, strict=True)]
