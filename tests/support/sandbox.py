"""Runs of real jobs on the local cloud. Each test has a sandbox: a store, a local cloud and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotrun.errors import RunNotFound
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.runs.open_run import OpenRun, open_run
from spotrun.store.opening import open_store
from tests.support.called_spotrun import call
from tests.support.eventually import eventually
from tests.support.repository import JOBS

WITHIN_S = 240


class Sandbox:
    """
    A store (the folder `store`, or the bucket `uri`), a local cloud, and calls of `spotrun` in processes. The folders
    of its instances are below `machines`.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, uri: str = "") -> None:
        self.folder = folder
        self.store = folder / "runs"
        self.uri = uri or str(self.store)
        self.trace = folder / "trace.txt"
        self.machines = folder
        self._children: list[subprocess.Popen[str]] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(folder / "cloud"))
        monkeypatch.setenv("SPOTRUN_STORE", self.uri)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def job(
        self,
        name: str,
        *,
        args: str = "",
        extra: str = "",
        script: str = "",
        scale: float = 30,
        program: str = "quick.py",
    ) -> Path:
        """Write a job file for `program` of tests/support/jobs. Each line of `script` is a step of the market."""
        steps = "".join(f"\n    - {line}" for line in script.strip().splitlines())
        rest = "resources: {cloud: local, accelerators: 'V100:1'}\n"
        rest += f"local:\n  time_scale: {scale}\n  boot: 20s\n" + (f"  script:{steps}\n" if steps else "") + extra
        return self.job_file(name, rest, args, program)

    def job_file(self, name: str, rest: str, args: str, program: str = "quick.py", envs: str = "") -> Path:
        """A job for `program`, whose file ends with `rest`."""
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"name: {name}\nworkdir: {JOBS}\ntrain: {{script: {program}, args: [{args}]}}\n"
            f"envs: {{TRACE: '{self.trace}'{envs}}}\n"
            f"checkpoint: {{uri: '{self.uri}', every: 30s}}\n" + rest
        )
        return path

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start `spotrun …` in a process of its own."""
        command = [sys.executable, "-m", "spotrun", *map(str, words)]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self._children.append(child)
        return child

    def call(self, *words: object, code: int = 0, within_s: float = WITHIN_S) -> str:
        """Run `spotrun …`, which must end with `code`. Returns what it printed."""
        child = self.start(*words)
        output, _ = child.communicate(timeout=within_s)
        assert child.returncode == code, f"spotrun {words} gave {child.returncode}:\n{output}"
        return output

    def ask(self, *words: object, code: int = 0) -> str:
        """
        The same in this process, which saves a second of imports. For verbs that start nothing and that no signal
        reaches.
        """
        with self._monkeypatch.context() as patch:
            said = call(patch, *map(str, words))
        assert said.code == code, f"spotrun {words} gave {said.code}:\n{said.out}{said.err}"
        return said.out + said.err

    def call_json(self, *words: object) -> Any:
        return json.loads(self.call(*words, "--json"))

    def ask_json(self, *words: object) -> Any:
        return json.loads(self.ask(*words, "--json"))

    def run(self, name: str) -> OpenRun:
        return open_run(name, self.uri)

    def state(self, name: str) -> RunState:
        return self.run(name).ledger.refresh()

    def trace_by_step(self) -> dict[int, set[str]]:
        """All lines that trainers wrote, by step. A step that was done twice has one line only if both are equal."""
        lines: dict[int, set[str]] = {}
        for line in self.trace.read_text().splitlines():
            lines.setdefault(int(line.split()[0]), set()).add(line)
        return lines

    def last_step(self) -> int:
        """The newest step that a trainer wrote; -1 before the first."""
        return max(self.trace_by_step(), default=-1) if self.trace.exists() else -1

    def trains_on(self, runner: subprocess.Popen[str], before: str = "", steps: int = 20, zone: str = "") -> str:
        """The instance that trains in that zone or any, another one than `before`, once it has done some steps."""

        def elsewhere() -> bool:
            state = run.ledger.refresh()  # of one object, which reads what is new
            current = state.current
            if current is None or current.instance_id == before or not current.trainers:
                return False
            return zone in ("", state.launch_of(current).intent.offering.zone)

        def comes(what: Callable[[], bool]) -> None:
            eventually(lambda: what() or runner.poll() is not None, within_s=WITHIN_S)

        comes(lambda: self.last_step() >= 0)
        run = self.run("stormy")
        comes(elsewhere)
        done = self.steps_done()
        comes(lambda: self.steps_done() >= done + steps)
        assert runner.poll() is None, runner.communicate()[0]
        current = self.state("stormy").current
        assert current is not None
        return current.instance_id

    def steps_done(self) -> int:
        return self.last_step()

    def hurry(self) -> None:
        """Trainers of tiny.py and quick.py pause no more between their steps: what is left to train is soon done."""
        Path(f"{self.trace}.hurry").touch()

    def left_running(self) -> list[int]:
        """Processes of this sandbox's instances that still run."""
        folder = str(self.machines)
        return [
            process for process in processes_now() if folder in environment_of(process).get("SPOTRUN_INSTANCE_DIR", "")
        ]

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            if child.stdout is not None and not child.stdout.closed:
                child.communicate()
        for name in self._runs():
            with contextlib.suppress(RunNotFound):  # SeaweedFS lists the folder of a run that was removed
                run = self.run(name)
                for instance in run.driver.instances(run.created.uid):
                    run.driver.terminate(instance.instance_id)

    def _runs(self) -> list[str]:
        if self.uri != str(self.store):
            return [name for name in open_store(self.uri).folders() if "-" in name]
        return [path.name for path in self.store.glob("*-*") if path.is_dir()]


def processes_now() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def environment_of(pid: int) -> Mapping[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def final_tensors(run: OpenRun) -> dict[int, bytes]:
    """The bytes of every tensor in a completed run's final checkpoint: weights, optimizer, counters."""
    from spotrun.checkpoint import layout
    from tests.support.checkpoint_entries import restored

    state = run.ledger.refresh()
    assert state.terminal is not None
    assert state.terminal.final_commit is not None
    commit = state.commit(state.terminal.final_commit)
    assert commit is not None
    image = restored(run.store, commit)
    header = layout.decode_header(image)
    tensors = {}
    for number, tensor in enumerate(header.tensors):
        start = header.data_start + tensor.offset
        tensors[number] = np.frombuffer(image[start : start + tensor.size_bytes], np.uint8).tobytes()
    return tensors


def kinds(state_or_run: OpenRun) -> list[str]:
    return [ev.kind(entry.event) for entry in state_or_run.ledger.entries]
