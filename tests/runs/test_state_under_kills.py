"""A small number of the kills of `make battery NAME=state-folder`, and how little of a large state is sent again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotrun.agent.files import quiescence
from spotrun.agent.trainees.state_watch import CopyRequest
from spotrun.checkpoint.upload import Abandoned
from spotrun.folder.state_files import by_inode
from tests.support.memory_store import MemoryStore
from tests.support.repository import JOBS
from tests.support.sandbox import Sandbox
from tests.support.state_bench import StateRun


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiescence, "REST_MIN_S", 0.1)
    monkeypatch.setattr(quiescence, "REST_S", 0.1)


@pytest.mark.parametrize("program", ["pairs.py", "ledgers.py"], ids=["two files", "SQLite, in transactions"])
def test_a_program_that_checks_its_own_files_finds_no_mixture(tmp_path: Path, program: str) -> None:
    run = StateRun(tmp_path, MemoryStore())
    kept = 0
    for number in range(6):
        instance = run.instance()
        must_keep = number == 5 and not kept  # on a machine so busy that each copy so far came too late
        rest_s = 20.0 if must_keep else 0.7 if program == "pairs.py" else 1.6
        words = ["out", "100000", f"rests={rest_s}", "gap=0.03"] if program == "pairs.py" else ["out", str(rest_s)]
        instance.start([str(JOBS / program), *words])
        kept += instance.keep(1.0 + 0.2 * number, at_least=int(must_keep))
        assert "MIXTURE" not in instance.kill()
        instance.close()
    assert kept
    assert not run.history.state.voids


MAPS = """
import ctypes, os
fd = os.open("out/a", os.O_RDWR)
map = ctypes.CDLL(None).mmap
map.argtypes = [ctypes.c_long] * 6
map(0, 8192, 3, 1, fd, 0)
os.close(fd)
"""
HOLDS = {
    "open": ("f = open('out/a', 'r+b')", "out/a is open for writing in python"),
    "mapped": (MAPS, "out/a is mapped for writing in python"),
    "read": ("import mmap; f = open('out/a', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)", None),
    "renamed over": (
        "import os; f = open('out/a', 'r+b'); open('out/b', 'w').close(); os.replace('out/b', 'out/a')",
        None,
    ),
    "elsewhere": ("f = open('log', 'w')", None),
}


@pytest.mark.parametrize("how", HOLDS)
def test_process_that_may_write_to_the_state_is_found(tmp_path: Path, how: str) -> None:
    held, told = HOLDS[how]
    instance = StateRun(tmp_path, MemoryStore()).instance()
    (instance.work / "out/a").write_bytes(bytes(8192))
    instance.start(["-c", f"{held}\nprint(1, flush=True)\nimport time; time.sleep(99)"])
    assert instance.program is not None
    assert instance.program.stdout is not None
    instance.program.stdout.readline()
    writer = quiescence.writer_of(by_inode(instance.work, instance.watch.look().survey.files))
    assert told is None if writer is None else str(writer).startswith(str(told))
    instance.kill()
    assert quiescence.writer_of(by_inode(instance.work, instance.watch.look().survey.files)) is None
    instance.close()


def test_a_hundredth_of_a_state_is_sent_again(tmp_path: Path) -> None:
    run = StateRun(tmp_path, MemoryStore())
    instance = run.instance()
    for number in range(2000):
        where = instance.work / "out" / str(number % 20)
        where.mkdir(exist_ok=True)
        (where / f"{number}.bin").write_bytes(os.urandom(40_000))
    whole = instance.last()
    for number in range(0, 2000, 100):
        (instance.work / "out" / str(number % 20) / f"{number}.bin").write_bytes(os.urandom(40_000))
    again = instance.last()
    assert whole is not None
    assert again is not None
    assert (whole.files, again.files) == (2000, 2000)
    assert again.sent_bytes <= 0.02 * whole.size_bytes
    assert instance.last() is None, "nothing has changed"
    instance.close()
    there = {path.relative_to(instance.work): path.read_bytes() for path in instance.work.rglob("*.bin")}
    other = run.instance()
    assert {path.relative_to(other.work): path.read_bytes() for path in other.work.rglob("*.bin")} == there
    other.close()


def test_a_copy_from_before_a_restore_makes_no_commit(tmp_path: Path) -> None:
    """Its unchanged files are not those of the newest checkpoint any more."""
    run = StateRun(tmp_path, MemoryStore())
    instance = run.instance()
    (instance.work / "out/a").write_text("as stored")
    assert instance.last() is not None
    (instance.work / "out/b").write_text("new")
    instance.watch.want(CopyRequest(0, is_last=True))
    copy = instance.inbox.get()
    instance.files.begin(run.history.attempt, {})
    with pytest.raises(Abandoned):
        instance.commit(copy)
    instance.close()


def test_the_command_line_knows_what_has_no_steps(sandbox: Sandbox) -> None:
    job = sandbox.folder / "simulate.yaml"
    line = "mkdir -p out; echo 7 > out/n"
    job.write_text(
        f"name: simulate\ntrain: {{run: '{line}', state: [out/]}}\ncheckpoint: {{uri: '{sandbox.store}'}}\n"
        "local: {time_scale: 60, boot: 1s}\n"
    )
    assert "not compared: " in sandbox.ask("verify-resume", job, "--kills", "1", code=1)
    said = sandbox.call("launch", job, "-y")
    assert "starts it again from the beginning" not in said
    rows = sandbox.ask_json("checkpoints", "ls", "simulate")
    assert [(row["size_bytes"], row["files"]["files"], row["final"]) for row in rows] == [(0, 1, True)]
    assert "2 bytes" in sandbox.ask("checkpoints", "ls", "simulate")
    assert sandbox.ask_json("checkpoints", "verify", "simulate")["ok"]
    refused = sandbox.ask("checkpoints", "export", "simulate", sandbox.folder / "a.ckpt", code=2)
    assert "no training state to export" in refused
    sandbox.ask("fetch", "simulate", "--to", sandbox.folder / "got")
    assert (sandbox.folder / "got/out/n").read_text() == "7\n"
    assert sandbox.ask_json("status", "simulate")[0]["keeps_nothing"] is False


def test_command_without_a_state_gets_a_forecast_of_repeated_work(sandbox: Sandbox) -> None:
    job = sandbox.folder / "plain.yaml"
    job.write_text(f"name: plain\nrun: sleep 1\ncheckpoint: {{uri: '{sandbox.store}'}}\n")
    assert "train: {state: [out/]}" in sandbox.ask("launch", job, "--dry-run")
    said = sandbox.ask("plan", job, "--work", "4h", "--lifetimes", "2")
    assert "repeats 2d01h of work" in said.replace("\n", " ") or "of work" in said
    facts = sandbox.ask_json("plan", job, "--work", "4h", "--lifetimes", "2")
    assert facts["repeats"]["expected_rework_s"] == pytest.approx(178_552, rel=0.01)
    job.write_text(job.read_text() + "train: {state: [out/]}\n")
    assert sandbox.ask_json("plan", job, "--work", "4h", "--lifetimes", "2")["repeats"] is None
