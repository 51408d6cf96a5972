"""
Saves and restores the order in which DDP sums gradients, so that the sums are bit-identical after a resume.

DDP puts gradients into buckets, and the ranks sum one bucket after another. With three or more ranks, the order in
which the ranks' values of a gradient are added depends on the gradient's position in its bucket. This order can change
the last bit of the sum.

DDP makes its final buckets after the first backward pass, in the order in which that pass produced the gradients. After
a resume, a new DDP has not run that pass and would use other buckets in its first step. So a snapshot contains the
order of the gradients, and a resumed DDP begins with the buckets for that order.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed, nn

from spotrun.training.private_names import missing

Order: TypeAlias = list[int]
"""
The numbers of a DDP's parameters, in the order in which the first backward pass produced their gradients. DDP numbers
only parameters that it trains.
"""

PRIVATE_NAMES = (
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_bucket_config",
    "_comm_hooks",
    "_ddp_init_helper",
)
"""
Private names of DDP in torch 2.13 that this module uses. `_ddp_init_helper` makes the buckets. This module calls it for
a DDP that already has buckets. That is safe, because torch does the same when it unpickles a DDP.
"""
DECIDES_FROM = 3
"""Minimum number of ranks for which the order matters: the sum of two values is the same in either order."""
_ASSIGNS = "_compute_bucket_assignment_by_size"


class NamesMoved(Exception):
    """Raised if the installed torch lacks a private function or attribute that spotrun needs."""


class DdpBuckets:
    """The buckets of each DDP that trains parameters of `module`, on `ranks` ranks."""

    def __init__(self, module: nn.Module, ranks: int) -> None:
        self._module = module
        self._matters = ranks >= DECIDES_FROM
        self._orders: list[Order] = []
        self._recorders: list[_Recorder] = []

    def begin(self, orders: Sequence[Order]) -> None:
        """
        Give each DDP the buckets for its saved order. Call this before the first step. `orders` has the saved orders,
        one for each DDP; it is empty for a fresh training. If a saved order has a different number of parameters than
        its DDP, the DDP keeps its default buckets.

        Raises:
            NamesMoved: this torch lacks one of PRIVATE_NAMES.
        """
        self._orders = []
        for number, wrapper in enumerate(_wrappers_of(self._module) if self._matters else ()):
            if moved := missing(wrapper, PRIVATE_NAMES):
                raise NamesMoved(f"torch {torch.__version__} no longer has {', '.join(moved)} in DDP")
            parameters, sparse = wrapper._build_params_for_reducer()
            known = list(orders[number]) if number < len(orders) else []
            self._orders.append(known)
            if sorted(known) == list(range(len(parameters))):
                _begin_with(wrapper, parameters, sparse, known)
            else:
                known.clear()
                self._recorders.append(_Recorder(parameters, known))

    def dump(self) -> list[Order]:
        """
        Return the order of the gradients of each DDP, as far as it is known. It is complete after one backward pass.
        """
        self._recorders = [each for each in self._recorders if not each.is_done()]
        return [list(order) for order in self._orders]


class _Recorder:
    """Records the order in which the parameters get their first gradients."""

    def __init__(self, parameters: Sequence[Tensor], order: Order) -> None:
        self._order = order
        self._handles: list[Any] = []
        for number, parameter in enumerate(parameters):
            register: Any = parameter.register_post_accumulate_grad_hook
            self._handles.append(register(self._hook(number)))

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        """
        Return a hook that records the gradient of parameter `number`. The hook's `__module__` is this module, so
        spotrun recognises that the hook does not belong to the script.
        """

        def came(_: Tensor) -> None:
            if number not in self._order:
                self._order.append(number)

        return came

    def is_done(self) -> bool:
        """
        Return whether the order is complete. If it is, remove all hooks. (This is not done in the hooks, because a hook
        that removes itself crashes the process.)
        """
        if len(self._order) < len(self._handles):
            return False
        for handle in self._handles:
            handle.remove()
        return True


def _wrappers_of(module: nn.Module) -> list[Any]:
    """
    Return the DDPs that train parameters of `module`, in the order of their first parameters. Leave out DDPs that do
    not rebuild their buckets after the first backward pass.
    """
    found = {first: each for first, each in ddps_of(module) if each.static_graph or not each.find_unused_parameters}
    return [found[first] for first in sorted(found)]


def ddps_of(module: nn.Module) -> Iterator[tuple[int, Any]]:
    """
    Yield the DDPs that train parameters of `module`, each with the number of its first parameter. All Python objects
    are searched, because each framework stores its DDPs in a different place.
    """
    place = {id(parameter): number for number, parameter in enumerate(module.parameters())}
    for each in gc.get_objects():
        if issubclass(type(each), nn.parallel.DistributedDataParallel):
            first = min((place[id(one)] for one in each.parameters() if id(one) in place), default=None)
            if first is not None:
                yield first, each


def _begin_with(wrapper: Any, parameters: list[Tensor], sparse: list[bool], order: Order) -> None:
    names, static = wrapper._build_debug_param_to_name_mapping(parameters), wrapper.static_graph
    wrapper.static_graph = False  # a new reducer is static only after an explicit setting
    with _made_by(order, _limits_of(wrapper._bucket_config)):
        wrapper._ddp_init_helper(parameters, sparse, names, static)
    register: Any = vars(distributed)["_register_comm_hook"]
    for hook, state in wrapper._comm_hooks:
        register(wrapper.reducer, state, hook)


def _limits_of(config: Any) -> list[int]:
    """Return the maximum bytes of each rebuilt bucket. The last limit also applies to all further buckets."""
    return list(config.per_bucket_bytes_caps) or [config.first_bucket_bytes_cap, config.bucket_bytes_cap]


@contextmanager
def _made_by(order: Order, limits: Sequence[int]) -> Iterator[None]:
    """
    Within this context, replace the function with which torch assigns parameters to DDP's buckets, so that it uses
    `order` and `limits`. DDP reverses the function's result, so the replacement returns the buckets in reverse.
    """
    original: Any = vars(distributed)[_ASSIGNS]

    def assign(parameters: Sequence[Tensor], _: Sequence[int], sparse: Sequence[bool]) -> Any:
        buckets, sizes = original([parameters[number] for number in order], limits, sparse, order)
        return list(reversed(buckets)), list(reversed(sizes))

    setattr(distributed, _ASSIGNS, assign)
    try:
        yield
    finally:
        setattr(distributed, _ASSIGNS, original)
