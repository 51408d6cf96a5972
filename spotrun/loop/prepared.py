"""Unwraps the models, optimizers and loaders that Fabric and accelerate have wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from spotrun.training.by_name import is_a
from spotrun.training.data.of_accelerate import ReadWhenUsed, read_when_used
from spotrun.training.framework import Problem

WRAPPERS = ("_forward_module", "_orig_mod")
"""
Attributes in which wrappers hold the inner model. Fabric's wrapper has the first attribute, and a compiled module has
the second.
"""
DISTRIBUTED = ("DistributedDataParallel",)
LOADERS = ("base_dataloader", "_dataloader")
"""
Attributes in which wrappers hold the script's loader. accelerate's loader has the first attribute, and Fabric's loader
has the second.
"""

SHARDED = ("FullyShardedDataParallel", "FSDPModule", "XlaFullyShardedDataParallel", "DeepSpeedEngine")
"""Classes of models whose state is split over processes."""
WHOLE_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""Fabric strategies with which each process holds the whole state."""
BY_DDP = "train with DDP, in which each process has the whole state"


def model_in(model: nn.Module) -> nn.Module:
    """Return the script's own module, without any wrappers."""
    while True:
        inside: Any = next((found for name in WRAPPERS if (found := _own(model, name)) is not None), None)
        if inside is None and type(model).__name__ in DISTRIBUTED:
            inside = model.module
        if not isinstance(inside, nn.Module) or inside is model:
            return model
        model = inside


def averages(model: nn.Module) -> bool:
    """Return True if DDP is one of the wrappers around the script's own module."""
    within, inside = model, model_in(model)
    while within is not inside:
        if type(within).__name__ in DISTRIBUTED:
            return True
        within = next((found for name in WRAPPERS if (found := _own(within, name)) is not None), inside)
    return False


def optimizer_in(optimizer: Any) -> Any:
    """
    Return the script's own optimizer, without any wrappers.

    Fabric and accelerate wrap optimizers. The type does not show whether an optimizer is such a wrapper, because the
    wrapper's class is derived from the wrapped optimizer's class, or from a base of that class. So this function
    recognizes a wrapper by its attributes.
    """
    while _is_theirs(optimizer) and (inside := vars(optimizer).get("_optimizer", vars(optimizer).get("optimizer"))):
        optimizer = inside
    return optimizer


def _is_theirs(thing: object) -> bool:
    return is_of(thing, "accelerate", "lightning", "lightning_fabric")


def is_of(thing: object, *packages: str) -> bool:
    return any(cls.__module__.partition(".")[0] in packages for cls in type(thing).__mro__)


def _own(model: nn.Module, name: str) -> Any:
    """
    Return the attribute `name` of `model` itself; None if `model` has no such attribute. `getattr` is not used, because
    it would also search the model that `model` wraps.
    """
    return vars(model).get(name, model._modules.get(name))


def loader_in(loader: Any) -> Any:
    """Return the script's own loader, without a library's wrapper."""
    name = _name_in(loader)
    return loader if name is None else _inside(loader, name)


def exchange(loader: Any, exact: Callable[[Any], Any]) -> Any:
    """
    Return `exact(loader)`, to use in place of `loader`. If `loader` is a library's wrapper, replace only the loader
    inside the wrapper, and return the wrapper.
    """
    name = _name_in(loader)
    if name is None:
        return exact(loader)
    inside = _inside(loader, name)
    vars(loader)[name] = read_when_used(loader, exact(inside))
    return loader


def _inside(wrapper: Any, name: str) -> Any:
    inside = vars(wrapper)[name]
    return vars(inside)["_inner"] if type(inside) is ReadWhenUsed else inside


def _name_in(loader: Any) -> str | None:
    if not _is_theirs(loader) or not hasattr(loader, "__dict__"):
        return None
    return next((name for name in LOADERS if name in vars(loader)), None)


def kept_by(launcher: Any) -> dict[str, Any]:
    """Return the stateful objects that a Fabric or an Accelerator holds and that a resumed training needs."""
    if is_of(launcher, "accelerate"):
        return {} if launcher.scaler is None else {"accelerator.scaler": launcher.scaler}
    return {"fabric.precision": launcher.strategy.precision}


def loggers_of(launcher: Any) -> Sequence[Any]:
    """
    Return the loggers of a Fabric, or the trackers of an Accelerator. Fabric's loggers have the interface of
    Lightning's.
    """
    if launcher is None:
        return ()
    loggers: Sequence[Any] = launcher.trackers if is_of(launcher, "accelerate") else launcher.loggers
    return loggers


def counters(launcher: Any) -> dict[str, int]:
    """
    Return the number of batches whose gradients accelerate has accumulated since the last step, and the number of its
    own checkpoints (`save_state`), by which it names them. Return an empty mapping for Fabric, which has neither.
    """
    if launcher is None or not is_of(launcher, "accelerate"):
        return {}
    return {"step": launcher.step, "iteration": launcher.project_configuration.iteration}


def load_counters(launcher: Any, saved: dict[str, int]) -> None:
    for name, value in saved.items():
        setattr(launcher.project_configuration if name == "iteration" else launcher, name, value)


def problems(launcher: Any, models: Mapping[str, nn.Module]) -> Iterator[Problem]:
    """
    Yield a problem for each object that spotrun cannot save because its state is split among processes or is on a TPU.
    """
    if launcher is not None and (name := _spread_by(launcher)):
        yield Problem(f"{name} spreads the state over processes or devices", BY_DDP)
    for name, model in models.items():
        if any(is_a(part, *SHARDED) for part in model.modules()):
            yield Problem(f"{name} is sharded: each process has a part of its state", BY_DDP)
        if any(weight.device.type == "xla" for weight in model.parameters()):
            yield Problem(f"{name} is on a TPU", "use a GPU")


def _spread_by(launcher: Any) -> str:
    """
    Return the name of the strategy with which a Fabric or an Accelerator splits the state among processes; "" if the
    state is not split.
    """
    if is_of(launcher, "accelerate"):
        kind = str(launcher.distributed_type.name)
        return "" if kind == "NO" or kind.startswith("MULTI_") else f"accelerate's {kind}"
    strategy = type(launcher.strategy).__name__
    return "" if strategy in WHOLE_STRATEGIES else f"Fabric's {strategy}"
