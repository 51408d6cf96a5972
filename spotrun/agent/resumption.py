"""
Finds the checkpoints from which a trainer resumes: the newest intact checkpoint, in the store or in memory, and, if the
script calls fit() several times, the final checkpoint of each earlier call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from spotrun.agent import fits
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.decisions import StateChoice
from spotrun.agent.files.commit_files import CommitFiles, StoredFile
from spotrun.agent.files.restore import FilesOfCommit, restore_state
from spotrun.agent.fits import Start, told_to_trainer
from spotrun.agent.machine import process_groups
from spotrun.agent.processes.trainer import Newest, Trainer
from spotrun.checkpoint.restore import Image, NewestReadable, Recipient, newest_readable, recognised
from spotrun.errors import CheckpointDamaged, SpotrunError, StoreError, StoreUnavailable
from spotrun.run.events import Cause, ResumedFrom
from spotrun.run.state import Commit


class NothingToResumeFrom(Exception):
    """
    The run has one or more checkpoints, but none of them can be read. In this case, training must not start from the
    beginning (promise I4).
    """

    def __init__(self, cause: Cause, detail: str, *, is_damage: bool = False) -> None:
        """`is_damage` is True if a commit cannot be read because it is damaged. Another commit may still be intact."""
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.is_damage = is_damage


class Beginning(NamedTuple):
    """
    The checkpoint that a trainer starts from. `found` is its image, and `files` are its files, already fetched into a
    folder next to the work folder. Both are None if the training starts from scratch. `ends` are the images of the
    final checkpoints of all earlier calls of fit(), in order.
    """

    found: NewestReadable | None
    files: FilesOfCommit | None
    ends: tuple[Image, ...] = ()

    def event(self, attempt: int, incarnation: int) -> ResumedFrom:
        commit = None if self.found is None else self.found.image.commit
        return ResumedFrom(
            attempt=attempt,
            incarnation=incarnation,
            commit=None if commit is None else commit.number,
            epoch=0 if commit is None else commit.event.epoch,
            step=0 if commit is None else commit.event.step,
            skipped=() if self.found is None else self.found.skipped,
        )


class Forwarding:
    """Passes a checkpoint on to the trainer part by part, while the checkpoint is still being fetched."""

    def __init__(self, context: AgentContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer

    def begins(self, image: Image, begin_bytes: int) -> None:
        self._trainer.begin_while_it_comes(told_to_trainer(self._context, image), image, begin_bytes)

    def has(self, size_bytes: int) -> None:
        self._trainer.arrived(size_bytes)


def newest_checkpoint(
    context: AgentContext, ready: Image | None, trainer: Trainer, known: Mapping[str, StoredFile]
) -> Beginning:
    """
    Return the newest intact checkpoint with its files. If the run has no checkpoint to resume from, return a Beginning
    without a checkpoint.

    `ready` is an image that is already on this instance. It is used if it belongs to the returned checkpoint. Otherwise
    the right image is fetched, and its parts are passed on to `trainer` as they arrive. `known` are files of the work
    folder whose content is known. If the checkpoint has the same content, they are not fetched.

    Raises:
        NothingToResumeFrom: the run has checkpoints, but none of them can be read.
    """
    state = context.recorder.state
    candidates = state.restore_candidates()
    if not candidates:
        if ready is not None:
            ready.close()
        if state.commits:
            context.note(
                "training starts from the beginning: no checkpoint of this run can be used, because each holds "
                "NaN or Inf, or was discarded"
            )
        return Beginning(None, None)
    with reasons():
        return _newest_with_files(context, candidates, ready, Forwarding(context, trainer), known)


@contextlib.contextmanager
def reasons() -> Iterator[None]:
    """Convert any error in the `with` block into a NothingToResumeFrom with a cause. The block reads a checkpoint."""
    try:
        yield
    except CheckpointDamaged as error:
        raise NothingToResumeFrom(Cause.EXTERNAL, f"CheckpointDamaged: {error}", is_damage=True) from error
    except StoreUnavailable as error:
        raise NothingToResumeFrom(Cause.INTERRUPTED, str(error)) from error  # another instance may succeed
    except StoreError as error:
        raise NothingToResumeFrom(Cause.ACCESS, str(error)) from error
    except SpotrunError as error:
        raise NothingToResumeFrom(Cause.EXTERNAL, str(error)) from error


class StateFound(NamedTuple):
    """
    The checkpoint whose state is now in the work folder, and the newer checkpoints that were skipped because they are
    damaged or were tried before. If `in_place` is True, nothing was restored: the folder contains exactly the files
    that the previous command left.
    """

    commit: Commit
    skipped: tuple[int, ...] = ()
    in_place: bool = False

    def event(self, attempt: int, incarnation: int) -> ResumedFrom:
        return ResumedFrom(
            attempt=attempt,
            incarnation=incarnation,
            commit=self.commit.number,
            epoch=0,
            step=0,
            skipped=self.skipped,
            in_place=self.in_place,
        )


def put_state_back(context: AgentContext, attempt: int, files: CommitFiles, choice: StateChoice) -> StateFound:
    """
    Restore a command's state into the work folder from the newest intact checkpoint. If `choice` is ONE_BEFORE, restore
    it from the next older intact checkpoint. The run must have at least one checkpoint.

    Raises:
        NothingToResumeFrom: no checkpoint can be restored.
    """
    process_groups.end_left_over(context.assignment.trainer_mark, context.assignment.instance_id)
    candidates = [commit for commit in context.recorder.state.restore_candidates() if not commit.event.has_image]
    skipped: list[int] = []
    if choice is StateChoice.AS_IT_STANDS:
        files.begin(attempt, files.known)
        return StateFound(candidates[0], in_place=True)
    if choice is StateChoice.ONE_BEFORE and len(candidates) > 1:
        skipped.append(candidates.pop(0).number)
    with reasons():
        while True:
            commit = candidates.pop(0)
            try:
                files.begin(attempt, *restore_state(context, commit, files.known, attempt))
                return StateFound(commit, tuple(skipped))
            except CheckpointDamaged as damage:
                if not candidates:
                    raise
                skipped.append(commit.number)
                context.note(f"the state saved at {commit.event.taken_at} cannot be restored: {damage.message}")


def _newest_with_files(
    context: AgentContext,
    candidates: Sequence[Commit],
    ready: Image | None,
    recipient: Recipient,
    known: Mapping[str, StoredFile],
) -> Beginning:
    """Return the newest checkpoint whose image and files are both intact. Fetch image and files at the same time."""
    skipped: list[int] = []
    with ThreadPoolExecutor(1, "files") as beside:
        while True:
            files = FilesOfCommit(context, candidates[0], known)
            coming = beside.submit(files.fetch)
            first = candidates[0].event.fit == 1  # a later fit() would first start from the image of an earlier one
            found = newest_readable(context.store, candidates, ready, recipient if first else None)
            ready, commit = None, found.image.commit
            try:
                if found.skipped:
                    files = FilesOfCommit(context, commit, known)
                    # If an earlier commit was damaged, the fetch of its files may still be writing to the same folder.
                    # But the pool has only one thread, so this fetch begins only when the earlier one has ended.
                    coming = beside.submit(files.fetch)
                coming.result()
                ends = fits.ends_before(context, commit)
                return Beginning(NewestReadable(found.image, (*skipped, *found.skipped)), files, ends)
            except CheckpointDamaged as damage:
                found.image.close()
                skipped += [*found.skipped, commit.number]
                candidates = [each for each in candidates if each.number < commit.number]
                if not candidates:
                    raise
                context.note(f"cannot resume from the checkpoint of step {commit.event.step}: {damage.message}")
            except BaseException:
                found.image.close()
                raise


def still_here(context: AgentContext, newest: Newest) -> Image | None:
    """
    Return the image of the commit `newest` from its arena, if every byte of the arena is unchanged; otherwise None.
    """
    commit = context.recorder.state.commit(newest.commit)
    assert commit is not None
    return recognised(context.store, Image(commit, newest.fd, newest.start), newest.digest)


def starts(context: AgentContext, beginning: Beginning, files: CommitFiles) -> list[Start]:
    """
    Return the starts of the script's fit() calls, in order. The last one is the start of the call that is resumed.
    """
    if beginning.found is None:
        return [Start(told_to_trainer(context, None))]
    image = beginning.found.image
    put = None if beginning.files is None else beginning.files.putter(files)
    ends = [fits.start_at_end(context, end, files) for end in beginning.ends]
    return [*ends, Start(told_to_trainer(context, image), image, put)]
