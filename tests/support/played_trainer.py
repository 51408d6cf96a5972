"""
A trainer without torch: it speaks the link as spotrun/training does, and its whole state is a step counter. Tests of
the agent start it dozens of times, so it must start fast; toy_framework.py is a trainer that trains.

    python played_trainer.py '{"steps": 40, "epoch_steps": 20, "step_s": 0.02, "acts": {"step 30": "kill"}, …}'

With `fits`, it does `steps` in each of them. Every step that it does is a line of the file `trace` ("PID STEP"). `acts`
are what it does at a place of its way: kill itself, raise, hang, wait for the file `go_on`, or skip what comes next;
once each where `once` (a folder for marks) is given. `forgets`: only its first process does all fits.

In a gang each rank does the same steps, together with the others: rank 0 leads, and they meet where their agents say.
As with gloo, whoever loses the connection to another rank fails at once. With `alone` ranks other than 0 have nothing
to do, and end at once. With `writes` each rank has a file of its own.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import socket
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
        self.act("import")
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
        fits = 1 if "forgets" in self.job and not self.is_first("forgets") else self.job.get("fits", 1)
        while self.fit < fits:
            self.fit += 1
            self.act(f"fit {self.fit}")
            self.link.send(FitBegins(fit=self.fit))
            self.begin(*self.resumes.get())
            self.train()
        self.act("exit")

    def train(self) -> None:
        while self.step < self.last_step:
            self.do_step()
        if not self.at_end and not self.act("end"):
            self.snapshot(final=True)
        self.link.send(Finished(step=self.step, epoch=self.epoch - 1, resumed=self.at_end))

    @property
    def last_step(self) -> int:
        """Of this fit; steps and epochs count on over fits."""
        return self.fit * self.job["steps"]

    def begin(self, resume: Resume, fds: list[int]) -> None:
        assert resume.fit == self.fit
        self.every, self.exact, self.at_end = resume.every_steps, resume.exact == "require", False
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
        if self.step >= self.job.get("tear_at", 1 << 60) and not final and self.is_first("tear"):
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
        self.act(f"step {self.step + 1}")
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
            self.act("snapshot")

    def lose(self) -> None:
        self.link.send(NotCarried(step=self.step, places=(("module.link", "socket.socket"),)))
        if self.exact:
            self.link.send(Refused(reason="module.link has changed", hint="do otherwise"))
            sys.exit(3)

    def act(self, place: str) -> bool:
        """Do what the script says for this place. True: what comes next is to be left out."""
        act = self.job.get("acts", {}).get(place)
        if act is None or not self.is_first(place):
            return False
        match act:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                threading.Event().wait()
            case "raise":
                raise RuntimeError("the user's own mistake")
            case "wait":
                while not Path(self.job["once"], "go_on").exists():
                    time.sleep(0.01)
        return act == "skip"

    def is_first(self, place: str) -> bool:
        if "once" not in self.job:
            return True
        mark = Path(self.job["once"]) / place.replace(" ", "_")
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


# -- a gang ------------------------------------------------------------------------------------------------------------

MEETS_WITHIN_S = 60.0
RANK = int(os.environ.get("SPOTRUN_NODE_RANK", "0"))


def greeting() -> str:
    """What the ranks of one gang alone know."""
    return f"{os.environ[trainer_link.GANG]} {os.environ[trainer_link.RANKS_SECRET]}"


def meeting() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def fails(job: dict, step: int) -> None:
    if job.get("hang_at", {}).get(str(RANK)) == step and not (mark := Path(job["once"]) / "hung").exists():
        mark.touch()
        hangs_in_its_own_code()
    if job.get("fail_at", {}).get(str(RANK)) == step:
        raise RuntimeError(f"rank {RANK} has a mistake of its own")


def hangs_in_its_own_code() -> None:
    threading.Event().wait()


class Lead(Trainer):
    """Rank 0. It does no step before the others have said that they are there, and none without them."""

    others: tuple[socket.socket, ...] = ()

    def run(self) -> None:
        if not self.job.get("alone"):
            self.meet()
        super().run()
        for other in self.others:
            other.sendall(b"end\n")

    def meet(self) -> None:
        with socket.create_server(meeting()) as server:
            server.settimeout(MEETS_WITHIN_S)
            self.others = tuple(server.accept()[0] for _ in range(int(os.environ["SPOTRUN_NUM_NODES"]) - 1))
        for other in self.others:
            assert other.recv(1000).decode() == greeting(), "not of this gang"

    def do_step(self) -> None:
        for other in self.others:
            other.sendall(f"{self.step + 1}\n".encode())
        for other in self.others:
            if not other.recv(100):
                raise ConnectionError("Connection closed by peer")
        fails(self.job, self.step + 1)
        super().do_step()


def follow(job: dict) -> None:
    lead = _connected()
    lead.sendall(greeting().encode())
    for line in lead.makefile():
        if line == "end\n":
            return
        fails(job, int(line))
        with open(job["trace"], "a") as trace:
            trace.write(f"{os.getpid()} {int(line)}\n")
        lead.sendall(b"done")
    raise ConnectionError("Connection closed by peer")


def _connected() -> socket.socket:
    give_up_at = time.monotonic() + MEETS_WITHIN_S
    while True:
        try:
            return socket.create_connection(meeting(), MEETS_WITHIN_S)
        except ConnectionError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def main(job: dict) -> None:
    if job.get("writes"):
        Path(f"of-rank-{RANK}.txt").write_text("a line\n")
    if RANK == 0:
        (Lead if trainer_link.GANG in os.environ else Trainer)(job).run()
    elif not job.get("alone"):
        follow(job)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
