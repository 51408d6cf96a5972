"""
Loads the optimizer states of a checkpoint, which may arrive after training has begun.

These states make up at least half of a checkpoint, and nothing needs them before the first optimizer step. So the first
forward and backward pass run while the states arrive. Any code that reads an optimizer's state waits until the state
has arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from spotrun.training.image_memory import Memory
from spotrun.training.optimizer_parts import Containers, Parts, is_odd, kind_of, on_device, saves_itself
from spotrun.training.revival import revived
from spotrun.training.tensors import mapped, owned
from spotrun.training.weights import Misfit

State = dict[str, Any]


class OptimizerStates:
    """
    The states of all optimizers, which may still be arriving from the agent.

    `views` has the state of each optimizer, in the form of the optimizer's `state_dict`. The tensors of these states
    are in `memory`, which `take` releases. `parts` describes the optimizers; it is None if an older version of spotrun
    saved the snapshot.
    """

    def __init__(self, views: Sequence[State], memory: Memory, parts: Parts | None = None) -> None:
        self._views = views
        self._memory = memory
        self._parts = parts
        self._taken: Sequence[State] | None = None
        self._loaded: list[Optimizer] = []
        self._waiting: list[tuple[Optimizer, list[State], int]] = []

    def take(self) -> Sequence[State]:
        """
        Wait until the states have arrived, and return them. Snapshots contain no functions, so the result lacks those
        in the optimizers' parameter groups. `of_living` adds them.
        """
        if self._taken is None:
            self._taken = self._views = self._memory.keep(self._views)
            self._memory.let_go()
        return self._taken

    def load(self, optimizers: Sequence[Optimizer]) -> None:
        """
        Load the states of those `optimizers` whose classes are torch's. Their parameter groups are loaded immediately,
        but each optimizer's state only when code first reads it.

        All other optimizers are loaded in `put_back`, because the code of their classes may need the whole state at
        once. If the optimizers do not yet have the classes and parameters of the snapshot, none of them is loaded here.
        """
        for optimizer, _, _ in self._waiting:
            optimizer.state = defaultdict(dict)  # another optimizer takes its place
        self._waiting, self._loaded = [], []
        if self._parts is not None and not self._parts.fits(optimizers):
            return
        self._loaded = list(optimizers)
        for number, optimizer in enumerate(optimizers[: len(self._views)]):
            self._regroup(optimizer, number)
            if can_wait(optimizer):
                (groups,) = of_living([optimizer], [{**self._views[number], "state": {}}])
                _load(optimizer, groups)
                self._waiting.append((optimizer, list(map(_copied, optimizer.param_groups)), number))
                optimizer.state = _Awaited(optimizer, self.arrive)  # type: ignore[assignment]

    def _regroup(self, optimizer: Optimizer, number: int) -> None:
        if self._parts is not None:
            (view,) = of_living([optimizer], [{**self._views[number], "state": {}}])
            self._parts.regroup(optimizer, number, owned(view.get("param_groups")))

    def put_back(self, optimizers: Sequence[Optimizer]) -> None:
        """
        Restore the optimizers after the script's start hooks have run. This undoes what the hooks may have done: change
        or add groups, or replace an optimizer.

        Raises:
            Misfit: these are not the optimizers of the snapshot, or one of them cannot load its state.
        """
        if self._parts is not None:
            self._parts.check(optimizers)
        if not _are(self._loaded, optimizers):
            self.load(optimizers)
        waiting = [optimizer for optimizer, _, _ in self._waiting]
        for number, optimizer in enumerate(optimizers[: len(self._views)]):
            self._regroup(optimizer, number)
            if not can_wait(optimizer) and not any(optimizer is each for each in waiting):
                self._load_whole(optimizer, number)

    def _load_whole(self, optimizer: Optimizer, number: int) -> None:
        containers = Containers(optimizer)
        (state,) = of_living([optimizer], self.take()[number : number + 1])
        odd = self._parts is not None and self._parts.has(number)
        if self._parts is None or not self._parts.has_whole(number):
            try:
                _load(optimizer, state)
            except Exception as error:
                raise Misfit(f"{kind_of(optimizer)} cannot load its state: {type(error).__name__}: {error}") from error
            _to_devices(optimizer)
        if odd and self._parts is not None:
            containers.have_again()
            self._parts.put(optimizer, number)

    def arrive(self) -> None:
        """Wait for the states. Then load the state of each optimizer that still lacks it."""
        if not self._waiting:
            return
        states = self.take()
        waiting, self._waiting = self._waiting, []
        for optimizer, groups, number in waiting:
            _complete(optimizer, groups, states[number])


def _load(optimizer: Any, state: State) -> None:
    """
    Load a state, and keep the order of the keys in each parameter group. torch would move the key `params` to the end,
    and if the script then pickled the optimizer, the result would differ from that of an uninterrupted training.
    """
    orders = list(map(list, optimizer.param_groups))
    optimizer.load_state_dict(state)
    for group, order in zip(optimizer.param_groups, orders, strict=False):
        ordered = {name: group[name] for name in order if name in group} | group
        group.clear()
        group.update(ordered)


def _are(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _to_devices(optimizer: Any) -> None:
    """
    Move tensors to their parameters' devices, because an optimizer's `load_state_dict` may leave tensors on the CPU.
    """
    for parameter, values in optimizer.state.items():
        if isinstance(parameter, Tensor):
            optimizer.state[parameter] = mapped(values, partial(on_device, device=parameter.device))


def of_living(optimizers: Sequence[Optimizer], states: Sequence[State]) -> list[State]:
    """
    Return `states`, with the functions from the parameter groups of the script's optimizers added. Snapshots do not
    contain functions.
    """
    # `revived` changes its arguments, so it is called with copies of the groups.
    living = [{"param_groups": list(map(dict, optimizer.param_groups))} for optimizer in optimizers]
    return [revived(saved, standing) for saved, standing in zip(states, living, strict=False)]


def can_wait(optimizer: Any) -> bool:
    """
    Return True if `optimizer` can load its state late, because neither its class nor a hook changes how states are
    loaded.
    """
    kind = type(optimizer)
    if is_odd(optimizer) or saves_itself(optimizer) or not kind.__setstate__.__module__.startswith("torch."):
        return False
    hooks = optimizer._optimizer_load_state_dict_pre_hooks or optimizer._optimizer_load_state_dict_post_hooks
    return type(vars(optimizer).get("state")) in (defaultdict, _Awaited) and not hooks


def _copied(group: State) -> State:
    return {**group, "params": list(group["params"])}


def _complete(optimizer: Optimizer, loaded_groups: list[State], saved: State) -> None:
    """
    Load the whole state `saved` into an optimizer. So far, only its parameter groups were loaded.

    The state is loaded together with `loaded_groups`, the groups as they were loaded. The script may have changed a
    learning rate or added a group since then, so the optimizer's current groups are put back afterwards.
    """
    groups = optimizer.param_groups
    optimizer.state, optimizer.param_groups = defaultdict(dict), loaded_groups
    (complete,) = of_living([optimizer], [saved])
    optimizer.load_state_dict(complete)
    optimizer.param_groups = groups


class _Awaited(MutableMapping[Any, Any]):
    """
    A stand-in for an optimizer's state. Any use of it calls `arrive`, which waits and puts the true state in its place.
    """

    def __init__(self, optimizer: Optimizer, arrive: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._arrive = arrive

    def _true(self) -> MutableMapping[Any, Any]:
        self._arrive()
        state: MutableMapping[Any, Any] = self._optimizer.state
        return state

    def __getitem__(self, key: Any) -> Any:
        return self._true()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._true()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._true()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._true())

    def __len__(self) -> int:
        return len(self._true())

    # MutableMapping would implement the following three methods by calling `__getitem__`. If the true state is a
    # defaultdict, that call would add each missing key. So these methods call the same method of the true state, which
    # adds no key.

    def __contains__(self, key: object) -> bool:
        return key in self._true()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._true().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._true().pop(key, *default)

    def __reduce__(self) -> Any:
        """Copy or pickle the true state instead of this object."""
        return self._true().__reduce__()
