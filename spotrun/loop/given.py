"""Groups the named objects that a script gives to its Loop: models, optimizers, and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from spotrun.loop import prepared
from spotrun.training.data.streams import has_state
from spotrun.training.framework import Problem
from spotrun.training.python_state.script import Script

Shapes = dict[str, tuple[int, ...]]


class Models(nn.Module):
    """All models of a script in one module, each under the name that the script gave to Loop."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(models)


class Given:
    """
    Everything that a script gives to its Loop.

    The objects are grouped by type. `models` and `optimizers` are the script's models and optimizers. `asked` are
    library objects with a `state_dict`, such as schedulers and scalers, which return and load their own state. `roots`
    are all other objects; spotrun saves and loads their attributes. `averaged` names the models whose gradients DDP
    averages.
    """

    def __init__(self, launcher: Any, things: Mapping[str, Any]) -> None:
        script = Script.of_this_process()
        self.launcher = launcher
        self.optimizers: dict[str, Optimizer] = {}
        self.asked: dict[str, Any] = {} if launcher is None else prepared.kept_by(launcher)
        self.roots = SimpleNamespace()
        self.averaged: list[str] = []
        models: dict[str, nn.Module] = {}
        for name, one in _flat(things):
            optimizer = prepared.optimizer_in(one)
            if isinstance(one, nn.Module):
                models[name] = prepared.model_in(one)
                self.averaged += [name] if prepared.averages(one) else []
            elif isinstance(optimizer, Optimizer):
                self.optimizers[name] = optimizer
            elif _is_of_library(script, one) and has_state(one):
                self.asked[name] = one
            elif not isinstance(one, DataLoader):
                setattr(self.roots, name, one)
        self.models = models
        self.module = Models(models)

    def problems(self) -> Iterator[Problem]:
        if not self.optimizers:
            yield Problem("Loop has no optimizer", "name it: Loop(model=model, optimizer=optimizer)")
        if not self.models:
            yield Problem("Loop has no model", "name it: Loop(model=model, optimizer=optimizer)")
        yield from prepared.problems(self.launcher, self.models)
        there = {id(weight) for weight in self.module.parameters()}
        for name, optimizer in self.optimizers.items():
            trained: list[Tensor] = [one for group in optimizer.param_groups for one in group["params"]]
            if missing := [one for one in trained if id(one) not in there]:
                shape, given = tuple(missing[0].shape), self._name_of(missing[0])
                yield Problem(
                    f"{name} trains weights of no model that Loop was given, for example one of shape {shape}",
                    "name that model too: Loop(model=model, other=other, …)"
                    if given is None
                    else f"make {given} an nn.Parameter, and give it as Loop({given}=nn.ParameterList([{given}]), …)",
                )

    def _name_of(self, tensor: Tensor) -> str | None:
        """Return the name under which the script has given this tensor itself to Loop; None if it has not."""
        return next((name for name, one in vars(self.roots).items() if one is tensor), None)

    def kinds(self) -> dict[str, str]:
        """Return the class name of each object except the models, keyed by the object's name."""
        return {name: type(one).__name__ for name, one in (self.optimizers | self.asked).items()}

    def shapes(self) -> Shapes:
        weights = [*self.module.named_parameters(), *self.module.named_buffers()]
        return {name: tuple(weight.shape) for name, weight in weights}


def _is_of_library(script: Script, one: object) -> bool:
    return not script.owns(type(one)) or hasattr(one, "optimizer")


def _flat(things: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """
    Yield each object with its name. A list or mapping is replaced by its items if all of them are models, optimizers or
    objects with a state.
    """
    for name, one in things.items():
        items = _items(one)
        if items and all(isinstance(part, nn.Module | Optimizer) or has_state(part) for _, part in items):
            yield from ((f"{name}[{key}]", part) for key, part in items)
        else:
            yield name, one


def _items(one: Any) -> Sequence[tuple[Any, Any]]:
    if type(one) in (list, tuple):
        return list(enumerate(one))
    return list(one.items()) if type(one) is dict else ()
