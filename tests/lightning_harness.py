"""
Trainings that are killed and resumed, and the agent that they talk to.

`Zygote` is a process that has imported torch and Lightning and forks a trainer for each job (10 ms instead of 3 s).
`Agent` speaks the link from the other end: arenas by memfd, snapshots kept, kills, resumes. `train` is the
training: everything that may go wrong on a resume is an option of its job, and it writes a trace, a line per batch,
validation and epoch, which a resumed callback cuts back to where the snapshot was taken, as a user's own log would
be. What is in it at the end is the history that survived.

Used by test_lightning_exact.py. `python lightning_harness.py JOB.json` runs one training on its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict, deque
from pathlib import Path

from spotrun import trainer_link
from spotrun.trainer_link import (
    ArenaFree,
    Arenas,
    ArenasWanted,
    DrainWanted,
    EpochEnded,
    Finished,
    Hello,
    LinkClosed,
    Refused,
    Resume,
    SnapshotTaken,
    SnapshotWanted,
)

ROOT = Path(__file__).parent.parent
ENTRY_POINTS = """
[pytorch_lightning.callbacks_factory]
spotrun = spotrun.lightning.factory:for_pytorch_lightning
[lightning.pytorch.callbacks_factory]
spotrun = spotrun.lightning.factory:for_lightning
"""


def install_entry_points(folder: Path) -> str:
    """A folder for sys.path that declares spotrun's entry points; harmless beside an installed spotrun."""
    info = folder / "spotrun-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spotrun\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return str(folder)


# --- the agent -------------------------------------------------------------------------------------------------------


class Agent:
    """
    One training's agent: it starts trainers until the training is finished, each from the newest snapshot.

    `on_message(agent, message)` is called for every message; what it sends (`agent.link.send`) the trainer gets.
    """

    def __init__(self, zygote: Zygote, job: dict, folder: Path, *, every_steps=None, on_message=None, arenas=2):
        self.zygote, self.job, self.folder = zygote, job, folder
        self.every_steps, self.on_message, self.arenas = every_steps, on_message, arenas
        self.image = b""
        self.snapshot: SnapshotTaken | None = None
        self.messages: list[object] = []
        self.attempts = 0
        self.link: trainer_link.TrainerLink
        self.pid = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.trace = folder / "trace"
        self.log = folder / "log"

    def attempt(self, *, kill: str | None = None, resume: bool = True) -> str:
        """One trainer process, until it ended: "finished", "refused", "killed", or "failed"."""
        self.attempts += 1
        if not resume:
            self.image, self.snapshot = b"", None
        if not self.image:
            for trace in self.folder.glob("trace*"):
                trace.unlink()
        self.link, theirs = trainer_link.pair()
        job = self.job | {"trace": str(self.trace), "result": str(self.folder / "result.json"), "kill": kill}
        self.pid = self.zygote.start(job, theirs, self.log)
        theirs.close()
        held: dict[int, tuple[int, int]] = {}
        last: object = None
        try:
            while True:
                received = self.link.receive(60)
                assert received, f"the trainer is silent\n{self.log.read_text()}"
                last = received[0] if isinstance(received[0], Finished | Refused) else last
                self._answer(received[0], held)
        except LinkClosed:
            pass
        finally:
            for fd, _ in held.values():
                os.close(fd)
            self.link.close()
        code = self.zygote.end(self.pid)
        if code == -signal.SIGKILL:
            return "killed"
        if isinstance(last, Refused):
            return "refused"
        return "finished" if isinstance(last, Finished) and code == 0 else "failed"

    def _answer(self, message: object, held: dict[int, tuple[int, int]]) -> None:
        self.messages.append(message)
        with contextlib.suppress(LinkClosed):
            match message:
                case Hello():
                    self._send_resume()
                case ArenasWanted(size_bytes=size):
                    first = max(held, default=-1) + 1
                    fds = [os.memfd_create("arena") for _ in range(self.arenas)]
                    for n, fd in enumerate(fds):
                        os.ftruncate(fd, size)
                        held[first + n] = fd, size
                    self.link.send(Arenas(size_bytes=size, count=len(fds), first=first), fds)
                case SnapshotTaken(arena=arena, size_bytes=size):
                    assert size <= held[arena][1]
                    self.image, self.snapshot = os.pread(held[arena][0], size, 0), message
                    self.link.send(ArenaFree(arena=arena))
            if self.on_message:
                self.on_message(self, message)

    def _send_resume(self) -> None:
        at = self.snapshot
        message = Resume(
            size_bytes=len(self.image),
            epoch=at.epoch if at else 0,
            step=at.step if at else 0,
            every_steps=self.every_steps,
            seed=7,
            fresh=not self.image,
        )
        if not self.image:
            return self.link.send(message)
        fd = os.memfd_create("checkpoint")
        os.write(fd, self.image)
        self.link.send(message, [fd])
        return os.close(fd)

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

    def want_snapshot(self) -> None:
        self.link.send(SnapshotWanted(why="interval"))

    def drain(self) -> None:
        self.link.send(DrainWanted(reason="a test"))

    def told(self, kind: type) -> list:
        return [message for message in self.messages if isinstance(message, kind)]

    def epochs_told(self) -> list[int]:
        return [message.epoch for message in self.told(EpochEnded)]


