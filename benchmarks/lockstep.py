"""Trainings that stand still after each block of steps until the benchmark releases them: so two can take turns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spotrun.trainer_link import SnapshotTaken
from spotrun.wire import unix_path
from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Spawner

COMES_WITHIN_S = 300.0


class Took(NamedTuple):
    """Seconds that a block took, by the clock and of the processor for the thread that trains."""

    length_s: float
    cpu_s: float


class Silent(Agent):
    """A training that waits for its turn says nothing."""

    silence_max_s = COMES_WITHIN_S


class Training:
    """
    A script of benchmarks/framework_scripts.py in a process of its own, under an agent that stores nothing or alone.
    """

    def __init__(self, folder: Path, script: str, words: list[int], every_steps: int | None) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "log"
        path, door = folder / "script.py", str(folder / "door")
        path.write_text(script)
        args = [door, *map(str, words)]
        job = {"script": str(path), "args": args}
        self._agent = Silent(Spawner(folder), job, folder, every_steps=every_steps) if every_steps else None
        self._command = [sys.executable, str(path), *args]
        with contextlib.closing(unix_path.listen(door)) as listening:
            self._thread = threading.Thread(target=self._train)
            self._thread.start()
            listening.settimeout(COMES_WITHIN_S)
            self._link = listening.accept()[0].makefile("rw")
        self._took(self._link.readline())

    def _train(self) -> None:
        if self._agent is not None:
            self._agent.attempt()
            return
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log.open("w") as log:
            subprocess.run(self._command, env=environment, stdout=log, stderr=log, check=False)

    def block(self) -> Took:
        """Train one more."""
        return self._took(self._goes_on())

    def _goes_on(self) -> str:
        """Release the training and return its line at the end of the next block; "" if the training has ended."""
        print(file=self._link, flush=True)
        return self._link.readline()

    def _took(self, line: str) -> Took:
        if not line:
            sys.exit(f"error: the training has ended:\n{self._log.read_text()[-2000:]}")
        return Took(*json.loads(line))

    def ends(self) -> list[SnapshotTaken]:
        """Train to the end, and say which snapshots there were."""
        while self._goes_on():
            pass
        self._thread.join()
        return [] if self._agent is None else self._agent.told(SnapshotTaken)

    def close(self) -> None:
        """End it where it stands."""
        self._link.close()
        self._thread.join()


@contextlib.contextmanager
def running(folder: Path, script: str, words: list[int], every_steps: int | None) -> Iterator[Training]:
    training = Training(folder, script, words, every_steps)
    try:
        yield training
    finally:
        training.close()
