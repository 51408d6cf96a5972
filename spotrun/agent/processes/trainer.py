"""
Manages one trainer of an attempt from its start to its exit: its messages, its arenas, and its newest checkpoint.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spotrun import trainer_link
from spotrun.agent import decisions, fits
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.fits import Start
from spotrun.agent.inbox import CameTooLate, Exited, TrainerMessage, forget
from spotrun.agent.processes.liveness import Liveness, Signs
from spotrun.agent.processes.trainer_process import TrainerProcess, start_trainer
from spotrun.agent.processes.trainer_socket import ONE_TRAINING
from spotrun.agent.snapshots.arenas import Arena, Arenas
from spotrun.agent.snapshots.frozen import Descriptors, Frozen, PartialFrozenFolder
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.checkpoint.restore import Image
from spotrun.trainer_link import (
    ArenaFree,
    Arrived,
    Committed,
    DrainWanted,
    Figures,
    FilesFrozen,
    FilesReady,
    FilesTorn,
    Finished,
    Hello,
    Progress,
    Refused,
    Resume,
    SnapshotTaken,
    SnapshotWanted,
    Why,
)

HANG_FLOOR_S = float(os.environ.get("SPOTRUN_HANG_FLOOR_S", "30"))
"""Minimum seconds of system time of silence after which a trainer counts as hung. Tests set a smaller value."""
ABORT_GRACE_S = 5.0
"""
Seconds of system time that the agent gives a trainer before it kills the trainer. In this time, a hung trainer can
write its stacks, and a trainer that has refused to train can exit.
"""
KILL_WITHIN_S = 30.0
OUTPUT_BYTES = 64 << 10
TORN_NAMED_MAX = 500
"""
Maximum number of torn files (changed before the agent had read them) that one message names. If there are more, the
next snapshot is torn too, and the message about that snapshot names the remaining files.
"""
TELLINGS_MAX = 64
"""
Maximum number of messages to a trainer about the progress of a checkpoint's download. The socket holds only a few
hundred unread messages.
"""


class Newest(NamedTuple):
    """
    A commit, and the arena from which it was made: the memory behind the descriptor `fd`, from byte `start` on. The
    trainer may already have begun to overwrite the arena. So a reader has to compare digests before it uses the memory.
    If only the changed parts of the commit's image were sent, `digest` is the digest of the whole image.
    """

    commit: int
    fd: int
    start: int
    digest: bytes | None


class _Coming:
    """
    A checkpoint that is being fetched. The trainer gets only a few reports of how many bytes have arrived: it reads
    none while it imports its modules, and many unread reports would fill the socket.
    """

    def __init__(self, image: Image, begin_bytes: int) -> None:
        self.image = image
        self._begin_bytes = begin_bytes
        self._told_bytes = 0

    def worth_telling(self, size_bytes: int) -> bool:
        much = size_bytes - self._told_bytes >= self.image.size_bytes / TELLINGS_MAX
        awaited = (self._begin_bytes, self.image.size_bytes)
        if not much and not any(self._told_bytes < mark <= size_bytes for mark in awaited):
            return False
        self._told_bytes = size_bytes
        return True


class Trainer:
    """
    The state of one trainer, and its messages. This class makes no decisions.

    - `asked`: the reason for which a snapshot was requested that has not been taken yet
    - `final`: the number of the newest fit()'s final commit; None until that commit exists, and None again from the
      first step of another fit()
    - `fit_wanted`: the number of a fit() that the script has called, and that waits until the agent says where to start
    - `stalled_s`: the seconds of run time for which the trainer has paused for snapshots so far
    - `terminated`: the command has received SIGTERM
    - `trained_again`: the command's first training process died, and the command then began another training
    """

    def __init__(self, context: AgentContext, process: TrainerProcess, meets: Mapping[str, str] | None = None) -> None:
        """`meets` are the variables with which the trainer finds the other trainers of its gang."""
        self.number = process.incarnation
        self.progress: Progress | None = None
        self.asked: str | None = None
        self.finished: Finished | None = None
        self.refused: Refused | None = None
        self.final: int | None = None
        self.fit_wanted: int | None = None
        self.terminated = self.trained_again = False
        self.exited: Exited | None = None
        self.hung = False
        self.stalled_s = 0.0
        self._context = context
        self._process = process
        self._meets = meets
        self._arenas = Arenas()
        self._sequence = 0
        self._newest: Newest | None = None
        self._start: Start | None = None
        self._later: deque[Start] = deque()
        self._image: Image | None = None
        self._coming: _Coming | None = None
        self._told_where = False
        self._wants_room = False
        self._kill_at_s: float | None = None
        self._paused_s: float | None = None
        self._freezing: PartialFrozenFolder | None = None
        self._putting: threading.Thread | None = None
        self._log_start = process.log_start
        self._liveness = Liveness(context.clock, self._signs)

    @property
    def is_training(self) -> bool:
        """True if the command uses spotrun's callback (the callback has said hello), and has not received SIGTERM."""
        return self._process.hello is not None and not self.terminated

    @property
    def last_step(self) -> int:
        if self.progress is not None:
            return self.progress.step
        return self._start.resume.step if self._start is not None else 0

    # -- where to begin ------------------------------------------------------------------------------------------

    def begin_while_it_comes(self, resume: Resume, image: Image, begin_bytes: int) -> None:
        """
        Let the trainer begin to load `image` while the image is still being fetched. Loading needs the first
        `begin_bytes`, so these are fetched first.
        """
        self._start_anew_unless_told_of(image)
        self._coming = _Coming(image, begin_bytes)
        self._process.send(replace(resume, here_bytes=0), fds=(image.fd,))

    def arrived(self, size_bytes: int) -> None:
        """Report to the trainer that the first `size_bytes` of its checkpoint have arrived."""
        assert self._coming is not None
        if self._coming.worth_telling(size_bytes):
            self._process.send(Arrived(size_bytes=size_bytes))

    def begin_at(self, start: Start, *later: Start) -> None:
        """
        Tell the trainer where its training starts, as soon as the trainer has said hello (connected to the agent). If
        the trainer already received the image part by part during the download, the image is not sent again. The
        `later` starts are for the script's next fit() calls.

        The agent keeps the image open until the trainer makes steps. Closing the image frees much memory, which takes a
        while, and would delay the first step.
        """
        self._start_anew_unless_told_of(start.image)
        self._start, self._image, self._later = start, start.image, deque(later)
        self._tell_where()

    def _start_anew_unless_told_of(self, image: Image | None) -> None:
        """
        Restart the trainer's process if it has received parts of a checkpoint image other than `image`. The other image
        turned out to be damaged while it was fetched, and the trainer may have loaded weights from it. No step is lost,
        because no trainer makes a step before its image is complete.
        """
        if self._coming is None or self._coming.image is image:
            return
        self._coming = None
        self._context.note("restarting the trainer, because the checkpoint that it was loading is damaged")
        self._process.kill()
        forget(self._context.inbox, self.number)
        self._process = start_trainer(self._context, self.number, self._meets)
        self._log_start = self._process.log_start
        self._liveness.heard()

    def runs_python(self) -> bool:
        return self._process.runs_python()

    def cpu_s(self) -> float:
        return self._process.cpu_s()

    def hello(self, hello: Hello, at_s: float) -> None:
        self._process.hello = hello
        self._context.assignment.training_mark.touch()
        self._liveness.heard(at_s)
        self._tell_where()

    def _tell_where(self) -> None:
        """
        Tell the trainer where its training starts, if that is known and the trainer has connected to the agent. Do so
        only once.
        """
        if self._told_where or self._start is None or self._process.hello is None:
            return
        self._told_where = True
        self._liveness.heard()
        if self._coming is None:
            self._send_start(self._start)

    def _send_start(self, start: Start) -> None:
        self._process.send(start.resume, fds=() if start.image is None else (start.image.fd,))

    @property
    def is_behind(self) -> bool:
        """
        True if an earlier trainer had begun a fit() that this trainer's script has not called yet. A new trainer
        repeats the script from the beginning, so it repeats these calls one after another.
        """
        return bool(self._later)

    def take_later(self) -> Start | None:
        """
        Remove the first of the fit() calls that an earlier trainer began and this trainer has not repeated yet. Return
        where it starts; None if there is no such call.
        """
        return self._later.popleft() if self._later else None

    def begin_fit(self, start: Start) -> None:
        """
        Begin another fit() in the same process. If it starts from a checkpoint's image, reset `final`: it may make
        further steps, so it has no final commit yet.
        """
        self._drop_image()
        self._start, self._image = start, start.image
        self.fit_wanted = self.finished = self.progress = None
        if start.image is not None:
            self.final = None
        self._send_start(start)
        self._liveness.heard()

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None

    # -- snapshots -----------------------------------------------------------------------------------------------

    def grant(self, size_bytes: int) -> None:
        arenas = self._arenas.grant(size_bytes)
        starts = tuple(arena.start for arena in arenas)
        granted = trainer_link.Arenas(size_bytes=size_bytes, starts=starts, first=arenas[0].number)
        self._process.send(granted, (arenas[0].fd,))

    def ask(self, why: Why) -> None:
        self.asked = why
        self._process.send(SnapshotWanted(why=why))

    def filled(self, taken: SnapshotTaken) -> Arena | None:
        """Return the arena that contains the snapshot; None if that arena does not belong to the trainer."""
        arena = self._arenas.fill(taken.arena)
        if arena is None or taken.size_bytes > arena.size_bytes:
            self._context.note(f"ignored a snapshot: the trainer has no arena {taken.arena} of this size")
            return None
        self._wants_room = False
        return arena

    def wants_room(self) -> None:
        """Record that the trainer waits, because it needs an arena for a snapshot and none is free."""
        self._wants_room = True

    def freezes(self, message: FilesFrozen, descriptors: Descriptors) -> None:
        """
        Handle the first message that describes the work folder for the trainer's next snapshot. More messages may
        follow, with further file descriptors (`freezes_more`).
        """
        self._freezing = PartialFrozenFolder(message, descriptors)

    def freezes_more(self, descriptors: Descriptors) -> None:
        if self._freezing is not None:
            self._freezing.more(descriptors)

    def _frozen(self, taken: SnapshotTaken) -> Frozen | None:
        """
        Return the work folder's files as they were frozen for a snapshot; None if the snapshot has no files.

        Raises:
            msgspec.MsgspecError, AssertionError: the trainer's messages are malformed or inconsistent.
        """
        coming, self._freezing = self._freezing, None
        if taken.files is None:
            return None
        assert coming is not None
        assert coming.message.number == taken.files
        return coming.whole()

    def snapshot(self, attempt: int, arena: Arena, said: TrainerMessage, taken: SnapshotTaken, why: str) -> Snapshot:
        self.stalled_s += taken.stall_s * self._context.clock.scale
        sequence, self._sequence = self._sequence, self._sequence + 1
        self.asked = None
        return Snapshot(
            attempt=attempt,
            incarnation=self.number,
            sequence=sequence,
            arena=arena,
            taken=taken,
            taken_at=said.at,
            taken_s=said.at_s,
            stalled_s=self.stalled_s,
            why=why,
            frozen=self._frozen(taken),
        )

    def committed(self, snapshot: Snapshot, commit: int, digest: bytes | None) -> None:
        """Record that a snapshot of this trainer became commit `commit`, and report this to the trainer."""
        if snapshot.taken.final:
            self.final = commit
        if snapshot.arena is None:
            return
        self._forget_newest()
        fd = snapshot.arena.descriptor()
        self._newest = None if fd is None else Newest(commit, fd, snapshot.arena.start, digest)
        self._process.send(Committed(step=snapshot.taken.step, files=snapshot.taken.files))

    def torn(self, paths: Sequence[str]) -> None:
        """Ask the trainer to copy the files at `paths` at the next step boundary."""
        self._process.send(FilesTorn(paths=tuple(paths[:TORN_NAMED_MAX])))

    def put_files_back(self, opened: Sequence[str], attempt: int) -> None:
        """
        Put the checkpoint's files into the work folder, in a separate thread because this may take long. Meanwhile, the
        trainer waits for the message with the result.
        """
        start = self._start

        def put() -> None:
            problem = "" if start is None or start.files is None else start.files(opened, attempt)
            self._process.send(FilesReady(problem=problem))

        self._putting = threading.Thread(target=put, name="put-back", daemon=True)
        self._putting.start()

    def tell(self, figures: Figures) -> None:
        if self._process.hello is not None:
            self._process.send(figures)

    def take_newest(self) -> Newest | None:
        """Return the newest commit and its arena. The caller then owns the arena's file descriptor."""
        newest, self._newest = self._newest, None
        return newest

    def _forget_newest(self) -> None:
        if (newest := self.take_newest()) is not None:
            os.close(newest.fd)

    def spend(self, arena: Arena) -> None:
        """
        Record that the memory that a snapshot's arena shares with the other arena is no longer needed. Only now can the
        trainer get the other arena.
        """
        self._arenas.spend(arena.number)
        self._make_room()

    def release(self, arena: Arena) -> None:
        self._arenas.free(arena.number)
        self._make_room()

    def _make_room(self) -> None:
        if (number := self._arenas.give()) is not None:
            self._process.send(ArenaFree(arena=number))

    # -- signs of life -------------------------------------------------------------------------------------------

    def progressed(self, progress: Progress, at_s: float) -> None:
        self.progress = progress
        if self.finished is None:
            self.final = None
        self._liveness.heard(at_s)
        self._drop_image()

    def finish(self, finished: Finished, at_s: float) -> None:
        self.finished = finished
        if finished.resumed and not self.is_behind and self._start is not None and self._start.image is not None:
            self.final = self._start.image.commit.number
        self._liveness.heard(at_s)

    def wants_fit(self, fit: int) -> None:
        self.fit_wanted = fit

    @property
    def silent_s(self) -> float:
        """Seconds of run time since the trainer's last sign of life."""
        return self._liveness.silent_s(training=self.progress is not None and self.finished is None)

    def ended(self, exited: Exited) -> None:
        self.exited = exited

    def watch(self, step_s: float | None, *, draining: bool) -> None:
        """
        End the trainer if it has been silent for too long, and kill it if it then takes too long to end. During a
        drain, only the drain's time limit applies.
        """
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._process.kill()
        if self._kill_at_s is not None or self.exited is not None or draining or self._paused_s is not None:
            return
        if (self._wants_room and self._arenas.none_is_free) or self.fit_wanted is not None:
            self._liveness.heard()  # the trainer waits for an upload, whose end frees an arena
        if self._putting is not None and self._putting.is_alive():
            self._liveness.heard()
        training = self.progress is not None and self.finished is None
        limit_s = decisions.hang_limit_s(
            step_s,
            self._context.spec.policy.hang_after,
            HANG_FLOOR_S * self._context.clock.scale,
            training=training,
        )
        if self.silent_s >= limit_s:
            self._context.note(f"no sign of life for {limit_s:.0f} s: ending the trainer; its stack traces follow")
            self.hung = True
            self._kill_at_s = time.monotonic() + ABORT_GRACE_S
            self._process.abort(self._context.note)

    def _signs(self) -> Signs:
        return Signs(self._context.console.size_bytes(), self._process.cpu_s())

    def pause(self) -> None:
        """Pause the trainer's processes until `go_on` is called."""
        if self._paused_s is None and self.exited is None:
            self._paused_s = self._context.clock.monotonic()
            self._process.stop()

    def go_on(self) -> None:
        """End a pause. The pause counts as a stall."""
        if self._paused_s is not None:
            self.stalled_s += self._context.clock.monotonic() - self._paused_s
            self._paused_s = None
            self._liveness.heard()
            self._process.go_on()

    # -- the end -------------------------------------------------------------------------------------------------

    def drain(self, reason: str) -> None:
        self._process.send(DrainWanted(reason=reason))

    def another_came(self, late: CameTooLate) -> None:
        """
        Kill the command, because a second process of it wants to train. What follows depends on the first process that
        trained:

        - If it died in the middle of its training, the command is started again, and resumes from a checkpoint.
        - If it still trains, or has completed its training, record that the trainer has refused to train: spotrun
          supports only one training process for each command.
        """
        if self.exited is not None or self.refused is not None:
            return
        if late.alone and self.finished is None:
            self._context.note(
                f"process {late.leader} died while training, and its command began another training: "
                f"restarting the command"
            )
            self.trained_again = True
            self._process.kill()
            return
        words = "one after the other" if late.alone else "at the same time"
        reason = f"its command trains {words} in two processes, {late.leader} and {late.pid}"
        self.refused = Refused(reason=reason, hint=ONE_TRAINING)
        self._process.kill()

    def refuse(self, refused: Refused) -> None:
        """
        Record that the trainer has refused to train. The trainer should exit by itself. If it has not exited within
        ABORT_GRACE_S, kill it.
        """
        self.refused = refused
        self._kill_at_s = time.monotonic() + ABORT_GRACE_S

    def terminate(self) -> None:
        """Send SIGTERM to a command that takes no snapshots. Do not wait for its end."""
        self.terminated = True
        self._process.terminate()

    def kill(self, within_s: float = KILL_WITHIN_S) -> None:
        self._process.kill()
        self._process.wait(within_s)

    def last_output(self) -> str:
        """Return the last lines of the trainer's output, enough to contain a traceback."""
        return self._context.console.tail(OUTPUT_BYTES, since=self._log_start)

    def close(self) -> None:
        """Free the trainer's memory. Snapshots that are still being saved are freed once they are saved."""
        self._drop_image()
        fits.close([start.image for start in self._later if start.image is not None])
        self._later.clear()
        self._forget_newest()
        self._arenas.close()
