"""Find the dimensions that a model leaves open, and extents of them at which it runs.

A model does not say how long an audio input must be. So the original is run at one size after
another until one works, small sizes first; a run at a wrong size fails early. Memory and work of a
search are limited. Work is counted in elements, so that a busy machine finds the same sizes as an
idle one; the time limit on top is an error, never a result.

A child process runs `provider_and_sizes`. So this file imports nothing that only rewriting needs,
which takes longer to import than most models take to run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path

from widthfold_onnx.errors import GivenUpError, NoKernelError, UnverifiedError, UsageError
from widthfold_onnx.model.proto.dims import DimensionKey, Dimensions, apart, check_shapes
from widthfold_onnx.options import Provider, RuntimeOptions, Shapes, Sizes, Values
from widthfold_onnx.results import AssumedSizes
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.runtime.session import Port, Session, open_session
from widthfold_onnx.system import memory_at_most
from widthfold_onnx.text import printable

TRIED_EXTENTS = (64, 16, 256, 1, 20, 128, 160, 224, 320, 576, 640, 1024, 4096, 16384, 65536)
"""Extents to try. Not 1 first: then only padded borders would be compared."""

SINGLE = (64, 16, 256)
"""Extents of all other dimensions while one dimension goes through `FINE`."""

FINE = (3, *range(8, 128, 4), *range(128, 512, 16), *range(512, 1025, 64), 257, 513, 2048, 4096)
"""Extents to try for one dimension at a time: numbers of bands, of channels, of mel filters."""

MAX_TRIED_ELEMENTS = 1 << 22
"""Most elements over all inputs at a size that the caller did not demand."""

SEARCH_WORK = 1 << 26
"""Limit of the work of a search: input elements of all runs, and `TRY_WORK` for each run."""

TRY_WORK = 1 << 14
"""Work that a run counts beside its elements; most runs fail within milliseconds."""

SEARCH_SECONDS = 600.0
"""Seconds after which a search for sizes is given up, with an error."""

HINT_SECONDS = 5.0
"""The same for the sizes of a hint; then there is no hint."""

MEMORY = 1 << 30
"""Bytes that a search may allocate beside the memory that the process already has."""

ENOUGH = 2000
"""Fewest elements of the sizes that are tried first: one frame of audio shows and times little."""

MAX_COMPARED_ELEMENTS = 750_000
"""Most elements over all inputs at the second compared size, unless it is twice the first one."""

GROWTHS = (8, 4, 2)
"""Factors from the first size to a larger one for timing, in the order in which they are tried."""

MAX_TIMED_ELEMENTS = 1 << 20
"""Most elements over all inputs at a larger size for timing that the caller did not demand."""

MAX_TIMED_SECONDS = 0.1
"""Longest run at such a size: a trial takes at least sixty runs of both models."""


def input_dimensions(inputs: Sequence[Port], demanded: Shapes) -> Dimensions:
    """Return the dimensions of inputs; the caller may fix some.

    Args:
        inputs: of the model; a value of several elements fixes the extent of a 1-D input.
        demanded: whole shapes by input name, which the caller demands.

    Raises:
        UsageError: a demanded shape for an input that does not exist, or that it cannot have.
    """
    value_dims = {p.name: (len(p.value),) for p in inputs if len(p.value) > 1 and len(p.dims) == 1}
    demanded = {**value_dims, **demanded}
    # The runtime shows a scalar and a tensor of unknown rank alike.
    check_shapes({port.name: port.dims or None for port in inputs}, demanded)
    return Dimensions.of({port.name: port.dims for port in inputs}, demanded)


def assumption_report(inputs: Sequence[Port], demanded: Sizes, sizes: Sizes) -> AssumedSizes | None:
    """Describe the assumed sizes; None if none were.

    Args:
        inputs: of the model.
        demanded: sizes that the caller demands.
        sizes: whole shapes of all inputs.
    """
    names = input_dimensions(inputs, demanded[0]).open_inputs
    if not names or not sizes:
        return None
    shapes = [{name: list(shapes[name]) for name in names} for shapes in sizes]
    return AssumedSizes(open=names, sizes=shapes)


def batch_one_shapes(inputs: Sequence[Port], demanded: Shapes) -> Shapes:
    """Return shapes with batch 1, for a model that is not run.

    Raises:
        UsageError: as `input_dimensions`, or a dimension other than the batch is open.
    """
    dims = input_dimensions(inputs, demanded)
    for name, input_dims in dims.by_input.items():
        if any(dim in dims.besides(dims.batch_dims) for dim in input_dims):
            raise UsageError(
                f"input {printable(name)} has open dimensions, and nothing is run to find "
                f"them out; pass --input-shape {printable(name)}:SIZE,..."
            )
    return dims.shapes(dict.fromkeys(dims.open_dims, 1))


def provider_and_sizes(
    model: Path, options: RuntimeOptions, demanded: Sizes
) -> tuple[Provider, Sizes]:
    """Return the provider, and sizes at which a model runs (`find_sizes`).

    Meant to run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: the provider cannot be used, or no sizes were found.
        UsageError: sizes that do not fit the model.
    """
    kept = ("provider", "cases", "weight_extents")
    session = open_session(model, RuntimeOptions(**{name: getattr(options, name) for name in kept}))
    return session.provider, find_sizes(session, demanded)


def runs_at(model: Path, cases: Sequence[Values], suggested: Sizes) -> Sizes:
    """Return the suggested sizes at which a model runs, and then sizes that a search found.

    Meant to run in `runtime.child.isolated`.

    Args:
        model: the file.
        cases: values of its inputs that choose between parts of it.
        suggested: shapes of some inputs or of all.

    Raises:
        UnverifiedError: there is no runtime, or the model does not load.
    """
    session = open_session(model, RuntimeOptions(cases=tuple(cases)))
    sizes: list[Shapes] = []
    budget = Budget(HINT_SECONDS)
    for shapes in suggested:
        with contextlib.suppress(UnverifiedError, UsageError):  # one symbol may get two sizes
            sizes.append(find_shapes(session, shapes, budget=budget, always_bounded=True))
    with contextlib.suppress(UnverifiedError):
        sizes.append(find_shapes(session, {}, budget=budget, always_bounded=True))
    return tuple(sizes)


class Budget:
    """The work and the time that several searches share.

    Args:
        seconds: until they are given up; None takes `SEARCH_SECONDS`.

    Attributes:
        work: what is left (`SEARCH_WORK`).
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.work: float = SEARCH_WORK
        self._seconds = SEARCH_SECONDS if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    def seconds_left(self) -> float:
        """Return the seconds until the searches are given up.

        Raises:
            GivenUpError: there are none.
        """
        if (left := self._end - time.monotonic()) > 0:
            return left
        raise GivenUpError(
            f"no size was found at which the model runs within {self._seconds:g} s; "
            "pass --input-shape NAME:SIZE,... or --inputs"
        )


