"""Find the context of a search: provider, shapes, target, and the machine that is measured."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Provider, SearchOptions, Sizes
from widthfold_onnx.runtime.child import Child, isolated
from widthfold_onnx.runtime.inputs.sizes import batch_one_shapes, provider_and_sizes
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import ports_of
from widthfold_onnx.tuning.identity import (
    machine_identity,
    setting_identity,
)
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.targets import Target, default_target, load_target


@dataclass(frozen=True)
class SearchContext:
    """The context in which layers run, or would run.

    Attributes:
        provider: where layers run; not AUTO.
        sizes: at which whole models run: shapes of every input, one or more assignments. Layers
            run at the first.
        target: the device that times are predicted for.
        machine: `identity.machine_identity` of the machine whose measurements count; "" where
            there is none.
    """

    provider: Provider
    sizes: Sizes
    target: Target
    machine: str


def find_context(
    loaded: LoadedModel, options: SearchOptions, demanded: Sizes, store: Store, child: Child
) -> SearchContext:
    """Return the context of this machine, or if nothing is to be run of the target's kind.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
        UsageError: the target is unknown or does not fit the provider; or nothing is to be run,
            and an input has an open dimension besides its batch.
    """
    chosen_target = _chosen(options, options.provider)  # before anything runs
    if not options.measure:
        return _without_running(loaded, options, demanded, store, chosen_target)
    provider, sizes = isolated(provider_and_sizes, loaded.path, options, demanded, child=child)
    target = _chosen(options, provider) or load_target(default_target(provider))
    return SearchContext(provider, sizes, target, machine_identity(provider))


def _without_running(
    loaded: LoadedModel,
    options: SearchOptions,
    demanded: Sizes,
    store: Store,
    chosen_target: Target | None,
) -> SearchContext:
    """Return the context of a machine of the target's kind.

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
    ports = ports_of(loaded.proto)
    sizes = tuple(batch_one_shapes(ports, shapes) for shapes in demanded)
    return SearchContext(provider, sizes, target, machine)


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
