"""Define what a search reads all along, and what it finds: a session, and a draft with evidence."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from widthfold_onnx.decide.decisions import Choose, decisions_of, forms_of
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Companion, FoldOptions, Provider, SearchOptions, Shapes, Sizes
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import Gain
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.padding import PaddableChains
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.scratch import Scratch
from widthfold_onnx.rules.form import Form, FormSpec
from widthfold_onnx.runtime.child import Child, isolated
from widthfold_onnx.runtime.inputs.sizes import batch_one_shapes, provider_and_sizes
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import ports_of
from widthfold_onnx.tuning.bench import Bench
from widthfold_onnx.tuning.effort import RaceOptions, Spending
from widthfold_onnx.tuning.identity import canonical, machine_identity, setting_identity
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.level_race import LevelRace
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.targets import Target, default_target, load_target


@dataclass(frozen=True)
class SearchSession:
    """What every stage of a search reads: the model, the options, and where times are taken.

    Attributes:
        model: the original model.
        fold_options: which layers may be folded, and limits.
        search_options: where and how long to measure; the provider is not AUTO.
        sizes: at which whole models run: shapes of every input, one or more assignments. Layers
            run at the first.
        target: the device that times are predicted for.
        bench: the store, and a machine that measures at level ALL.
        scratch: the folder for models that are timed.
    """

    model: LoadedModel
    fold_options: FoldOptions
    search_options: SearchOptions
    sizes: Sizes
    target: Target
    bench: Bench
    scratch: Scratch

    @property
    def spending(self) -> Spending:
        """The seconds and runs of the effort."""
        return self.bench.options.spending

    def read(self, draft: Draft) -> Reading:
        """Read the model under a draft."""
        return Reading.of(self.model, draft)

    def forms(self, draft: Draft, choose: Choose) -> dict[NodeName, Form]:
        """Return the forms that a function chooses for the layers of the model under a draft."""
        return forms_of(decisions_of(self.read(draft), self.fold_options.selection, choose))

    def subject(self, shapes: Shapes) -> str:
        """Return the name of the model in the store: its content and inputs, at these shapes.

        Raises:
            InvalidModelError: the file was changed since it was read.
        """
        return canonical({**self._unsized_subject, "shapes": shapes})

    @cached_property
    def _unsized_subject(self) -> dict[str, object]:
        content = self.model.path.read_bytes()
        self.model.check_unchanged()  # else times of this model would be stored for another one
        return {
            "model": _digest(content),
            "inputs": _digests(self.search_options.inputs),
            "values": self.search_options.cases[0],
        }


@dataclass(frozen=True)
class SearchDraft(Draft):
    """What is done to a model so far, with the evidence of the stages that decided it.

    Attributes:
        companion_matches: the nodes that companions match.
        companion_gains: of each companion on random inputs, then on smooth ones.
        races: of the layers at each level, the level first at which they take their forms.
        all_to_extended: time of the model before layers take forms at level ALL / at EXTENDED;
            None if it was not timed.
        is_interrupted: True if the caller ended the races.
        level: at which whole models run; None chooses it for each model.
        specs: the forms that layers take at that level, by subject; padded layers may take others.
        paddable: the chains that were timed with padded channels, or would have been.
        padding_gain: of the model with all of these chains padded; None if it was not timed.
        finals: the final trial of the whole model at each size; None where it was not timed.
    """

    companion_matches: Sequence[Match] = ()
    companion_gains: Mapping[Companion, Sequence[Gain]] = field(default_factory=dict)
    races: Sequence[LevelRace] = ()
    all_to_extended: Measurement | None = None
    is_interrupted: bool = False
    level: Level | None = None
    specs: Mapping[str, FormSpec] = field(default_factory=dict)
    paddable: PaddableChains | None = None
    padding_gain: Gain | None = None
    finals: Sequence[Measurement | None] = ()

    @property
    def race(self) -> LevelRace:
        """The race at whose level layers take their forms."""
        return self.races[0]

    def taking(self, specs: Mapping[str, FormSpec], race: LevelRace | None = None) -> Self:
        """Return the draft in which layers take other forms, at the level of another race if given.

        Args:
            specs: the forms by subject; other layers stay as they are.
            race: one of the races.
        """
        race = race or self.race
        races = (race, *(other for other in self.races if other is not race))
        return replace(self, races=races, specs=specs, forms=race.layers.forms_of(specs))


@contextmanager
def open_session(
    model: LoadedModel, fold_options: FoldOptions, search_options: SearchOptions, store: Store
) -> Iterator[SearchSession]:
    """Find where models run, and keep a folder and a process for them as long as the block runs.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
        UsageError: the target is unknown or does not fit the provider; or nothing is to be run,
            and an input has an open dimension besides its batch.
    """
    progress(Step("looking for the provider and the shapes of the inputs"))
    with tempfile.TemporaryDirectory() as folder, Child() as child:
        conditions = _conditions(model, search_options, fold_options.input_shapes, store, child)
        options = replace(search_options, provider=conditions.provider)
        is_kept = traits_of(conditions.provider).device == "cpu"
        if not is_kept:
            child.end()  # it holds memory of the accelerator, and what fails there may break it
        race_options = RaceOptions.at(Level.ALL, options)
        yield SearchSession(
            model,
            fold_options,
            options,
            conditions.sizes,
            conditions.target,
            Bench(race_options, store, conditions.machine, child if is_kept else None),
            Scratch(model, Path(folder)),
        )


class _Conditions(NamedTuple):
    """The conditions under which models run, or would run: fields of `SearchSession`.

    `machine` is the `identity.machine_identity` whose measurements count; "" where there is none.
    """

    provider: Provider
    sizes: Sizes
    target: Target
    machine: str


def _conditions(
    model: LoadedModel, options: SearchOptions, demanded: Sizes, store: Store, child: Child
) -> _Conditions:
    """Return the conditions here or, if nothing is to be run, on a machine of the target's kind."""
    chosen_target = _chosen(options, options.provider)  # before anything runs
    if not options.measure:
        return _without_running(model, options, demanded, store, chosen_target)
    provider, sizes = isolated(provider_and_sizes, model.path, options, demanded, child=child)
    target = _chosen(options, provider) or load_target(default_target(provider))
    return _Conditions(provider, sizes, target, machine_identity(provider))