class Zygote:
    """A process with everything imported, which forks trainers."""

    def __init__(self, folder: Path) -> None:
        self._sock, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([install_entry_points(folder / "site"), str(ROOT), str(ROOT / "tests")]),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        environment.pop(trainer_link.AGENT_FD, None)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--zygote", str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        self._answers = self._sock.makefile("r")
        assert self._answers.readline() == "ready\n"

    def start(self, job: dict, link: socket.socket | None, log: Path) -> int:
        request = json.dumps({"job": job, "log": str(log), "link": link is not None}).encode() + b"\n"
        socket.send_fds(self._sock, [request], [link.fileno()] if link else [])
        return int(self._answers.readline())

    def end(self, pid: int) -> int:
        """Wait for the trainer, and end what it left (data loading workers); its exit code, -9 for SIGKILL."""
        self._sock.sendall(json.dumps({"wait": pid}).encode() + b"\n")
        return int(self._answers.readline())

    def alone(self, job: dict, folder: Path) -> dict:
        """The same training without an agent."""
        folder.mkdir(parents=True, exist_ok=True)
        job = job | {"trace": str(folder / "trace"), "result": str(folder / "result.json")}
        assert self.end(self.start(job, None, folder / "log")) == 0, (folder / "log").read_text()[-3000:]
        return json.loads((folder / "result.json").read_text())

    def close(self) -> None:
        self._sock.close()
        self._answers.close()
        self._process.wait(20)


