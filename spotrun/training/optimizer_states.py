"""
What a checkpoint holds for the optimizers, which may arrive after training has begun.

It is half of a checkpoint or more, and nothing needs it before the first step: the first forward and backward are
computed while it arrives. Nobody sees an optimizer without its state, as looking at the state waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from torch.optim import Optimizer

from spotrun.training.image_memory import Memory
from spotrun.training.revival import revived

State = dict[str, Any]


class OptimizerStates:
    """
    `views` has the state of each optimizer as torch saves it. Its tensors lie in `memory`, and are the last that are
    taken from there.
    """

    def __init__(self, views: Sequence[State], memory: Memory) -> None:
        self._views: Sequence[State] | None = views
        self._memory = memory
        self._waiting: list[tuple[Optimizer, list[State]]] = []

    def take(self) -> Sequence[State]:
        """The states, once they have arrived. May be called once. See `of_living` for what is missing in them."""
        assert self._views is not None
        states: Sequence[State] = self._memory.keep(self._views)
        self._views = None
        self._memory.let_go()
        return states

    def load(self, optimizers: Sequence[Optimizer], load: Callable[[Sequence[State]], None]) -> None:
        """
        Give the states to `optimizers` by `load`, the framework's way to do that. Optimizers of torch get their groups
        now and the rest when something looks at it. Others get everything now, as nobody knows what they do with less.
        """
        assert self._views is not None
        if not all(map(_can_wait, optimizers)):
            load(of_living(optimizers, self.take()))
            return
        load(of_living(optimizers, [{**saved, "state": {}} for saved in self._views]))
        self._waiting = [(optimizer, list(map(_copied, optimizer.param_groups))) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.state = _Awaited(optimizer, self.arrive)  # type: ignore[assignment]

    def arrive(self) -> None:
        """From here on the optimizers have their whole state."""
        if not self._waiting:
            return
        states = self.take()
        waiting, self._waiting = self._waiting, []
        for (optimizer, groups), saved in zip(waiting, states, strict=False):  # as Lightning pairs them
            _complete(optimizer, groups, saved)


def of_living(optimizers: Sequence[Optimizer], states: Sequence[State]) -> list[State]:
    """`states` with the functions that the script has put into the groups of its optimizers."""
    # A copy of each group, as the one that a checkpoint's is filled with must not be the optimizer's own.
    living = [{"param_groups": list(map(dict, optimizer.param_groups))} for optimizer in optimizers]
    return [revived(saved, standing) for saved, standing in zip(states, living, strict=False)]


def _can_wait(optimizer: Optimizer) -> bool:
    """Neither its own class nor a hook has a say in what is loaded."""
    kind = type(optimizer)
    of_torch = kind.load_state_dict is Optimizer.load_state_dict and kind.__setstate__.__module__.startswith("torch.")
    hooks = optimizer._optimizer_load_state_dict_pre_hooks or optimizer._optimizer_load_state_dict_post_hooks
    return of_torch and type(optimizer.state) is defaultdict and not hooks


def _copied(group: State) -> State:
    return {**group, "params": list(group["params"])}


def _complete(optimizer: Optimizer, loaded_groups: list[State], saved: State) -> None:
    """
    `saved` belongs to the groups that were loaded. The present groups stay the same objects: the script may hold one,
    may have set its rate, or may have added another.
    """
    groups = optimizer.param_groups
    optimizer.state, optimizer.param_groups = defaultdict(dict), loaded_groups
    (complete,) = of_living([optimizer], [saved])
    optimizer.load_state_dict(complete)
    optimizer.param_groups = groups


class _Awaited(MutableMapping[Any, Any]):
    """Stands for the state of an optimizer until it arrives: `arrive` puts the true one in its place."""

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

    # A defaultdict does these three in another way than the mixin, which would use the above.

    def __contains__(self, key: object) -> bool:
        return key in self._true()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._true().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._true().pop(key, *default)

    def __reduce__(self) -> Any:
        """A copy is a copy of the true state."""
        return self._true().__reduce__()
