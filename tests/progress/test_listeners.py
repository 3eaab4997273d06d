"""Steps of the running command: who hears them, and what ends it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

import pytest

from widthfold_onnx.progress import Step, progress, progress_to

PLANNING = Step("planning")


def test_the_listener_of_the_innermost_block_hears_a_step() -> None:
    outer: list[Step] = []
    inner: list[Step] = []
    progress(PLANNING)  # nobody listens
    with progress_to(outer.append):
        with progress_to(inner.append):
            progress(PLANNING)
        progress(Step("writing", 1, 2, 3.0))
    progress(PLANNING)
    assert (inner, outer) == ([PLANNING], [Step("writing", 1, 2, 3.0)])


def test_a_listener_hands_a_step_on_to_the_block_around() -> None:
    steps: list[Step] = []
    with (
        progress_to(steps.append),
        progress_to(lambda step: progress(replace(step, text=f"{step.text}!"))),
        progress_to(lambda step: progress(replace(step, text=step.text.upper()))),
    ):
        progress(PLANNING)
        progress(PLANNING)
    assert [step.text for step in steps] == ["PLANNING!"] * 2


def test_what_a_listener_raises_ends_the_block_and_leaves_no_listener() -> None:
    steps: list[Step] = []

    def cancel(step: Step) -> None:
        raise KeyboardInterrupt

    with progress_to(steps.append):
        with pytest.raises(KeyboardInterrupt), progress_to(cancel):
            progress(PLANNING)
        progress(PLANNING)
    assert steps == [PLANNING]


def test_threads_have_their_own_listeners() -> None:
    meeting = threading.Barrier(2)

    def steps_of(name: str) -> list[Step]:
        steps: list[Step] = []
        with progress_to(steps.append):
            meeting.wait(20)  # both listen
            progress(Step(name))
            meeting.wait(20)  # both have told
        return steps

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(steps_of, "ab")) == [[Step("a")], [Step("b")]]


def test_a_thread_has_the_listener_of_its_context() -> None:
    steps: list[Step] = []
    with progress_to(steps.append), ThreadPoolExecutor(1) as pool:
        pool.submit(progress, Step("none")).result()
        pool.submit(copy_context().run, progress, PLANNING).result()
    assert steps == [PLANNING]
