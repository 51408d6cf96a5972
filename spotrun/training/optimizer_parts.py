"""
Saves and restores optimizers by the names of the parameters that they train.

torch's `state_dict()` identifies a parameter by its position among the parameters of all groups. If the script added a
group or replaced an optimizer during training, the positions differ in a new process, and a parameter could get another
parameter's state. So a snapshot includes the names too. A resume first restores the groups as they were at the
snapshot, and then loads the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spotrun.training.data.samplers import is_plain
from spotrun.training.tensors import mapped
from spotrun.training.weights import Misfit

State = dict[str, Any]
BY_NAME = "spotrun_optimizers"
"""Entry of a snapshot's state that holds the result of `by_name`."""
DEPTH = 4
"""Maximum depth of nested optimizers."""
_OF_TORCH = frozenset(vars(Optimizer([nn.Parameter(torch.zeros(1))], {})))


# --- the content of a snapshot


def described(optimizers: Iterable[Any], module: nn.Module) -> list[State]:
    """
    Return each optimizer's class, and the parameter names in each of its groups. A parameter that is not in `module`
    has the name None.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [
        {
            "kind": kind_of(optimizer),
            "groups": [[names.get(id(each)) for each in group["params"]] for group in optimizer.param_groups],
        }
        for optimizer in optimizers
    ]


def by_name(optimizers: Sequence[Any], module: nn.Module) -> list[State | None] | None:
    """
    Describe each optimizer that torch cannot save completely (`is_odd`). Return a list with its description, and None
    for each other optimizer. If torch can save all of them, return None instead of the list.

    A description contains the states, groups and plain attributes of the optimizer and of the optimizers in it. Tensors
    are not copied.
    """
    if not any(map(is_odd, optimizers)):
        return None
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [_nodes(each, names) if is_odd(each) else None for each in optimizers]


def is_odd(optimizer: Any) -> bool:
    """
    Return True if torch's `state_dict` does not save all of `optimizer`: it contains another optimizer, has attributes
    that torch would not save, or defines its own way of saving.
    """
    if _is_of_torch(type(optimizer)):
        return False
    return any(True for _ in _held(optimizer, "", DEPTH)) or bool(_own(optimizer)) or saves_itself(optimizer)


def saves_itself(optimizer: Any) -> bool:
    """Return whether the class of `optimizer` defines its own `state_dict` or `load_state_dict`."""
    kind = type(optimizer)
    return not (
        getattr(kind, "state_dict", None) is Optimizer.state_dict
        and getattr(kind, "load_state_dict", None) is Optimizer.load_state_dict
    )


def kind_of(optimizer: Any) -> str:
    """
    Return the name of the optimizer's class. For torch's classes, it includes the module's name. For the script's
    classes it does not, because their module's name may vary: a module that is run as the program is called `__main__`.
    """
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}" if _is_of_torch(kind) else kind.__qualname__


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _nodes(optimizer: Any, names: Mapping[Any, str]) -> State:
    return {path: _node(each, names) for path, each in _all(optimizer)}


def _node(optimizer: Any, names: Mapping[Any, str]) -> State:
    state = {key: value for key, value in optimizer.state.items() if is_plain(value)}
    return {
        "state": {names[key]: value for key, value in state.items() if isinstance(key, Tensor) and key in names},
        "more": {key: value for key, value in state.items() if isinstance(key, str)},
        "groups": [_hyper(group) for group in optimizer.param_groups],
        "names": [[names.get(each) for each in group["params"]] for group in optimizer.param_groups],
        "own": _own(optimizer),
        "whole": _is_whole(optimizer, state, names),
    }


def _is_whole(optimizer: Any, state: Mapping[Any, Any], names: Mapping[Any, str]) -> bool:
    """
    Return whether the description in `by_name` is complete, so that a restore does not need the optimizer's
    `load_state_dict`.
    """
    if len(state) < len(optimizer.state) or not all(isinstance(key, str) or key in names for key in state):
        return False
    more = {name: value for name, value in vars(optimizer).items() if name not in _OF_TORCH}
    return all(_is_known(value) for name, value in more.items() if name not in ("state", "param_groups", "defaults"))


def _is_known(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_known, value))
    return isinstance(value, Optimizer) or callable(value) or is_plain(value)


def _hyper(group: State) -> State:
    return {name: value for name, value in group.items() if name != "params" and is_plain(value)}


def _own(optimizer: Any) -> State:
    own = {name: value for name, value in vars(optimizer).items() if name not in _OF_TORCH and is_plain(value)}
    return {name: value for name, value in own.items() if name not in ("state", "param_groups", "defaults")}


def _all(optimizer: Any) -> Iterator[tuple[str, Any]]:
    yield "", optimizer
    yield from _held(optimizer, "", DEPTH)


def with_wrapped(optimizers: Iterable[Any]) -> list[Any]:
    """Return `optimizers` and those that they wrap, whose state a snapshot has with the state of the wrapper."""
    return [each for optimizer in optimizers for _, each in _all(optimizer)]


def _held(optimizer: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the optimizers in the attributes of `optimizer`, including those in lists and mappings."""
    if not depth:
        return
    for name, value in vars(optimizer).items():
        items: Iterable[tuple[object, Any]] = ((name, value),)
        if isinstance(value, list | tuple):
            items = ((f"{name}.{number}", item) for number, item in enumerate(value))
        elif isinstance(value, dict) and name != "state":
            items = ((f"{name}.{key}", item) for key, item in value.items())
        for place, item in items:
            if isinstance(item, Optimizer):
                yield f"{path}.{place}", item
                yield from _held(item, f"{path}.{place}", depth - 1)