def any_shapes(_: Shapes) -> bool:
    """Accept any shapes."""
    return True


def find_sizes(
    session: Session,
    demanded: Sizes,
    suits: Callable[[Shapes], bool] = any_shapes,
    budget: Budget | None = None,
) -> Sizes:
    """Return shapes of all inputs with which the model runs, for each assignment of the caller.

    If there is one assignment, and it leaves dimensions open, a second size for timing follows: a
    larger one, or a smaller one if no larger one runs.

    Args:
        session: of the original, at any level.
        demanded: sizes that the caller demands.
        suits: as in `find_shapes`.
        budget: of the search; None gives it its own.

    Raises:
        UsageError: as `input_dimensions`.
        UnverifiedError: no try ran.
    """
    budget = budget or Budget()
    sizes = tuple(find_shapes(session, shapes, suits, budget) for shapes in demanded)
    if len(sizes) > 1:
        return sizes
    further = second_timed_shapes(session, demanded[0], sizes[0], budget)
    return sizes if further is None else (*sizes, further)


def find_shapes(
    session: Session,
    demanded: Shapes,
    suits: Callable[[Shapes], bool] = any_shapes,
    budget: Budget | None = None,
    *,
    always_bounded: bool = False,
) -> Shapes:
    """Return the first shapes with which the model runs, for every input.

    Args:
        session: of the original, at any level.
        demanded: shapes that the caller demands.
        suits: decides whether shapes at which the model runs are good enough; if none are, the
            first ones are returned.
        budget: of the search; None gives it its own.
        always_bounded: True if shapes that the caller demands in full have bounds, too.

    Raises:
        UsageError: as `input_dimensions`.
        UnverifiedError: no try ran.
        NoKernelError: no try ran, the first one for want of a kernel.
    """
    tries = _Tries(session, demanded, budget, always_bounded=always_bounded)
    open_dims = tries.dims.open_dims
    small = list(_small_batch(tries.dims))
    choices = [*small, *(dict.fromkeys(open_dims, extent) for extent in TRIED_EXTENTS)]
    shapes = tries.first(small, least=ENOUGH) or tries.first([*choices, *_one_at_a_time(open_dims)])
    if shapes is None:
        if tries.lacks_kernel:
            raise NoKernelError(
                f"{tries.failure}; no input helps, as the runtime has no kernel for it"
            )
        names = ", ".join(map(printable, tries.dims.open_inputs))
        if names:
            raise UnverifiedError(
                f"no size of {names} was found at which the model runs; pass --input-shape "
                f"NAME:SIZE,... or --inputs (the first try: {tries.failure})"
            )
        sizes = "".join(f", {printable(n)} {'x'.join(map(str, s))}" for n, s in demanded.items())
        raise UnverifiedError(
            f"no random input was found that runs{sizes} ({tries.failure}); pass --inputs"
        )
    if open_dims and not suits(shapes):
        shapes = tries.first(choices, least=ENOUGH, suits=suits) or shapes
    return shapes


