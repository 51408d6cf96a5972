"""What a trainer begins with: the newest whole checkpoint, from the store or from the memory that still holds it."""

from __future__ import annotations

from spotrun.agent.node import Node
from spotrun.agent.trainer import Newest, Trainer
from spotrun.checkpoint.restore import Found, Image, newest_readable, recognised
from spotrun.errors import CheckpointDamaged, StoreError, StoreUnavailable
from spotrun.run.events import Cause
from spotrun.trainer_link import Resume
from spotrun.units import Steps

SEED = 0
"""The seed of the data order. It is the same in every run, so a job trains alike on spot and on demand."""


class NothingToResumeFrom(Exception):
    """There are checkpoints and none can be read. Training never begins at zero in silence (promise I4)."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class Forwarding:
    """Tells a trainer of its checkpoint while that is fetched."""

    def __init__(self, node: Node, trainer: Trainer) -> None:
        self._node = node
        self._trainer = trainer

    def begins(self, image: Image, begin_bytes: int) -> None:
        self._trainer.begin_while_it_comes(told_to_trainer(self._node, image), image, begin_bytes)

    def has(self, size_bytes: int) -> None:
        self._trainer.arrived(size_bytes)


def newest_checkpoint(node: Node, ready: Image | None, trainer: Trainer) -> Found | None:
    """
    The newest checkpoint that is whole; None where there never was one. What is `ready` need not be fetched. What
    is fetched is handed on to the trainer at once.

    Raises:
        NothingToResumeFrom: with the reason.
    """
    state = node.recorder.state
    candidates = state.restore_candidates()
    if not candidates:
        if ready is not None:
            ready.close()
        if state.commits:
            node.note("starts from zero: no checkpoint of this run may be resumed from (NaN, or given up)")
        return None
    try:
        return newest_readable(node.store, candidates, ready, Forwarding(node, trainer))
    except CheckpointDamaged as error:
        raise NothingToResumeFrom(Cause.EXTERNAL, f"CheckpointDamaged: {error}") from error
    except StoreUnavailable as error:
        raise NothingToResumeFrom(Cause.INTERRUPTED, str(error)) from error  # another instance may be luckier
    except StoreError as error:
        raise NothingToResumeFrom(Cause.ACCESS, str(error)) from error


def still_here(node: Node, newest: Newest) -> Image | None:
    """That commit, if every byte of its arena is still as it was."""
    commit = node.recorder.state.commit(newest.commit)
    assert commit is not None
    return recognised(node.store, Image(commit, newest.fd, newest.start), newest.digest)


def told_to_trainer(node: Node, image: Image | None) -> Resume:
    every = node.spec.checkpoint.every
    return Resume(
        size_bytes=0 if image is None else image.size_bytes,
        start=0 if image is None else image.start,
        epoch=0 if image is None else image.commit.event.epoch,
        step=0 if image is None else image.commit.event.step,
        every_steps=every.count if isinstance(every, Steps) else None,
        seed=SEED,
        fresh=image is None,
    )
