"""
What a checkpoint holds for the optimizers, which may still be on its way when training begins.

It is half of a checkpoint or more, and nothing needs it before the first step: forward and backward are computed
while it comes. Nobody can see an optimizer without it, as whoever looks waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from torch.optim import Optimizer

from spotrun.training.image_memory import Memory

State = dict[str, Any]


class OptimizerStates:
    """
    `views` has the state of each optimizer as torch saves it, of tensors that lie in `memory`. It is the last that is
    taken from there.
    """

    def __init__(self, views: Sequence[State], memory: Memory) -> None:
        self._views: Sequence[State] | None = views
        self._memory = memory
        self._waiting: list[tuple[Optimizer, list[State]]] = []

    def take(self) -> Sequence[State]:
        """Once they are there, and once only."""
        assert self._views is not None
        states: Sequence[State] = self._memory.keep(self._views)
        self._views = None
        self._memory.let_go()
        return states

    def load(self, optimizers: Sequence[Optimizer], load: Callable[[Sequence[State]], None]) -> None:
        """
        Give them to `optimizers` by `load`, a strategy's way to do that. Those of torch get their groups now, and the
        rest when it is looked at; of others it is not known what they would make of that.
        """
        assert self._views is not None
        if not all(map(_can_wait, optimizers)):
            load(self.take())
            return
        load([{**saved, "state": {}} for saved in self._views])
        self._waiting = [(optimizer, list(map(_copied, optimizer.param_groups))) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.state = _Awaited(optimizer, self.arrive)  # type: ignore[assignment]

    def arrive(self) -> None:
        """From here on the optimizers have all that they had."""
        if not self._waiting:
            return
        states = self.take()
        waiting, self._waiting = self._waiting, []
        for (optimizer, groups), saved in zip(waiting, states, strict=False):  # as Lightning does
            _complete(optimizer, groups, saved)


def _can_wait(optimizer: Optimizer) -> bool:
    """Its own class decides nothing about what is loaded, and no hook is called for that."""
    kind = type(optimizer)
    of_torch = kind.load_state_dict is Optimizer.load_state_dict and kind.__setstate__.__module__.startswith("torch.")
    hooks = optimizer._optimizer_load_state_dict_pre_hooks or optimizer._optimizer_load_state_dict_post_hooks
    return of_torch and type(optimizer.state) is defaultdict and not hooks


def _copied(group: State) -> State:
    return {**group, "params": list(group["params"])}


def _complete(optimizer: Optimizer, loaded_groups: list[State], saved: State) -> None:
    """
    What is saved is of the groups that were loaded. Those of now stay, down to the objects: somebody may hold one, or
    have set its rate, or have added another.
    """
    groups = optimizer.param_groups
    optimizer.state, optimizer.param_groups = defaultdict(dict), loaded_groups
    optimizer.load_state_dict(saved)
    optimizer.param_groups = groups


class _Awaited(MutableMapping[Any, Any]):
    """The state of an optimizer that has yet to come: `arrive` puts the true one in its place."""

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

    # Of a defaultdict these three differ from what the mixin makes of the above.

    def __contains__(self, key: object) -> bool:
        return key in self._true()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._true().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._true().pop(key, *default)

    def __reduce__(self) -> Any:
        """A copy is one of the true state."""
        return self._true().__reduce__()