def _without_running(
    model: LoadedModel,
    options: SearchOptions,
    demanded: Sizes,
    store: Store,
    chosen_target: Target | None,
) -> _Conditions:
    """Return the conditions on a machine of the target's kind.

    If the store holds one machine of that kind, its measurements count. If it holds several, the
    measurements of this machine count if there are any. The kind of CPU is known of this machine
    alone.
    """
    target = chosen_target or load_target(default_target(options.provider))
    provider = target.provider if options.provider is Provider.AUTO else options.provider
    setting = setting_identity(replace(options, provider=provider), Level.ALL)
    machines = [name for name in store.machines(setting) if target.device in name]
    with suppress(UnverifiedError):
        this_machine = machine_identity(provider)
        if (
            this_machine in machines
            and target.provider is Provider.CPU
            and target.name != default_target(provider)
        ):
            machines.remove(this_machine)
        elif this_machine in machines:
            machines = [this_machine]
    machine = machines[0] if len(machines) == 1 else ""
    ports = ports_of(model.proto)
    sizes = tuple(batch_one_shapes(ports, shapes) for shapes in demanded)
    return _Conditions(provider, sizes, target, machine)


def _chosen(options: SearchOptions, provider: Provider) -> Target | None:
    """Return the target that the caller chose, None where the choice was left open.

    Raises:
        UsageError: no target has that name, or it does not fit the provider.
    """
    if options.target is None:
        return None
    target = load_target(options.target)
    on_cpu = traits_of(provider).device == "cpu"
    if provider is not Provider.AUTO and on_cpu != (target.provider is Provider.CPU):
        raise UsageError(f"target {target.name} is of provider {target.provider}, not {provider}")
    return target


def _digests(inputs: Sequence[str]) -> list[str]:
    """Digest the files of stored inputs: some kernels branch on the data."""
    paths = map(Path, inputs)
    files = (sorted(path.rglob("*.pb")) if path.is_dir() else [path] for path in paths)
    return [_digest(file.read_bytes()) for file in chain.from_iterable(files)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
