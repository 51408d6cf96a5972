"""
Finds the modules that have changed since the last snapshot, among those that a library defines, such as torch's layers.
A model consists mostly of such modules.

The state of such a module consists of a few plain attributes (such as `Dropout.p`), of the `requires_grad` flags of its
parameters, and of the attributes that the script has set on them. A large model has thousands of such modules, and all
of them are compared at each snapshot, so the comparison has to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

from torch import Tensor, nn

from spotrun.training.python_state.values import SCALARS

_requires_grad = attrgetter("requires_grad")
_set_on = attrgetter("__dict__")


class LibraryModuleState(NamedTuple):
    """The earlier state of a library's module."""

    module: nn.Module
    attributes: int
    """Number of the module's attributes, including those that torch adds."""
    get: Callable[[dict[str, Any]], Any]
    values: Any
    tensors: Sequence[Tensor | None]
    parameters: Sequence[Tensor]
    flags: list[bool]
    set_on: list[dict[str, Any]]
    """The attributes of each parameter."""

    @classmethod
    def of(cls, module: nn.Module, names: Sequence[str]) -> LibraryModuleState:
        """Record a module's current state. `names` are the attributes to compare."""
        get = itemgetter(*names) if names else _nothing
        attributes = vars(module)
        parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
        flags = list(map(_requires_grad, parameters))
        tensors, set_on = _tensors(attributes), list(map(dict, map(_set_on, parameters)))
        return cls(module, len(attributes), get, get(attributes), tensors, parameters, flags, set_on)

    def is_same(self) -> bool:
        attributes = vars(self.module)
        if len(attributes) != self.attributes or self.get(attributes) != self.values:
            return False
        tensors = _tensors(attributes)
        if len(tensors) != len(self.tensors) or not all(map(is_, tensors, self.tensors)):
            return False
        if list(map(_requires_grad, self.parameters)) != self.flags:
            return False
        return all(map(_has_same, map(_set_on, self.parameters), self.set_on))


def _has_same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return True if nothing has changed. A tensor may have been changed in place, so it counts as changed."""
    if not now and not before:
        return True
    return now.keys() == before.keys() and all(
        type(value) in SCALARS and value is before[name] for name, value in now.items()
    )


def _tensors(attributes: dict[str, Any]) -> list[Tensor | None]:
    return [*attributes["_parameters"].values(), *attributes["_buffers"].values()]


def _nothing(_attributes: dict[str, Any]) -> None:
    return None