def second_timed_shapes(
    session: Session, demanded: Shapes, shapes: Shapes, budget: Budget
) -> Shapes | None:
    """Return larger shapes for timing, else smaller ones; None if none are open or none run.

    All open dimensions but the batch are scaled together; if that does not run, one of them is.
    """
    tries = _Tries(session, demanded, budget)
    dims, extents = tries.dims, tries.dims.extents(shapes)
    positions = dims.besides(dims.batch_dims)
    groups = list(filter(None, (positions, *((dim,) for dim in dims.open_dims))))
    large = [
        {**extents, **{dim: extents[dim] * times for dim in group}}
        for group in groups
        for times in GROWTHS
    ]
    small = [
        {**extents, **{dim: extents[dim] // times for dim in group}}
        for group in groups
        for times in GROWTHS
        if all(extents[dim] % times == 0 for dim in group)
    ]
    long = tries.first(large, most=MAX_TIMED_ELEMENTS, seconds=MAX_TIMED_SECONDS)
    return long or tries.first(small)


def second_compared_shapes(
    session: Session,
    demanded: Shapes,
    shapes: Shapes,
    is_light: Callable[[Shapes], bool] = any_shapes,
) -> Shapes | None:
    """Return a second size for comparison; None if no dimension is open, or nothing else runs.

    A rewrite that hard-codes one size is right at that size. So the second size is up to 16 times
    as long if the model runs so, else twice as large. Tried first are odd extents, as a factor does
    not divide them, and batch 3. A rewrite that confuses two dimensions is right where they are
    equal, so sizes with different extents come before equal ones.

    Args:
        session: of the original, at any level.
        demanded: sizes that the caller demands.
        shapes: the first ones that are compared.
        is_light: decides whether shapes that are much longer may be run.
    """
    tries = _Tries(session, demanded)
    dims, extents = tries.dims, tries.dims.extents(shapes)
    positions, batch_dims = dims.besides(dims.only_batch_dims), dims.only_batch_dims

    def scaled(growth: int, cut: int, batch: int) -> dict[DimensionKey, int]:
        lengths = {dim: extents[dim] * growth - cut for dim in positions}
        return {**lengths, **{dim: extents[dim] * batch for dim in batch_dims}}

    batches, growths = (3, 1) if batch_dims else (1,), (16, 4, 2) if positions else ()
    scales = list(product(growths, (1, 0), batches))
    doubled = [scaled(2, 0, 2), scaled(1, 0, 3)]
    long = [scaled(*scale) for scale in scales]
    if len(dims.open_dims) > 1:
        odd = [apart(scaled(*scale))[0] for scale in scales if scale[1]]
        even = [item for scale in scales if not scale[1] for item in apart(scaled(*scale))[1:]]
        long = [*odd, *even, *long]
        doubled = [*chain.from_iterable(map(apart, doubled)), *doubled]
    doubled = [item for item in doubled if item != extents]
    light = tries.first(long, most=MAX_COMPARED_ELEMENTS, may_run=is_light)
    return light or tries.first(doubled)


def with_batch(session: Session, demanded: Shapes, shapes: Shapes, batch: int) -> Shapes | None:
    """Return the shapes with another batch; None if the model does not run with it."""
    tries = _Tries(session, demanded)
    extents = tries.dims.extents(shapes)
    return tries.first([{**extents, **dict.fromkeys(tries.dims.batch_dims, batch)}])


def _small_batch(dims: Dimensions) -> Iterator[dict[DimensionKey, int]]:
    """Yield extents to try, all with batch 1: one extent everywhere, or in one dimension."""
    unit_extents = dict.fromkeys(dims.open_dims, 1)
    positions = dims.besides(dims.batch_dims)
    for extent in TRIED_EXTENTS if dims.open_dims else (1,):
        yield {**unit_extents, **dict.fromkeys(positions, extent)}
        for long in positions[:4]:
            yield {**unit_extents, long: extent}


def _one_at_a_time(open_dims: Sequence[DimensionKey]) -> Iterator[dict[DimensionKey, int]]:
    """Yield extents to try in which one dimension after the other goes through `FINE`."""
    for extent in SINGLE:
        for dim in reversed(open_dims):  # bands and channels are at the end, time is before
            for fine in FINE:
                yield {**dict.fromkeys(open_dims, extent), dim: fine}


class _Tries:
    """Runs of a model at one size after another; a size that did not run is not tried again.

    Args:
        session: of the model.
        demanded: shapes that the caller demands.
        budget: of the tries; None gives them their own.
        always_bounded: True if shapes that the caller demands in full have bounds, too.

    Attributes:
        dims: the open dimensions.
        failure: message of the first try that failed.
        lacks_kernel: True if that try failed for want of a kernel.

    Raises:
        UsageError: as `input_dimensions`.
    """

    def __init__(
        self,
        session: Session,
        demanded: Shapes,
        budget: Budget | None = None,
        *,
        always_bounded: bool = False,
    ) -> None:
        self._session = session
        self._always_bounded = always_bounded
        self._budget = budget or Budget()
        self._stopped: list[Shapes] = []
        self.dims = input_dimensions(session.inputs, demanded)
        self.failure = ""
        self.lacks_kernel = False

    def first(
        self,
        choices: Iterable[dict[DimensionKey, int]],
        *,
        least: int = 0,
        most: int = MAX_TRIED_ELEMENTS,
        seconds: float = math.inf,
        may_run: Callable[[Shapes], bool] = any_shapes,
        suits: Callable[[Shapes], bool] = any_shapes,
    ) -> Shapes | None:
        """Return the first choice that runs; None if there is none within the bounds.

        Args:
            choices: extents of the open dimensions.
            least: fewest elements over all inputs.
            most: most elements over all inputs. If nothing is open, neither bound applies.
            seconds: longest run, for sizes that are only timed.
            may_run: decides whether shapes are tried.
            suits: decides whether shapes at which the model runs are good enough.

        Raises:
            GivenUpError: the time of the budget is used up.
        """
        for choice in choices:
            shapes = self.dims.shapes(choice)
            elements = sum(map(math.prod, shapes.values()))
            if shapes in self._stopped or (choice and not least <= elements <= most):
                continue
            if not may_run(shapes):
                continue
            is_bounded = bool(choice) or self._always_bounded
            if self._runs(shapes, seconds if is_bounded else None):
                if suits(shapes):
                    return shapes
            else:
                self._stopped.append(shapes)
            self._budget.work -= elements + TRY_WORK
            if self._budget.work < 0:
                return None
        return None

    def _runs(self, shapes: Shapes, seconds: float | None) -> bool:
        """Run the model once; `seconds` is the longest run, None bounds neither time nor memory."""
        feeds = random_feeds(self._session.inputs, 0, shapes)
        limits_memory = seconds is not None and traits_of(self._session.provider).device == "cpu"
        limit = math.inf if seconds is None else min(seconds, self._budget.seconds_left())
        try:
            with memory_at_most(MEMORY) if limits_memory else contextlib.nullcontext():
                self._session.run(feeds, limit)
        except (UnverifiedError, MemoryError) as error:
            if seconds is not None:
                self._budget.seconds_left()  # the clock, not the size, may have stopped the run
            self.lacks_kernel |= not self.failure and isinstance(error, NoKernelError)
            self.failure = self.failure or str(error) or "out of memory"
            return False
        return True
