"""
Saves and restores a module's true weights: its parameters and persistent buffers, by name.

A framework's checkpoint contains the result of `state_dict()`. This is not enough, because the script may override that
method: the result may be averaged weights, a pruned model, or only a model's adapters. So a snapshot has a second entry
(`BESIDE`) with the weights that are missing from that result.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

State = dict[str, Any]

BESIDE = "spotrun_weights"
"""Entry of a snapshot with the model's weights that the script's `state_dict()` does not return."""


class Misfit(Exception):
    """
    Raised if a module's structure differs from the saved structure. The message says where, and `hint` says what to do.
    """

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class Weights(NamedTuple):
    """Saved weights, and descriptions of all parts of their module."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    modules: Mapping[str, str]
    """The kind of each part, by the part's name. A kind is a class with its constructor's arguments."""
    frozen: frozenset[str] | None = None
    """The names of the parameters that did not require gradients. None if an older version saved the snapshot."""
    shared: Mapping[str, str] = MappingProxyType({})
    """
    A part or weight can have several names, as tied layers do. It is listed under the first name only. This maps each
    further name to the first one.
    """

    @property
    def by_name(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}


def beside(module: nn.Module, shown: Any, base: Mapping[str, str]) -> State:
    """
    Return the weights of `module` that `shown` lacks, and descriptions of all parts of `module`. `shown` is the result
    of the script's `state_dict()`. `base` has the digests of the weights that the script loads again in each process
    (see `check_base`). For these weights, return only the digests. Tensors are not copied.
    """
    named = _Named(module)
    parameters, buffers = named.parameters, named.persistent
    view = shown if isinstance(shown, Mapping) else {}
    return {
        "parameters": list(parameters),
        "buffers": list(buffers),
        "modules": {name: _kind_of(part) for name, part in named.parts.items()},
        "shared": named.shared,
        "frozen": [name for name, parameter in parameters.items() if not parameter.requires_grad],
        "own": {
            name: t
            for name, t in (parameters | buffers).items()
            if name not in base and not _is_same(t, view.get(name))
        },
        "base": dict(base),
    }


def saved(shown: Any, beside: State, module: nn.Module) -> Weights:
    """
    Return all weights of a snapshot. Some are in `shown`, the result of the script's `state_dict()`, and the others in
    the entry BESIDE. Neither contains the weights of the base (see `check_base`), so these are taken from `module`.
    """
    living = dict(module.named_parameters())
    own = {name: living[name] for name in beside.get("base", ()) if name in living} | beside["own"]
    parameters, buffers = (
        {name: own[name] if name in own else shown[name] for name in beside[kind]} for kind in ("parameters", "buffers")
    )
    frozen = frozenset(beside["frozen"]) if "frozen" in beside else None
    return Weights(parameters, buffers, beside["modules"], frozen, beside.get("shared", {}))


def put_back(module: nn.Module, weights: Weights) -> None:
    """
    Load the weights into `module`. If a saved weight and the weight in `module` have the same shape and type, the value
    is copied into the existing memory. Parameters and buffers that a part of `module` lacks are added, but missing
    parts are not.

    Raises:
        Misfit: the parts of `module` are not those of the snapshot. The module's values are then unchanged, but
            `prune_again` and `share_again` may have changed its structure.
    """
    prune_again(module, weights)
    share_again(module, weights)
    _check(module, weights)
    with torch.no_grad():
        for name, value in weights.parameters.items():
            _put_parameter(*_owner(module, name), value, _device(module))
    for name, value in weights.buffers.items():
        put_buffer(module, name, value)
    if [name for name, _ in module.named_parameters()] != list(weights.parameters):
        _put_in_order(module, weights.parameters)
    if weights.frozen is not None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in weights.frozen)


