"""
Takes requested snapshots before and during a validation, because a validation may take too long to wait for its end.

A snapshot that is requested before a validation is taken before the validation starts. A snapshot that is requested
during a validation contains the state from before the validation; a copy of that state is kept in memory. A training
that resumes from either snapshot runs the whole validation again. With several ranks, no snapshot is taken during a
validation.

With one rank, the training's last validation is an exception: no snapshot is taken before it, because the snapshot at
the end of training will contain the same step. During that validation, a requested snapshot is taken only if the
validation takes longer than LAST_IS_LONG_S.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spotrun.training import tensors
from spotrun.training.framework import Framework
from spotrun.training.place import Boundary
from spotrun.training.ranks import Ranks
from spotrun.training.session import Agent, Session
from spotrun.training.snapshots import KEY, Dump, Snapshots

LAST_IS_LONG_S = 10.0
"""Maximum system time in seconds for which a requested snapshot waits for the end of the last validation."""

KEPT_MAX_BYTES = 256 << 20
"""
Maximum bytes of the state outside the model that are kept in memory during a validation. If this state is larger, it is
not kept, and no snapshot is taken during the validation.
"""


@dataclass(frozen=True)
class _Before:
    """
    The state before a validation. The model's weights are not copied, because a validation should not change them. In
    case it does, `norms` contains the norm of each weight before the validation.
    """

    place: Boundary
    dump: Dump
    norms: list[Tensor]

    def still_holds(self, module: nn.Module) -> bool:
        """
        Return True if the weights are the same as before the validation. A callback that averages weights may have
        replaced them with the averages during the validation.
        """
        now = _norms(module)
        return len(now) == len(self.norms) and all(map(torch.equal, self.norms, now))


def _norms(module: nn.Module) -> list[Tensor]:
    return tensors.norms([*module.parameters(), *module.buffers()])


class DueValidation:
    """Handles a validation that is due or running."""

    def __init__(self, framework: Framework, agent: Agent, ranks: Ranks, snapshots: Snapshots) -> None:
        self._framework = framework
        self._agent = agent
        self._ranks = ranks
        self._snapshots = snapshots
        self._before: _Before | None = None
        self._patient_until_s = 0.0

    def comes(self, place: Boundary, *, last: bool) -> None:
        """
        Prepare for a validation that is about to start. `last` says that nothing is trained after this validation.
        """
        # A snapshot during this validation saves the state from before it, so a copy of that state is kept. With
        # several ranks, or without an agent, no snapshot is taken during a validation, so no copy is needed.
        alone = self._ranks.size == 1 and isinstance(self._agent, Session)
        self._patient_until_s = time.monotonic() + LAST_IS_LONG_S if last and alone else 0.0
        if not self._is_patient:
            self._snapshots.take_if_wanted(place)
        if alone:
            self._before = self._keep(place)

    @property
    def _is_patient(self) -> bool:
        return time.monotonic() < self._patient_until_s and not self._agent.drain_wanted.is_set()

    def _keep(self, place: Boundary) -> _Before | None:
        dump = self._snapshots.dump(place)
        if sum(tensor.nbytes for tensor in tensors.tensors_of(dump.state[KEY])) > KEPT_MAX_BYTES:
            dump.close()
            return None
        # Metrics are copied, because the validation changes them in place.
        kept = dump.state | {KEY: tensors.owned(dump.state[KEY])}
        return _Before(place, Dump(kept, dump.files), _norms(self._framework.module))

    def batch_ends(self) -> None:
        before = self._before
        if before is None or self._is_patient or not self._snapshots.wanted() or not self._agent.any_room():
            return
        if before.still_holds(self._framework.module):
            self._snapshots.take_if_wanted(before.place, before.dump.again())

    def is_over(self) -> None:
        if self._before is not None:
            self._before.dump.close()
        self._before = None
