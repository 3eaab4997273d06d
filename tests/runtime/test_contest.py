"""Two models are timed in turn, each at the setting that suits it best."""

import numpy as np
import pytest

from tests.evidence.timing.machine import FIRST_TIMED, costs
from widthfold_onnx.runtime.clock import SESSIONS
from widthfold_onnx.runtime.inputs import input_sets
from widthfold_onnx.runtime.intervals import MIN_PROCESSES


@pytest.mark.parametrize(
    ("times", "levels", "speedup", "same"),
    [
        ((9, 6, 3, 4), ("extended", "all"), 2.0, 3.0),
        ((6, 9, 5, 3), ("all", "extended"), 2.0, 1.2),
        ((6, 9, 4, 7), ("all", "all"), 1.5, 1.5),
        ((6, 5, 9, 8), ("extended", "extended"), 0.625, 2 / 3),
    ],
)
def test_each_model_runs_at_its_own_best(measured, times, levels, speedup, same):
    timing, machine = measured(costs(*times))
    assert (timing.original.level, timing.rewritten.level) == levels
    timed = set(machine.opened[FIRST_TIMED:])
    assert timed == {("a.onnx", levels[0], 1), ("b.onnx", levels[1], 1)}
    assert timing.speedup == pytest.approx(speedup, rel=1e-6)
    assert timing.same_level == pytest.approx(same, rel=1e-6)
    advice = "the original alone is 1.5x as fast at level extended as at level all"
    assert (timing.note == advice) is (times == (9, 6, 3, 4))


def test_either_model_comes_first_in_turn(measured):
    timing, machine = measured(costs(5, 6, 5, 6))
    assert (timing.processes, timing.sessions) == (MIN_PROCESSES, max(SESSIONS))
    names = "".join(name[0] for name, _, _ in machine.opened[FIRST_TIMED:])
    assert names == "abbaabbabaabbaab" * (MIN_PROCESSES // 2)


def test_alike_processes_are_enough_and_others_go_on_to_the_end_of_the_budget(measured):
    few, _ = measured(costs(5, 6, 4, 6), time_budget=10)
    assert (few.processes, few.converged, few.verdict) == (MIN_PROCESSES, True, "faster")
    noise = np.random.default_rng(0).uniform(4, 6, 400)
    many, machine = measured([5, 6, 5, 6, *noise], time_budget=10)
    assert many.processes > MIN_PROCESSES
    assert not many.converged
    assert machine.seconds() < 11
    assert len(many.original.samples_ms) == many.processes
    assert many.verdict == "inconclusive"


def test_a_budget_that_is_too_short_still_times_one_process(measured):
    timing, _ = measured(costs(400, 900, 400, 900), time_budget=0.1)
    assert (timing.processes, timing.sessions, timing.pairs) == (1, min(SESSIONS), 2)
    assert timing.verdict == "inconclusive"
    assert timing.high / timing.low > 1.05


def test_made_up_inputs_are_shared_out_among_the_sessions(measured):
    _, machine = measured(costs(5, 6, 5, 6), cache=1 << 30)
    timed = {value for number, value in machine.runs if number >= FIRST_TIMED}
    assert len(timed) == input_sets.INPUT_SETS[1] // (2 * max(SESSIONS))
