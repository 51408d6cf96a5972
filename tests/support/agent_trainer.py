"""
A trainer without torch: it speaks the link as spotrun/training does, and its whole state is a step counter. Tests of
the agent start it dozens of times, so it must start fast; toy_framework.py is a trainer that trains.

    python agent_trainer.py '{"steps": 40, "epoch_steps": 20, "step_s": 0.02, …}'

With `fits`, it does `steps` in each of them. Every step that it does is a line of the file `trace` ("PID STEP").
`kill_self_after_snapshot`, `raise_at`, `hang_at` and the like are things that go wrong, once each where `once` (a
folder for marks) is given; `forgets`: only its first process does all fits.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from spotrun import trainer_link
from spotrun.checkpoint import layout
from spotrun.folder.work_files import remembered
from spotrun.trainer_link import (
    ArenaFree,
    Arenas,
    ArenasWanted,
    Arrived,
    Committed,
    DrainWanted,
    EpochEnded,
    FilesReady,
    FilesRule,
    FilesTorn,
    FilesWanted,
    Finished,
    FitBegins,
    Hello,
    LinkClosed,
    NotCarried,
    Progress,
    Refused,
    Resume,
    RoomWanted,
    SnapshotTaken,
    SnapshotWanted,
)
from spotrun.training.work_folder.freezing import Freezer
from spotrun.training.work_folder.open_files import OpenFiles


class Trainer:
    def __init__(self, job: dict) -> None:
        self.job = job
        self.payload = layout.place([("uint8", (job.get("payload_bytes", 100_000),))])
        link = trainer_link.from_environment()
        assert link is not None
        self.link = link
        self.arenas: dict[int, mmap.mmap] = {}
        self.free: list[int] = []
        self.wanted = self.draining = False
        self.step = 0
        self.at_end = False
        self.fit = 1
        self.resumes: queue.SimpleQueue[tuple[Resume, list[int]]] = queue.SimpleQueue()
        self.every: int | None = None
        self.exact = False
        self.freezer: Freezer | None = None

    def run(self) -> None:
        if self.happens("hang_at_import"):
            threading.Event().wait()
        self.link.send(Hello(pid=os.getpid(), framework="stand-in 1.0", torch="none", python="3"))
        if "refuse" in self.job:
            self.link.send(Refused(reason=self.job["refuse"], hint="do otherwise"))
            sys.exit(3)
        received = self.link.receive(60)
        assert received is not None
        resume, fds = received
        assert isinstance(resume, Resume), resume
        self.begin(resume, fds)
        threading.Thread(target=self.listen, daemon=True).start()
        self.link.send(ArenasWanted(size_bytes=2 * self.payload[-1].size_bytes))
        self.train()
        fits = 1 if "forgets" in self.job and not self.happens("forgets") else self.job.get("fits", 1)
        while self.fit < fits:
            self.fit += 1
            if self.happens(f"kill_before_fit_{self.fit}"):
                os.kill(os.getpid(), signal.SIGKILL)
            while f"waits_before_fit_{self.fit}" in self.job and not Path(self.job["once"], "go_on").exists():
                time.sleep(0.01)
            self.link.send(FitBegins(fit=self.fit))
            self.begin(*self.resumes.get())
            self.train()
        if self.happens("kill_at_exit"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.happens("hang_at_exit"):
            threading.Event().wait()

    def train(self) -> None:
        while self.step < self.last_step:
            self.do_step()
        if not self.at_end and not self.happens("no_final"):
            self.snapshot(final=True)
        self.link.send(Finished(step=self.step, epoch=self.epoch - 1, resumed=self.at_end))

    @property
    def last_step(self) -> int:
        """Of this fit; steps and epochs count on over fits."""
        return self.fit * self.job["steps"]

    def begin(self, resume: Resume, fds: list[int]) -> None:
        assert resume.fit == self.fit
        self.every, self.exact, self.at_end = resume.every_steps, resume.exact, False
        here_bytes = resume.size_bytes if resume.here_bytes is None else resume.here_bytes
        while here_bytes < resume.size_bytes:
            here_bytes = self.arrived()
        if resume.size_bytes:
            image = mmap.mmap(fds[0], resume.size_bytes, prot=mmap.PROT_READ, offset=resume.start)
            meta = layout.decode_header(image).meta
            self.step, self.at_end = meta["step"], meta["finished"]
        assert self.step == resume.step
        if self.job.get("files") and resume.files is not None and self.fit == 1:
            self.begin_files(resume.files)

    def begin_files(self, rule: FilesRule) -> None:
        """A log that is open for writing, and a large file that takes the place of an older one at each step."""
        self.freezer = Freezer(os.getcwd(), remembered(Path(rule.before)), lambda _: True)
        self.open = OpenFiles(os.getcwd())
        self.log = open("log", "w")  # noqa: SIM115  as long as the process lives
        self.log.write("begins\n")
        self.open_version()
        if rule.put_back:
            self.link.send(FilesWanted(open=tuple(each.path for each in self.open.flush())))
            received = self.link.receive(60)
            assert received is not None
            assert received[0] == FilesReady(), received
            self.open.move({})
            self.freezer.begin_with(self.open.flush())

    def open_version(self) -> None:
        """As a logger does, behind a callback that has written into its folder."""
        version = Path("logs", f"version_{len(list(Path('logs').glob('version_*')))}")
        (version / "checkpoints").mkdir(parents=True)
        (version / "config.yaml").write_text("as given\n")
        (version / ".spotrun").write_text("a run")

    def write_files(self) -> None:
        self.log.write(f"{self.step}\n")
        Path("large.tmp").write_bytes(bytes([self.step % 256]) * 300_000)
        os.replace("large.tmp", "large")

    def freeze(self, *, final: bool) -> int | None:
        if self.freezer is None:
            return None
        frozen = self.freezer.freeze(self.open.flush(), final=final)
        frozen.send(lambda message, fds: self.link.send(message, tuple(fds)))
        if self.step >= self.job.get("tear_at", 1 << 60) and not final and self.happens("tear_at"):
            with open("large", "r+b") as large:
                large.write(b"torn")
            Path(self.job["once"], "torn").write_text(str(self.step))
        return frozen.number

    def arrived(self) -> int:
        received = self.link.receive(60)
        assert received is not None
        assert isinstance(received[0], Arrived), received
        return received[0].size_bytes

    def listen(self) -> None:
        try:
            while True:
                received = self.link.receive(None)
                assert received is not None
                match received:
                    case (Arenas(size_bytes=size, starts=starts, first=first), fds):
                        for n, start in enumerate(starts):
                            self.arenas[first + n] = mmap.mmap(fds[0], size, offset=start)
                        self.free.append(first)
                    case (ArenaFree(arena=arena), _):
                        self.free.append(arena)
                    case (Committed(files=int(number)), _) if self.freezer is not None:
                        self.freezer.committed(number)
                    case (FilesTorn(paths=paths), _) if self.freezer is not None:
                        self.freezer.torn(paths)
                    case (Resume() as resume, fds):
                        self.resumes.put((resume, fds))
                    case (SnapshotWanted(), _):
                        self.wanted = True
                    case (DrainWanted(), _):
                        self.draining = True
        except LinkClosed:
            os._exit(75)

    @property
    def epoch(self) -> int:
        return self.step // self.job["epoch_steps"]

    def do_step(self) -> None:
        time.sleep(self.job.get("step_s", 0.02))
        self.go_wrong(self.step + 1)
        self.step += 1
        per_epoch = self.job["epoch_steps"]
        with open(self.job["trace"], "a") as trace:
            trace.write(f"{os.getpid()} {self.step}\n")
        if self.freezer is not None:
            self.write_files()
        epoch, batch = divmod(self.step - 1, per_epoch)
        self.link.send(
            Progress(
                epoch=epoch,
                batch=batch + 1,
                batches=per_epoch,
                step=self.step,
                epochs=self.last_step // per_epoch,
                phase="train",
                metrics={"loss": 1 / self.step},
            )
        )
        if self.step % self.job.get("loses_every", 1 << 60) == 0:
            self.lose()
        if self.step % per_epoch == 0:
            self.link.send(EpochEnded(epoch=epoch, step=self.step, batches=per_epoch, samples=per_epoch))
        if self.draining:
            self.snapshot(final=True)
            threading.Event().wait()
        if self.free and (self.wanted or (self.every and self.step % self.every == 0)):
            self.wanted = False
            self.snapshot(final=False)
            if self.happens("kill_self_after_snapshot"):
                os.kill(os.getpid(), signal.SIGKILL)

    def lose(self) -> None:
        self.link.send(NotCarried(step=self.step, places=(("module.link", "socket.socket"),)))
        if self.exact:
            self.link.send(Refused(reason="module.link has changed", hint="do otherwise"))
            sys.exit(3)

    def go_wrong(self, step: int) -> None:
        if step == self.job.get("raise_at") and self.happens("raise_at"):
            raise RuntimeError("the user's own mistake")
        if step == self.job.get("kill_at") and self.happens("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.job.get("hang_at") and self.happens("hang_at"):
            threading.Event().wait()

    def happens(self, name: str) -> bool:
        if name not in self.job:
            return False
        if "once" not in self.job:
            return True
        mark = Path(self.job["once"]) / name
        first = not mark.exists()
        mark.touch()
        return first

    def snapshot(self, *, final: bool) -> None:
        if not self.free:
            self.link.send(RoomWanted())
        while not self.free:
            time.sleep(0.005)
        arena = self.free.pop(0)
        meta = {"step": self.step, "finished": final and self.step == self.last_step, "spotrun": "test"}
        header = layout.encode_header(self.payload, None, meta)
        size = len(header) + self.payload[-1].size_bytes
        self.arenas[arena][: len(header)] = header
        self.arenas[arena][len(header) : size] = bytes([self.step % 256]) * (size - len(header))
        epoch, batch = divmod(self.step, self.job["epoch_steps"])
        self.link.send(
            SnapshotTaken(
                arena=arena,
                size_bytes=size,
                epoch=epoch,
                batch=batch,
                step=self.step,
                stall_s=0.001,
                finite=self.step < self.job.get("not_finite_from", 1 << 60),
                final=final,
                epoch_ended=False,
                files=self.freeze(final=final),
                fit=self.fit,
            )
        )
        if final:
            Path(self.job["trace"]).with_name("final").touch()


if __name__ == "__main__":
    Trainer(json.loads(sys.argv[1])).run()
