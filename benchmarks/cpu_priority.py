"""
What training gains from an agent whose session stands behind it while a checkpoint is sent (agent/cpu_priority.py).

    python -m benchmarks.cpu_priority [--rounds 15] [--steps 600]

Training computes in a process per core, which wait for one another after each step, in a session of their own; an agent
in another session sends one checkpoint of 512 MB to a folder in memory meanwhile. In each round the same steps are done
three times in a drawn order: alone, with an agent as it is, and with one that stands behind. Printed are how many
seconds of training each checkpoint costs and after how long it is there: the median over the rounds, and from where to
where the middle half lies. The threads that send are nice in both cases: this is about the session.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles

from spotrun.agent.cpu_priority import Precedence
from spotrun.checkpoint.upload import discard, upload
from spotrun.store.local import LocalStore

IMAGE_BYTES = 512 << 20
STEP_BYTES = 8 << 20
MEMORY = "/dev/shm"  # noqa: S108
CONTEXT = multiprocessing.get_context("fork")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    rng = random.Random(0)
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "as it is": [], "behind": []}
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, uploader(Path(folder)) as agent:
        for _ in range(options.rounds):
            for beside in rng.sample(list(found), len(found)):
                found[beside].append(measured(options.steps, agent, beside))
    alone = [training_s for training_s, _ in found["alone"]]
    tell("training alone takes", alone, "s")
    for beside in ("as it is", "behind"):
        lost = [training_s - before_s for (training_s, _), before_s in zip(found[beside], alone, strict=True)]
        tell(f"a checkpoint by an agent {beside} costs", lost, "s of it")
        tell("  and is there after", [sent_s for _, sent_s in found[beside]], "s")
    pairs = zip(found["as it is"], found["behind"], strict=True)
    tell("training with one behind, by as it is:", [behind / usual for (usual, _), (behind, _) in pairs], "x")


def tell(what: str, figures: list[float], unit: str) -> None:
    low, _, high = quantiles(figures, n=4)
    print(f"{what} {median(figures):.3f} {unit} ({low:.3f} to {high:.3f})", flush=True)


def measured(steps: int, agent: Connection, beside: str) -> tuple[float, float]:
    """Seconds that training takes, and the agent to send."""
    if beside != "alone":
        agent.send(beside == "behind")
    began_s = time.monotonic()
    train(steps)
    training_s = time.monotonic() - began_s
    return training_s, agent.recv() if beside != "alone" else 0.0


def train(steps: int) -> None:
    """In sessions of their own, as trainers are; they share the processor as one."""
    cores = len(os.sched_getaffinity(0))
    barrier = CONTEXT.Barrier(cores)

    def rank() -> None:
        data = bytes(STEP_BYTES)
        for _ in range(steps):
            hashlib.sha256(data).digest()
            barrier.wait()

    def ranks() -> None:
        os.setsid()
        others = [CONTEXT.Process(target=rank) for _ in range(cores - 1)]
        for each in others:
            each.start()
        rank()
        for each in others:
            each.join()

    trainer = CONTEXT.Process(target=ranks)
    trainer.start()
    trainer.join()


@contextlib.contextmanager
def uploader(folder: Path) -> Iterator[Connection]:
    """Told whether to stand behind, it sends a checkpoint and answers how many seconds that took."""
    ours, theirs = CONTEXT.Pipe()

    def serve() -> None:
        os.setsid()
        precedence, store = Precedence(), LocalStore(folder)
        image = memoryview(os.urandom(1 << 20) * (IMAGE_BYTES >> 20))
        while True:
            stand(precedence, behind=theirs.recv())
            began_s = time.monotonic()
            upload(store, "image", image, {})
            theirs.send(time.monotonic() - began_s)
            stand(precedence, behind=False)
            discard(store, "image")

    agent = CONTEXT.Process(target=serve, daemon=True)
    agent.start()
    try:
        yield ours
    finally:
        agent.kill()
        agent.join()


def stand(precedence: Precedence, *, behind: bool) -> None:
    """The kernel lets a change through ten times a second, so one that came too early is repeated."""
    for _ in range(3):
        precedence.stand_behind(behind)
        time.sleep(0.11)


if __name__ == "__main__":
    main()
