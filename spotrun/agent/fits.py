"""
Determines how each fit() starts if a script calls fit() several times.

A new trainer repeats the script from the beginning. A fit() that an earlier trainer completed starts from its own final
checkpoint, and trains no step. The interrupted fit() resumes from the newest checkpoint. Each later fit() starts from
scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.restore import FilesOfCommit
from spotrun.checkpoint.restore import Image, fetch
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.run.state import Commit
from spotrun.trainer_link import SEED, FilesRule, Resume
from spotrun.units import Steps

PutFiles: TypeAlias = Callable[[Sequence[str], int], str]
"""
A function that puts a checkpoint's files into the work folder. Its arguments are the paths of the files that the
trainer has open for writing, and the number of the attempt. It returns "" or, if it failed, the reason.
"""


class Start(NamedTuple):
    """
    The start of a fit(): the message that tells the trainer where to start, the checkpoint's image, and the function
    that restores the checkpoint's files.
    """

    resume: Resume
    image: Image | None = None
    files: PutFiles | None = None


def told_to_trainer(context: AgentContext, image: Image | None) -> Resume:
    files = FilesRule(
        work=str(context.assignment.work),
        before=str(context.assignment.files_before),
        exclude=context.spec.checkpoint.files.exclude,
        put_back=image is not None and image.commit.event.files is not None,
    )
    every = context.spec.checkpoint.every
    return Resume(
        size_bytes=0 if image is None else image.size_bytes,
        start=0 if image is None else image.start,
        epoch=0 if image is None else image.commit.event.epoch,
        step=0 if image is None else image.commit.event.step,
        every_steps=every.count if isinstance(every, Steps) else None,
        seed=SEED,
        fresh=image is None,
        files=files,
        fit=1 if image is None else image.commit.event.fit,
        exact="require" if context.spec.checkpoint.exact == "bits" else context.spec.checkpoint.exact,
    )


def afresh_after(context: AgentContext, last: Commit) -> Start:
    """Return the start of a fit() that trains from scratch. `last` is the final commit of the previous fit()."""
    event = last.event
    told = told_to_trainer(context, None)
    return Start(replace(told, epoch=event.epoch, step=event.step, fit=event.fit + 1))


def ends_before(context: AgentContext, commit: Commit) -> tuple[Image, ...]:
    """
    Return the final images of all fit() calls before the one that made `commit`. The images are on the instance's disk,
    because together they may be larger than its memory. The caller has to close them.

    Raises:
        CheckpointDamaged: a final checkpoint is missing or incomplete.
        StoreError, SpotrunError: the store cannot be read, or the disk cannot be written to.
    """
    ends = context.recorder.state.ends_before(commit)
    if [end.event.fit for end in ends] != list(range(1, commit.event.fit)):
        raise CheckpointDamaged(
            f"the final checkpoint of a fit() call that ended before step {commit.event.step} is missing"
        )
    images: list[Image] = []
    try:
        for end in ends:
            image = fetch(context.store, end, disk=context.assignment.folder)
            images.append(image)
    except BaseException as error:
        close(images)
        if isinstance(error, OSError):
            raise SpotrunError(f"the final state of an earlier fit() cannot be kept: {error.strerror}") from error
        raise
    return tuple(images)


def close(images: Sequence[Image]) -> None:
    for image in images:
        image.close()


def start_at_end(context: AgentContext, image: Image, files: CommitFiles) -> Start:
    """
    Return the start of a fit() that an earlier trainer has completed. `image` is its final checkpoint. The files of
    that checkpoint are fetched only when the trainer requests them. The repeated script has then written most of them
    again, so only few have to be fetched.
    """

    def put(opened: Sequence[str], attempt: int) -> str:
        found = FilesOfCommit(context, image.commit, files.known, coming="files-of-end")
        try:
            found.fetch()
        except SpotrunError as error:
            return str(error)
        return found.putter(files)(opened, attempt)

    return Start(told_to_trainer(context, image), image, put)
