"""The agent of one training, as the tests play it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import threading
import time
from pathlib import Path

from spotrun import proc, trainer_link
from spotrun.checkpoint import layout
from spotrun.trainer_link import (
    ArenaFree,
    Arenas,
    ArenasWanted,
    Arrived,
    DrainWanted,
    Finished,
    FitBegins,
    Hello,
    LinkClosed,
    Refused,
    Resume,
    SnapshotTaken,
    Welcome,
)
from spotrun.wire import unix_path
from tests.support.trainings.trainers import Spawner, Zygote

COMES_WITHIN_S = 0.05
"""Between two looks whether it still lives."""
NOT_A_NUMBER = b"\xff"
"""What the memory of a checkpoint holds before the checkpoint has arrived. Computing with it gives NaN."""
REST_COMES_AFTER_S = 0.05
"""Most trainers have begun by then."""


class Agent:
    """
    One training's agent: it starts trainers until the training is finished, each from the newest snapshot. A script
    with several fits gets the `ends` of those before it.

    `on_message(agent, message)` is called for every message, and may answer by `agent.link.send`. The part of a
    checkpoint that optimizers keep is sent when `await_rest` returns.
    """

    silence_max_s = 240.0
    """Between two messages of a trainer. A busy machine needs a minute for Lightning's first batch."""
    meets_within_s = 600.0
    """From its start until it has found its agent."""

    def __init__(
        self,
        zygote: Zygote | Spawner,
        job: dict,
        folder: Path,
        *,
        every_steps=None,
        on_message=None,
        arenas=2,
        exact="tell",
        seed=7,
    ):
        self.zygote, self.job, self.folder = zygote, job, folder
        self.every_steps, self.on_message, self.arenas = every_steps, on_message, arenas
        self.exact, self.seed = exact, seed
        self.image = b""
        self.snapshot: SnapshotTaken | None = None
        self.ends: dict[int, tuple[bytes, SnapshotTaken]] = {}
        self.messages: list[object] = []
        self.attempts = 0
        self.link: trainer_link.TrainerLink
        self.pid = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.trace = folder / "trace"
        self.log = folder / "log"

    def attempt(self, *, kill: str | None = None, resume: bool = True) -> str:
        """
        Run one trainer process to its end: "finished", "refused", "killed", or "failed"; or, if it has been ended for
        that, "unmet" or "silent".
        """
        self.attempts += 1
        if not resume:
            self.image, self.snapshot, self.ends = b"", None, {}
        if not self.image:
            for trace in self.folder.glob("trace*"):
                trace.unlink()
        job = self.job | {"trace": str(self.trace), "result": str(self.folder / "result.json"), "kill": kill}
        address = str(self.folder / f"link-{self.attempts}")
        with contextlib.closing(unix_path.listen(address)) as door:
            self.pid = self.zygote.start(job, address, self.log)
            came = self._met(door)
        os.unlink(address)
        if isinstance(came, str):
            return "killed" if self.zygote.end(self.pid) == -signal.SIGKILL and came != "unmet" else came
        self.link = came
        held: dict[int, tuple[int, int, int]] = {}
        last: object = None
        try:
            while True:
                received = self.link.receive(self.silence_max_s)
                if received is None:
                    self.kill()
                    self.zygote.end(self.pid)
                    return "silent"
                for fd in received[1]:
                    os.close(fd)
                last = received[0] if isinstance(received[0], Finished | Refused) else last
                self._answer(received[0], held)
        except LinkClosed:
            pass
        finally:
            for fd, _, _ in held.values():
                os.close(fd)
            self.link.close()
        code = self.zygote.end(self.pid)
        if code == -signal.SIGKILL:
            return "killed"
        if isinstance(last, Refused):
            return "refused"
        return "finished" if isinstance(last, Finished) and code == 0 else "failed"

    def _met(self, door: socket.socket) -> trainer_link.TrainerLink | str:
        """The trainer's link when it comes; "failed" if it ends before, "unmet" if it had to be ended."""
        door.settimeout(COMES_WITHIN_S)
        until = time.monotonic() + self.meets_within_s
        while time.monotonic() < until:
            found = proc.stat(self.pid)
            try:
                link = trainer_link.TrainerLink(door.accept()[0])
            except TimeoutError:
                if found is None or found.ended:
                    return "failed"
            else:
                link.send(Welcome())
                return link
        self.kill()
        return "unmet"

    def _answer(self, message: object, held: dict[int, tuple[int, int]]) -> None:
        self.messages.append(message)
        with contextlib.suppress(LinkClosed):
            match message:
                case Hello():
                    self._send_resume(1)
                case FitBegins(fit=fit):
                    self._send_resume(fit)
                case ArenasWanted(size_bytes=size):
                    self._grant(size, held)
                case SnapshotTaken(arena=arena, size_bytes=size):
                    fd, start, arena_bytes = held[arena]
                    assert size <= arena_bytes
                    if self.snapshot and self.snapshot.fit < message.fit:
                        self.ends[self.snapshot.fit] = self.image, self.snapshot
                    self.image, self.snapshot = os.pread(fd, size, start), message
                    self.link.send(ArenaFree(arena=arena))
            if self.on_message:
                self.on_message(self, message)

    def _grant(self, size: int, held: dict[int, tuple[int, int, int]]) -> None:
        """Grant arenas that share no memory with earlier ones."""
        first, stride = max(held, default=-1) + 1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        fd, starts = os.memfd_create("arenas"), tuple(n * stride for n in range(self.arenas))
        os.ftruncate(fd, starts[-1] + size)
        held |= {first + n: (os.dup(fd), start, size) for n, start in enumerate(starts)}
        self.link.send(Arenas(size_bytes=size, starts=starts, first=first), [fd])
        os.close(fd)
        for number in range(first + 1, first + self.arenas):
            self.link.send(ArenaFree(arena=number))

    def _send_resume(self, fit: int) -> None:
        image, at = self.ends.get(fit, (self.image, self.snapshot))
        if at and at.fit < fit:
            image = b""  # it begins afresh after that one
        message = Resume(
            size_bytes=len(image),
            epoch=at.epoch if at else 0,
            step=at.step if at else 0,
            every_steps=self.every_steps,
            seed=self.seed,
            fresh=not image,
            here_bytes=0 if image and fit == 1 else None,
            fit=fit,
            exact=self.exact,
        )
        if not image:
            return self.link.send(message)
        fd = os.memfd_create("checkpoint")
        os.write(fd, NOT_A_NUMBER * len(image) if fit == 1 else image)
        self.link.send(message, [fd])
        if fit > 1:
            return os.close(fd)
        here_bytes = layout.begin_bytes(layout.decode_header(image))
        os.pwrite(fd, image[:here_bytes], 0)
        self.link.send(Arrived(size_bytes=here_bytes))
        rest = (self.link, fd, image, here_bytes)
        return threading.Thread(target=self._send_rest, args=rest).start()

    def await_rest(self) -> None:
        threading.Event().wait(REST_COMES_AFTER_S)

    def _send_rest(self, link: trainer_link.TrainerLink, fd: int, image: bytes, here_bytes: int) -> None:
        self.await_rest()
        os.pwrite(fd, image[here_bytes:], here_bytes)
        os.close(fd)
        with contextlib.suppress(LinkClosed):
            link.send(Arrived(size_bytes=len(image)))

    def run(self, kills: list[str] = ()) -> dict:
        """Train to the end, with a SIGKILL at each of these places, and return the result with its trace."""
        for kill in kills:
            assert self.attempt(kill=kill) == "killed", f"no such place: {kill}\n{self.log.read_text()[-3000:]}"
        how = self.attempt()
        assert how == "finished", f"{how}\n{self.log.read_text()[-6000:]}"
        return self.result()

    def result(self) -> dict:
        result = json.loads((self.folder / "result.json").read_text())
        traces = [path.read_text().splitlines() for path in sorted(self.folder.glob("trace*"))]
        return result | {"trace": [line for trace in traces for line in trace]}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self.job.get("ranks") else os.kill)(self.pid, signal.SIGKILL)

    def drain(self) -> None:
        self.link.send(DrainWanted(reason="a test"))

    def told(self, kind: type) -> list:
        return [message for message in self.messages if isinstance(message, kind)]