# --- restoring


class Parts:
    """
    A snapshot's description of the optimizers of `module`: the results of `described` and `by_name` at the snapshot.
    """

    def __init__(self, described: list[State], by_name: list[State | None] | None, module: nn.Module) -> None:
        self._described = described
        self._by_name = by_name or [None] * len(described)
        self._module = module

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self._described]

    def are_kinds_of(self, optimizers: Sequence[Any]) -> bool:
        return list(map(kind_of, optimizers)) == self.kinds

    def made_as_they_were(self, optimizers: Sequence[Any]) -> list[Any]:
        """
        Return `optimizers`, but replace each optimizer whose class differs from the one in the snapshot by a new
        optimizer of the snapshot's class. This is possible only for torch's classes. Other optimizers are returned as
        they are.
        """
        if self.are_kinds_of(optimizers):
            return list(optimizers)
        parameter = nn.Parameter(torch.zeros(1))
        known = {
            f"{kind.__module__}.{kind.__qualname__}": kind for kind in vars(torch.optim).values() if _is_kind(kind)
        }
        there = [*optimizers, *[None] * len(self.kinds)]
        found = [
            each if each is not None and kind_of(each) == kind else known[kind]([parameter]) if kind in known else each
            for each, kind in zip(there, self.kinds, strict=False)
        ]
        return [each for each in found if each is not None]

    def fits(self, optimizers: Sequence[Any]) -> bool:
        try:
            self.check(optimizers)
        except Misfit:
            return False
        return True

    def check(self, optimizers: Sequence[Any]) -> None:
        """
        Check that the parameters of `optimizers` can be grouped as in the snapshot.

        Raises:
            Misfit: the parameters cannot be grouped in this way.
        """
        if not self.are_kinds_of(optimizers):
            kinds = list(map(kind_of, optimizers))
            raise Misfit(
                f"the checkpoint's optimizers are {_words(self.kinds)}, and this training's are {_words(kinds)}"
            )
        names = {name for name, _ in self._module.named_parameters()}
        for optimizer, saved in zip(optimizers, self._described, strict=True):
            for number, group in enumerate(saved["groups"]):
                if missing := {name for name in group if name is not None} - names:
                    raise Misfit(f"an optimizer of the checkpoint trains {min(missing)}, which this model lacks")
                there = optimizer.param_groups[number]["params"] if number < len(optimizer.param_groups) else []
                if None in group and len(there) != len(group):
                    raise Misfit(f"group {number} of {saved['kind']} trains weights that are not in the model")

    def has(self, number: int) -> bool:
        """
        Return True if the snapshot has not only the `state_dict` of optimizer `number` but also a description by
        `by_name`. `put` restores from that description.
        """
        return self._by_name[number] is not None

    def has_whole(self, number: int) -> bool:
        """
        Return True if the snapshot's description of optimizer `number` contains its complete state, including the state
        of optimizers that it wraps. `put` then restores everything, without `load_state_dict`.
        """
        saved = self._by_name[number]
        return saved is not None and all(node["whole"] for node in saved.values())

    def regroup(self, optimizer: Any, number: int, hyper: Sequence[State] | None) -> None:
        """
        Give `optimizer` the parameter groups of the snapshot's optimizer `number`. `hyper` contains the settings of
        each group, such as the learning rate. For an optimizer that torch cannot save completely (`is_odd`), the
        settings come from the snapshot's description instead.

        The list of groups, and the groups in it, are changed in place, because other code may refer to them.
        """
        groups = self._described[number]["groups"]
        if (saved := self._by_name[number]) is not None:
            hyper = saved[""]["groups"]
        assert hyper is not None
        _regroup(optimizer, groups, hyper, dict(self._module.named_parameters()))

    def put(self, optimizer: Any, number: int) -> None:
        """
        Restore optimizer `number` and the optimizers that it wraps, in place, from the snapshot's description. Do
        nothing if there is no description: a snapshot has one only for an optimizer that torch cannot save completely
        (`is_odd`).

        Call `Containers.have_again` first.
        """
        saved = self._by_name[number]
        if saved is None:
            return
        parameters = dict(self._module.named_parameters())
        for path, each in _all(optimizer):
            if path in saved:
                _put(each, saved[path], parameters)