def check_base(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """
    Compare the digests of the base's weights. The base is the untrained part of a model that is trained through
    adapters. Checkpoints contain only digests of its weights, so a script must load the same base in every process.

    Raises:
        Misfit: weights of the base have changed.
    """
    if other := [name for name, digest in before.items() if now.get(name) != digest]:
        raise Misfit(
            f"the model's base differs from the checkpoint's base: {named(other)}",
            hint="load the base weights by a fixed revision; set a seed before the script makes any other base weights",
        )


def fits(module: nn.Module, weights: Weights) -> bool:
    """
    Prune and tie the parameters of `module` as in the snapshot. Return whether `put_back` can then load all of
    `weights` into it.
    """
    try:
        prune_again(module, weights)
        share_again(module, weights)
        _check(module, weights)
    except Misfit:
        return False
    return True


def fitting(module: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """Return those of `weights` for which the module now has a parameter or buffer of the same name and shape."""
    now = dict(module.named_parameters()) | dict(_persistent_buffers(module))
    return {name: value for name, value in weights.by_name.items() if name in now and now[name].shape == value.shape}


def prune_again(module: nn.Module, weights: Weights) -> None:
    """
    Prune the parameters that torch.nn.utils.prune had pruned at the time of the snapshot. Pruning replaces a parameter
    by two tensors, `…_orig` and `…_mask`.
    """
    parts = dict(module.named_modules())
    for name in weights.parameters:
        whole = name.removesuffix("_orig")
        mask = weights.buffers.get(f"{whole}_mask")
        prefix, _, leaf = whole.rpartition(".")
        part = parts.get(prefix)
        if whole != name and mask is not None and part is not None and part._parameters.get(leaf) is not None:
            prune.custom_from_mask(part, leaf, mask.to(_device(module), copy=True))  # type: ignore[no-untyped-call]


def share_again(module: nn.Module, weights: Weights) -> None:
    """Tie the parts and weights that are tied in the snapshot, and untie all others."""
    parts = dict(module.named_modules())
    for other, name in weights.shared.items():
        (prefix, _, leaf), (of, _, own) = other.rpartition("."), name.rpartition(".")
        if prefix not in parts or of not in parts:
            continue  # the part is missing; `_check` reports that
        for kind in ("_modules", "_parameters", "_buffers"):
            thing = getattr(parts[of], kind).get(own)
            if thing is not None and getattr(parts[prefix], kind).get(leaf) is not thing:
                parts[prefix].__dict__.pop(leaf, None)
                getattr(parts[prefix], kind)[leaf] = thing
    for other in _Named(module).shared.keys() & weights.parameters.keys():
        owner, leaf = _owner(module, other)
        tied = owner._parameters[leaf]
        assert tied is not None
        owner._parameters[leaf] = nn.Parameter(tied.detach().clone(), tied.requires_grad)


def copy_missing(module: nn.Module, weights: Weights) -> None:
    """
    Add the parts that are missing from `module`, such as a teacher or a model of averaged weights. Each one is copied
    from another part with the same structure. If there is no such part, nothing is added. `put_back` later loads the
    weights of the added parts.
    """
    for name, like in copies(weights.modules, kinds_of(module)).items():
        prefix, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(prefix), leaf, copy.deepcopy(module.get_submodule(like)))


def copies(modules: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """
    Find a module to copy for each missing module. A module is missing if it is in `modules` but not in `now`. The
    result maps the name of each missing module to the name of a module in `now` with the same structure. A missing
    module is left out if no module has its structure, or if it is copied as a part of another missing module.
    """
    there, builds = _builds(now), _builds(modules)
    found: dict[str, str] = {}
    for name in modules:
        prefix = name.rpartition(".")[0]
        if not name or name in there or (prefix and prefix not in there):
            continue
        if like := next((other for other, known in there.items() if known == builds[name]), None):
            found[name] = like
            there |= {f"{name}{rest}": builds[f"{name}{rest}"] for rest in builds[name]}
    return found


def without_copies(modules: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """
    Return the names of the parts that are missing in `now` and cannot be copied, because no other part has the same
    structure. If such a part contains other parts, only the outer part is listed.
    """
    missing = [name for name in modules if name not in now]
    made = copies(modules, now) if missing else {}
    missing = [name for name in missing if not any(_is_in(name, each) for each in made)]
    return [name for name in missing if name.rpartition(".")[0] not in missing]


def kinds_of(module: nn.Module) -> dict[str, str]:
    """
    Return the kind of each part, keyed by name: its class and, for torch's own classes, the constructor's arguments.
    """
    return {name: _kind_of(part) for name, part in module.named_modules()}


def class_of(kind: str) -> str:
    """
    Return the class in `kind`, without the constructor's arguments. The arguments are not compared, because a script
    may change some of them, such as a dropout rate, after it has created the part.
    """
    return kind.partition("(")[0]


def _title_of(kind: str) -> str:
    """
    Return the class name in `kind`, without the name of the class's module, because programs may import the same script
    under different names.
    """
    return class_of(kind).rpartition(".")[2]


def _builds(kinds: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, kind in kinds.items():
        whole = name
        while whole:
            found.setdefault(whole, {})[name.removeprefix(whole)] = kind
            whole = whole.rpartition(".")[0]
    return found


def build_of(part: nn.Module) -> dict[str, str]:
    """
    Return the structure of `part`: the kinds of all parts in it, keyed by name. Weights that fit one module also fit
    every other module with the same structure.
    """
    return {f".{name}" if name else "": _kind_of(each) for name, each in part.named_modules()}


def _is_in(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")


def _kind_of(part: nn.Module) -> str:
    """
    Return the class of `part` and, if it is one of torch's own, the constructor's arguments. The arguments are needed
    because some of them, such as a convolution's stride, cannot be seen from the weights' shapes.
    """
    kind = type(part)
    made = part.extra_repr() if kind.__module__.startswith("torch.nn.") else ""
    return f"{kind.__module__}.{kind.__qualname__}({made})"


def _check(module: nn.Module, weights: Weights) -> None:
    parts = {name: _title_of(kind) for name, kind in kinds_of(module).items()}
    if missing := sorted(weights.modules.keys() - parts.keys()):
        raise Misfit(f"the checkpoint's model has {named(missing)}, which this model lacks when training continues")
    now = dict(module.named_parameters()) | dict(_persistent_buffers(module))
    if new := sorted(now.keys() - weights.by_name.keys()) or sorted(parts.keys() - weights.modules.keys()):
        raise Misfit(f"this model has {named(new)} when training continues, which the checkpoint's model lacks")
    if other := sorted(name for name, kind in weights.modules.items() if _title_of(kind) != parts[name]):
        raise Misfit(f"when training continues, {named(other)} is a different module than in the checkpoint's model")


def named(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class _Named:
    """
    All parts and weights of a module, in torch's order. Each is listed once, under its first name. `shared` has all
    other names.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parts: dict[str, nn.Module] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.persistent: dict[str, Tensor] = {}
        self.shared: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._visit("", module)
        for name, part in self.parts.items():
            before = f"{name}." if name else ""
            self._weights(before, part._parameters, self.parameters)
            hidden = part._non_persistent_buffers_set
            self._weights(before, {n: b for n, b in part._buffers.items() if n not in hidden}, self.persistent)

    def _visit(self, name: str, part: nn.Module) -> None:
        if (first := self._names.setdefault(id(part), name)) != name:
            self.shared[name] = first
            return
        self.parts[name] = part
        for leaf, inner in part._modules.items():
            if inner is not None:
                self._visit(f"{name}.{leaf}" if name else leaf, inner)

    def _weights(self, before: str, held: Mapping[str, Any], found: dict[str, Any]) -> None:
        for leaf, tensor in held.items():
            if tensor is not None:
                name = before + leaf
                if (first := self._names.setdefault(id(tensor), name)) == name:
                    found[name] = tensor
                else:
                    self.shared[name] = first


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    hidden = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    return ((name, buffer) for name, buffer in module.named_buffers() if name not in hidden)


def _is_same(weight: Tensor, other: Any) -> bool:
    """Return whether both tensors use the same memory and have the same shape and layout."""
    if not isinstance(other, Tensor) or (weight.shape, weight.dtype) != (other.shape, other.dtype):
        return False
    return weight is other or (weight.stride() == other.stride() and weight.data_ptr() == other.data_ptr())


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    prefix, _, leaf = name.rpartition(".")
    return module.get_submodule(prefix), leaf


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _put_parameter(owner: nn.Module, leaf: str, value: Tensor, device: torch.device) -> None:
    now = owner._parameters.get(leaf)
    if now is value:  # a weight of the base
        return
    if now is None:
        setattr(owner, leaf, nn.Parameter(value.to(device, copy=True), requires_grad=value.is_floating_point()))
    elif (now.shape, now.dtype) == (value.shape, value.dtype):
        now.copy_(value)
    else:
        now.data = value.to(now.device, copy=True)  # an optimizer may hold this parameter object


def _put_in_order(module: nn.Module, names: Iterable[str]) -> None:
    """
    Restore the order of the parameters within each part. The value of a sum over all parameters depends on this order.
    """
    for name in names:
        owner, leaf = _owner(module, name)
        owner._parameters[leaf] = owner._parameters.pop(leaf)


@torch.no_grad()
def put_buffer(module: nn.Module, name: str, value: Tensor, *, persistent: bool = True) -> None:
    """
    Copy `value` into the existing buffer if shape and type are equal; otherwise create a new buffer. `persistent` is
    False for a buffer that `state_dict()` leaves out.
    """
    owner, leaf = _owner(module, name)
    now = owner._buffers.get(leaf)
    if now is not None and (now.shape, now.dtype) == (value.shape, value.dtype):
        now.copy_(value)
        return
    if leaf not in owner._buffers:
        vars(owner).pop(leaf, None)
        owner.register_buffer(leaf, None, persistent=persistent)
    owner._buffers[leaf] = value.to(_device(module) if now is None else now.device, copy=True)