class Spawner:
    """In place of a Zygote: a Python of its own for each trainer, as the real agent starts it."""

    def __init__(self, folder: Path) -> None:
        path = [install_entry_points(folder / "site"), str(ROOT)]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        self._running: dict[int, subprocess.Popen] = {}

    def start(self, job: dict, link: socket.socket, log: Path) -> int:
        with open(log, "a") as file:
            process = subprocess.Popen(
                [sys.executable, job["script"], *job.get("args", [])],
                env=self._environment | {trainer_link.AGENT_FD: str(link.fileno())},
                pass_fds=[link.fileno()],
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running[process.pid] = process
        return process.pid

    def end(self, pid: int) -> int:
        code = self._running.pop(pid).wait(60)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return code


def _serve(sock: socket.socket) -> None:
    for module in (
        "torch",
        "pytorch_lightning",
        "pytorch_lightning.demos",
        "lightning.pytorch",
        "numpy",
        "torchmetrics",
    ):
        importlib.import_module(module)
    importlib.import_module("spotrun.lightning.callback")
    import torch

    torch.set_num_threads(1)  # threads would not survive the fork
    sock.sendall(b"ready\n")
    unread = b""
    fds: list[int] = []
    while True:
        data, new, _, _ = socket.recv_fds(sock, 1 << 16, 4)
        fds += new
        if not data:
            return
        unread += data
        while b"\n" in unread:
            line, unread = unread.split(b"\n", 1)
            request = json.loads(line)
            answer = _wait(request["wait"]) if "wait" in request else _fork(request, fds, sock)
            sock.sendall(f"{answer}\n".encode())


def _fork(request: dict, fds: list[int], sock: socket.socket) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            sock.close()
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if request["link"]:
                os.environ[trainer_link.AGENT_FD] = str(fds[0])
            os.environ["SPOTRUN_RUN_UID"] = "of-these-tests"
            os.environ.pop("PL_GLOBAL_SEED", None)
            job = be_ranks(request["job"], fds[0]) if request["job"].get("ranks") else request["job"]
            train(job)
            code = 0
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    while fds:
        os.close(fds.pop())
    return pid


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


# --- the training ----------------------------------------------------------------------------------------------------


def be_ranks(job: dict, link: int) -> dict:
    """Fork the second rank of a training on two processes, with what Lightning's launcher sets for each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    second = os.fork() == 0
    os.environ["LOCAL_RANK"] = str(int(second))
    if not second:
        return job
    os.close(link)  # only a program's first process inherits it
    return job | {"trace": f"{job['trace']}-1", "result": f"{job['result']}-1"}


def train(job: dict) -> None:
    if "call" in job:
        return globals()[job["call"]](job)
    overlap = importlib.import_module("spotrun.lightning.overlap")
    overlap.FROM_BYTES, overlap.PIECE_FROM_BYTES = job.get("overlap_from", (0, 0))  # of these models all is small
    if "agent_gone_s" in job:
        importlib.import_module("spotrun.lightning.session").AGENT_GONE_EXIT_S = job["agent_gone_s"]
    if "script" in job:
        sys.argv = [job["script"], *job.get("args", [])]
        runpy.run_path(job["script"], run_name="__main__")
        return None
    return _train(importlib.import_module(job.get("package", "pytorch_lightning")), job)


def moved_names(job: dict) -> None:
    """What Lightning does not have of the private names, for both packages; and with one name taken away."""
    from spotrun.lightning.connectors import names

    found = {}
    for package in ("pytorch_lightning", "lightning.pytorch"):
        trainer = importlib.import_module(package).Trainer(logger=False, enable_checkpointing=False)
        found[package] = names.moved(trainer)
        del trainer.fit_loop.epoch_loop._skip_next_val
        found[f"{package}, one gone"] = names.moved(trainer)
    Path(job["result"]).write_text(json.dumps(found))


def public_classes(job: dict) -> None:
    """What `from spotrun.lightning import SpotrunCallback` gives when both packages are imported."""
    import lightning.pytorch
    import pytorch_lightning

    from spotrun.lightning import SpotrunCallback
    from spotrun.lightning.factory import for_lightning, for_pytorch_lightning

    os.environ[trainer_link.AGENT_FD] = "700"
    classes = [SpotrunCallback, *(type(factory()[0]) for factory in (for_pytorch_lightning, for_lightning))]
    bases = (pytorch_lightning.Callback, lightning.pytorch.Callback)
    Path(job["result"]).write_text(json.dumps([[issubclass(cls, base) for base in bases] for cls in classes]))


def _train(pl, job: dict) -> None:
    import random

    import numpy as np
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        Dataset,
        IterableDataset,
        RandomSampler,
        Sampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    samples, width = job.get("samples", 40), 6

    class Jitter:
        """A transform with a generator of its own."""

        def __init__(self):
            self.generator = torch.Generator().manual_seed(6)

        def __call__(self, x):
            return x + torch.rand(width, generator=self.generator)

    class Shuffled(Sampler):
        """A sampler with a generator of its own."""

        def __init__(self):
            self.generator = random.Random(4)

        def __len__(self):
            return samples

        def __iter__(self):
            return iter(self.generator.sample(range(samples), samples))

    class Noisy(Dataset):
        """Sample n is n's own vector plus noise from all three generators."""

        def __init__(self, count, noisy):
            self.x = torch.randn(count, width, generator=torch.Generator().manual_seed(count))
            self.noisy = noisy
            self.transforms = [Jitter()] if job.get("own_generators") else []
            self.generator = np.random.default_rng(5)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, index):
            x = self.x[index]
            if self.noisy:
                x = x + torch.rand(width) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1
            for transform in self.transforms:
                x = transform(x) + self.generator.random()
            return int(index), x.float()

    class Stream(IterableDataset):
        """The same samples in a shuffled order, without an index; each worker gives its share of them."""

        def __init__(self):
            self.inner = Noisy(samples, noisy=True)

        def order(self):
            worker = torch.utils.data.get_worker_info()
            order = list(range(samples))[worker.id if worker else 0 :: worker.num_workers if worker else 1]
            random.shuffle(order)
            rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), job.get("ranks", 1)
            return order[rank::ranks]  # all ranks have to shuffle alike

        def __iter__(self):
            for index in self.order():
                yield self.inner[index]

    class StatefulStream(Stream):
        """Goes on where it stopped, in the next epoch too, and cannot be read again from its beginning."""

        def __init__(self):
            super().__init__()
            self.left, self.epochs, self.inside = [], 0, False

        def __iter__(self):
            if not self.inside:
                self.left, self.epochs, self.inside = self.order(), self.epochs + 1, True
            while self.left:
                index = self.left.pop()
                n, x = self.inner[index]
                yield n, x + self.epochs
            self.inside = False

        def state_dict(self):
            return {"left": self.left, "epochs": self.epochs, "inside": self.inside}

        def load_state_dict(self, state):
            self.left, self.epochs, self.inside = list(state["left"]), state["epochs"], state["inside"]

    class Batches:
        """No DataLoader at all."""

        def __iter__(self):
            order = torch.randperm(samples).split(5)
            return (torch.utils.data.default_collate([dataset[n] for n in batch.tolist()]) for batch in order)

    dataset = Noisy(samples, noisy=True)

    def mixup(batch):
        ids, x = torch.utils.data.default_collate(batch)
        return ids, x + torch.rand(1) * 0.1 + random.random() * 0.1

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, width)
            )
            self.automatic_optimization = not job.get("manual")
            if job.get("torchmetric"):
                import torchmetrics

                self.running = torchmetrics.MeanMetric()
            if job.get("usual"):
                import torchmetrics

                self.spread = torchmetrics.MeanMetric()
            self.outputs, self.counts, self.last, self.given = [], defaultdict(int), deque(maxlen=3), set()
            self.total = torch.zeros(())
            self.noise = np.random.RandomState(9)
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def training_step(self, batch, batch_idx):
            if job.get("loader") in ("two", "min_size", "max_size"):
                parts = [part for part in batch.values() if part is not None]
                batch = [torch.cat(column) for column in zip(*parts, strict=True)]
            ids, x = batch
            self.seen += len(ids)
            if job.get("patient") and self.global_step:
                await_room(self.trainer)
            if job.get("writes") == "counted" and batch_idx in job["writes_in"]:
                with torch.no_grad():
                    self.net[0].weight.mul_(0.999)
            if job.get("writes") == "hidden" and batch_idx in job["writes_in"]:
                self.net[0].weight.data.mul_(0.999)
            if job.get("own_generators"):
                x = x + self.noise.rand()
            if job.get("usual"):
                self.outputs.append({"ids": ids, "mean": x.mean()})
                self.counts["train"] += 1
                self.last.append(batch_idx)
                self.given.update(ids.tolist())
                self.total += 1
            y = checkpoint(self.net, x, use_reentrant=False) if job.get("usual") else self.net(x)
            loss = nn.functional.mse_loss(y, x)
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            if batch_idx == 0:
                self.log("first_loss", loss, on_step=False, on_epoch=True)
            self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
            if "TensorBoardLogger" in job.get("loggers", ()):
                self.loggers[-1].experiment.add_scalars("curves", {"a": loss, "b": -loss}, self.global_step)
            if job.get("torchmetric"):
                self.running.update(loss)
                self.log("running", self.running, on_step=False, on_epoch=True)
            if job.get("manual") is True:
                optimizer = self.optimizers()
                self.manual_backward(loss / 2)
                if batch_idx % 2:
                    self.clip_gradients(optimizer, 1.0, "norm")
                    optimizer.step()
                    optimizer.zero_grad()
            if job.get("manual") == "two":
                for optimizer, schedule in zip(self.optimizers(), self.lr_schedulers(), strict=True):
                    with optimizer.toggle_model():
                        optimizer.zero_grad()
                        self.manual_backward(nn.functional.mse_loss(self.net(x), x))
                        self.clip_gradients(optimizer, 0.5, "value")
                        optimizer.step()
                    if batch_idx == 7:
                        schedule.step()
                return write("train", self.current_epoch, batch_idx, self.global_step, sorted(ids.tolist()), lrs())
            if job.get("nan_at") == self.global_step:
                loss = loss * float("nan")
            here = self.current_epoch, batch_idx, self.global_step
            write("train", *here, sorted(ids.tolist()), loss.item().hex(), lrs())
            time.sleep(job.get("slow_s", 0.003))  # the agent frees an arena meanwhile
            return loss

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            ids, x = batch
            assert not self.net.training
            loss = nn.functional.mse_loss(self.net(x + torch.rand(1)), x)
            self.log("val_loss", loss)
            if job.get("usual"):
                self.counts["validate"] += 1
                self.spread(loss)
                self.log("spread", self.spread, on_step=True, on_epoch=True)
            if not self.trainer.sanity_checking:
                here = self.current_epoch, batch_idx, self.global_step
                write("validate", *here, sorted(ids.tolist()), loss.item().hex())
                kill(f"validation:{self.current_epoch}:{self.trainer.fit_loop.batch_idx + 1}")
                time.sleep(job.get("slow_validation_s", 0))

        def on_train_epoch_end(self):
            if job.get("usual"):
                means = torch.stack([output["mean"] for output in self.outputs])
                self.log("mean", means.mean())
                write(
                    "outputs",
                    len(means),
                    means.sum().item().hex(),
                    self.counts,
                    list(self.last),
                    len(self.given),
                    self.total.item(),
                )
                self.given.clear()
                self.outputs.clear()

        def on_train_epoch_start(self):
            write("epoch starts", self.current_epoch, torch.rand(1).item(), random.random())

        def train_dataloader(self):
            """Another random part of the data each time, of which the epoch is part too."""
            order = torch.randperm(samples)[: samples - self.current_epoch].tolist()
            return DataLoader(torch.utils.data.Subset(dataset, order), 5, shuffle=True)

        def configure_optimizers(self):
            kind = job.get("scheduler", "onecycle")
            if kind == "two optimizers":
                parameters = list(self.parameters())
                optimizers = [torch.optim.AdamW(parameters[:2], lr=0.01), torch.optim.SGD(parameters[2:], 0.1, 0.9)]
                return optimizers, [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in optimizers]
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            if kind == "warmup":
                biases, weights = (
                    [p for p in self.parameters() if p.ndim == 1],
                    [p for p in self.parameters() if p.ndim > 1],
                )
                groups = [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}]
                optimizer = torch.optim.AdamW(groups, lr=0.01)
                warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 5)
                decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 19)
                schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [5])
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]
            if kind == "onecycle":
                steps = int(self.trainer.estimated_stepping_batches)
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]
            if kind == "epoch":
                return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)]
            config = {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
                "monitor": job.get("monitor", "val_loss"),
                "interval": job.get("interval", "epoch"),
                "strict": False,
            }
            return {"optimizer": optimizer, "lr_scheduler": config}

    class Trace(pl.Callback):
        lines = 0

        def state_dict(self):
            return {"lines": self.lines}

        def load_state_dict(self, state):
            text = trace_path.read_text().splitlines(keepends=True) if trace_path.exists() else []
            self.lines = min(len(text), state["lines"])
            trace_path.write_text("".join(text[: self.lines]))

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            kill(f"start:{trainer.current_epoch}:{batch_idx}")

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            kill(f"batch:{trainer.current_epoch}:{batch_idx + 1}")
            if job.get("kill") == f"error:{trainer.current_epoch}:{batch_idx + 1}":
                raise RuntimeError("a bad batch")
            if job.get("stop_at") == [trainer.current_epoch, batch_idx + 1]:
                trainer.should_stop = True

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                write("validated", trainer.current_epoch, trainer.global_step, metrics())

        def on_train_epoch_end(self, trainer, module):
            kill(f"epoch_end:{trainer.current_epoch}")

        def on_train_end(self, trainer, module):
            kill("train_end")

    class Last(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            write("epoch", trainer.current_epoch, trainer.global_step, metrics(), lrs(), trainer.should_stop)

    trace_path = Path(job["trace"])
    trace = Trace()

    def write(*parts):
        trace.lines += 1
        with open(trace_path, "a") as file:
            file.write(json.dumps(parts) + "\n")

    def kill(place):
        if place == job.get("kill"):
            time.sleep(job.get("kill_after_s", 0))
            os.kill(0 if job.get("ranks") else os.getpid(), signal.SIGKILL)  # 0: the whole process group

    def lrs():
        return [float(group["lr"]).hex() for optimizer in trainer.optimizers for group in optimizer.param_groups]

    def metrics():
        return {name: float(value).hex() for name, value in sorted(trainer.callback_metrics.items())}

    def train_loader():
        workers = job.get("workers", 0)
        options = {"num_workers": workers, "persistent_workers": bool(workers and job.get("persistent"))}
        kind = job.get("loader", "shuffle")
        if kind in ("stream", "stateful stream"):
            data = Stream() if kind == "stream" else StatefulStream()
            if job.get("torchdata"):
                from torchdata.stateful_dataloader import StatefulDataLoader

                return StatefulDataLoader(data, 5, collate_fn=mixup, **options)
            return DataLoader(data, 5, collate_fn=mixup, **options)
        if kind == "stream and list":
            return [DataLoader(Stream(), 5), DataLoader(dataset, 5)]
        if kind == "endless":
            return DataLoader(dataset, 5, sampler=itertools.cycle(range(samples)))
        if kind == "batches":
            return Batches()
        if job.get("torchdata"):
            from torchdata.stateful_dataloader import StatefulDataLoader

            return StatefulDataLoader(dataset, 5, shuffle=True, collate_fn=mixup, **options)
        if kind in ("two", "min_size", "max_size"):
            short = Noisy(15, noisy=True)
            loaders = {
                "a": DataLoader(dataset, 5, shuffle=True, **options),
                "b": DataLoader(short, 5, shuffle=True, **options),
                "c": DataLoader(short if kind != "two" else dataset, 5, shuffle=True),
            }
            combined = importlib.import_module(pl.__name__ + ".utilities.combined_loader").CombinedLoader
            return loaders if kind == "two" else combined(loaders, kind)
        if kind == "own sampler":
            return DataLoader(dataset, 5, sampler=Shuffled(), **options)
        if kind == "batch sampler":
            return DataLoader(
                dataset, batch_sampler=BatchSampler(SubsetRandomSampler(range(samples)), 5, False), **options
            )
        if kind == "weighted":
            sampler = WeightedRandomSampler(torch.arange(1.0, samples + 1), samples)
            return DataLoader(dataset, 5, sampler=sampler, **options)
        if kind == "generator":
            options |= {"generator": torch.Generator().manual_seed(3), "drop_last": True}
            return DataLoader(dataset, 5, shuffle=True, collate_fn=mixup, **options)
        if kind == "no batches":

            class Whole(Noisy):
                def __getitem__(self, index):
                    items = [super(Whole, self).__getitem__((index * 4 + n) % len(self)) for n in range(4)]
                    return torch.utils.data.default_collate(items)

                def __len__(self):
                    return samples // 4

            whole = Whole(samples, noisy=True)
            return DataLoader(whole, batch_size=None, sampler=RandomSampler(range(samples // 4)), **options)
        return DataLoader(dataset, 5, shuffle=True, collate_fn=mixup, **options)

    callbacks = [trace]
    if job.get("early_stopping"):
        callbacks.append(
            pl.callbacks.EarlyStopping("val_loss", patience=job["early_stopping"], min_delta=job.get("min_delta", 0.0))
        )
    if job.get("explicit"):
        from spotrun.lightning import SpotrunCallback

        callbacks.append(SpotrunCallback())
    if job.get("checkpoints"):
        callbacks.append(
            pl.callbacks.ModelCheckpoint(trace_path.parent / "checkpoints", monitor="val_loss", save_top_k=2)
        )
    if job.get("accumulation"):
        scheduling = {int(epoch): batches for epoch, batches in job["accumulation"].items()}
        callbacks.append(pl.callbacks.GradientAccumulationScheduler(scheduling))
    if job.get("exception_checkpoint"):
        callbacks.append(pl.callbacks.OnExceptionCheckpoint(trace_path.parent))
    callbacks += [getattr(pl.callbacks, name)(**options) for name, options in job.get("callbacks", {}).items()]
    callbacks.append(Last())

    pl.seed_everything(job.get("seed", 1), verbose=False)
    model = Model()
    checkpointing = bool(job.get("checkpoints") or job.get("exception_checkpoint"))
    options = {"max_epochs": 3, "enable_checkpointing": checkpointing} | job.get("trainer", {})
    folder = trace_path.parent / "logs"
    if "logs_max_bytes" in job:
        importlib.import_module("spotrun.lightning.connectors.logs").CARRIED_MAX_BYTES = job["logs_max_bytes"]
    if "strategy" in job:
        options["strategy"] = getattr(pl.strategies, job["strategy"])()
    if "slow_events_s" in job:
        slow_down(importlib.import_module("tensorboardX.event_file_writer").EventsWriter, job["slow_events_s"])
    loggers = [logger(pl, folder, name) for name in job.get("loggers", ())]
    trainer = pl.Trainer(
        logger=loggers,
        log_every_n_steps=2,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )
    other = pl.Trainer(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
    val_loader = DataLoader(Noisy(11, noisy=True), 4, num_workers=job.get("val_workers", 0))
    if job.get("validation_stream"):
        workers = job.get("val_workers", 0)
        data = {"stream": Stream, "stateful stream": StatefulStream}[job["validation_stream"]]()
        val_loader = DataLoader(data, 5, num_workers=workers, persistent_workers=workers > 0)
    if job.get("validate_first"):
        other.validate(model, val_loader, verbose=False)

    class Data(pl.LightningDataModule):
        """Counts the times it was asked for its data, and keeps the count in checkpoints."""

        asked = 0

        def train_dataloader(self):
            return train_loader()

        def val_dataloader(self):
            self.asked += 1
            return [val_loader, DataLoader(Noisy(7, noisy=True), 4)]

        def state_dict(self):
            return {"asked": self.asked}

        def load_state_dict(self, state):
            self.asked = state["asked"]

    if job.get("usual"):
        trainer.fit(model, datamodule=Data())
    else:
        loader = None if job.get("loader") == "of the module" else train_loader()
        trainer.fit(model, loader, val_loader, ckpt_path=job.get("ckpt_path"))
    if job.get("second_fit"):
        other.fit(model, train_loader())
    other.validate(model, val_loader, verbose=False)

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    optimizer = hashlib.sha256()
    for values in [values for one in trainer.optimizers for values in one.state_dict()["state"].values()]:
        for name, tensor in values.items():
            optimizer.update(name.encode() + (b"" if tensor is None else tensor.numpy().tobytes()))
    result = {
        "weights": digest.hexdigest(),
        "optimizer": optimizer.hexdigest(),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": lrs(),
        "metrics": metrics(),
        "seen": model.seen.item(),
        "logs": logged(folder),
        "best": [float(cb.best_model_score).hex() for cb in trainer.checkpoint_callbacks if job.get("checkpoints")],
    }
    Path(job["result"]).write_text(json.dumps(result))


def logger(pl, folder: Path, name: str):
    if name != "MLFlowLogger":
        return getattr(pl.loggers, name)(folder, name=name)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # 3.7 and later ask for that
    return pl.loggers.MLFlowLogger(save_dir=folder / name)


def await_room(trainer) -> None:
    """Until the agent's arenas are there and one is free."""
    (callback,) = [each for each in trainer.callbacks if type(each).__name__ == "SpotrunCallback"]
    while not callback._run._agent.any_room():
        time.sleep(0.001)


def slow_down(writer, seconds: float) -> None:
    """Each event reaches its file so much later than it was logged."""
    write = writer.write_event
    writer.write_event = lambda self, event: (time.sleep(seconds), write(self, event))


def logged(folder: Path) -> dict:
    """What readers of the loggers' files see: CSV rows, TensorBoard's scalars in the order of steps, MLflow's runs."""
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.csv")}
    for version in {path.parent for path in folder.rglob("events.out.*")}:
        points = [point for path in version.glob("events.out.*") for point in scalars(path.read_bytes())]
        found[version.relative_to(folder).as_posix()] = sorted(points)
    for run, metrics in enumerate(folder.glob("MLFlowLogger/*/*/metrics")):
        for path in metrics.iterdir():
            found[f"MLflow {run} {path.name}"] = [line.split()[1:3] for line in path.read_text().splitlines()]
    return found


def scalars(records: bytes):
    """(tag, step, value) of an event file: u64 length | crc | event | crc, repeated."""
    from tensorboardX.proto.event_pb2 import Event

    while records:
        size = int.from_bytes(records[:8], "little")
        event = Event.FromString(records[12 : 12 + size])
        records = records[16 + size :]
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


if __name__ == "__main__":
    if sys.argv[1] == "--zygote":
        _serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        train(json.loads(Path(sys.argv[1]).read_text()))