def _is_kind(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer


def _words(kinds: Sequence[str]) -> str:
    return ", ".join(kind.rpartition(".")[2] for kind in kinds) or "none"


def _regroup(
    optimizer: Any,
    names: Sequence[Sequence[str | None]],
    hyper: Sequence[State],
    parameters: Mapping[str, nn.Parameter],
) -> None:
    groups = optimizer.param_groups
    for number, (known, values) in enumerate(zip(names, hyper, strict=True)):
        if number == len(groups):
            groups.append({"params": []})
        there = groups[number]["params"]
        params = [there[place] if name is None else parameters[name] for place, name in enumerate(known)]
        groups[number].update({key: value for key, value in values.items() if key != "params"})
        groups[number]["params"] = params
    del groups[len(names) :]


def _put(optimizer: Any, saved: State, parameters: Mapping[str, nn.Parameter]) -> None:
    _regroup(optimizer, saved["names"], saved["groups"], parameters)
    state = optimizer.state
    state.clear()
    for name, values in saved["state"].items():
        parameter = parameters[name]
        state[parameter] = mapped(values, partial(on_device, device=parameter.device))
    state.update(saved["more"])
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    for name, value in saved["own"].items():
        if not _fill(getattr(optimizer, name, None), value):
            setattr(optimizer, name, mapped(value, partial(on_device, device=device)))


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """
    Move a tensor to `device`, unless it has no dimensions: it is then a step count, which most optimizers leave on the
    CPU.
    """
    return tensor.to(device) if tensor.dim() else tensor


@torch.no_grad()
def _fill(held: Any, value: Any) -> bool:
    """
    Copy `value` into the existing tensors of `held`, because other objects may refer to them. Return False if shapes or
    types differ, or if there are no tensors.
    """
    if isinstance(value, Tensor):
        if not isinstance(held, Tensor) or (held.shape, held.dtype) != (value.shape, value.dtype):
            return False
        held.copy_(value)
        return True
    if isinstance(value, list) and isinstance(held, list) and len(value) == len(held):
        return bool(value) and all(map(_fill, held, value))
    return False


class Containers:
    """
    The parameter groups and states that an optimizer, and the optimizers that it wraps, had before `load_state_dict`.
    Loading replaces these objects by new ones. If another optimizer shares such an object, it would keep the old one.
    So after loading, `have_again` puts the original objects back.
    """

    def __init__(self, optimizer: Any) -> None:
        self._kept = [
            (
                each,
                each.param_groups,
                list(each.param_groups),
                each.state,
                [group["params"] for group in each.param_groups],
            )
            for _, each in _all(optimizer)
        ]

    def have_again(self) -> None:
        for optimizer, groups, each, state, params in self._kept:
            groups[:] = each
            for group, own in zip(each, params, strict=True):
                group["params"] = own
            for name, value in (("param_groups", groups), ("state", state)):
                if name in vars(optimizer):
                    vars(optimizer)[name] = value
