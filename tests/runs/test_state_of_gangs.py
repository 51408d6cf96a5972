"""The state of commands on several members: real agents, and programs that know nothing of spotrun."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.checkpoint.outputs import listing_at
from spotrun.clouds.local.processes import carrying
from spotrun.folder.status_objects import AgentStatus, agent_key, read_status
from spotrun.run import events as ev
from spotrun.run.gang import MemberName
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.repository import JOBS
from tests.support.sandbox import Sandbox

PYTHON = shlex.quote(sys.executable)
TORCHRUN = (
    f"{PYTHON} -m torch.distributed.run --nnodes $SPOTRUN_NUM_NODES --node-rank $SPOTRUN_NODE_RANK "
    "--nproc-per-node 1 --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
WITHIN_S = 120.0


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_REST_FLOOR_S", "0.15")


def test_torchrun_on_each_member_meets_the_others(tmp_path: Path) -> None:
    says = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)"
    run = AgentRun(tmp_path, train={"run": f"exec {TORCHRUN} says.py"}, files={"says.py": says}, num_nodes=2)
    try:
        nodes = run.launch_members(2)
        for node in nodes:
            node.powers_off(WITHIN_S)
        run.wait_for(ev.RunCompleted)
        for rank, node in enumerate(nodes):
            assert f"rank {rank} of 2" in run.log(node)
    finally:
        run.close()


@pytest.mark.nightly
@pytest.mark.pattern(
    "exact",
    "commands",
    of="script",
    texts={
        "ddp_state.py": "DDP on several nodes: rank 0 saves in `state`",
        "sharded_state.py dcp": "FSDP2 on several nodes: DCP saves in a folder of `state`",
        "sharded_state.py own": "on several nodes each rank saves a file of its own in `state`",
    },
)
@pytest.mark.parametrize(
    ("script", "lost"),
    [("ddp_state.py", 1), ("sharded_state.py dcp", 1), ("sharded_state.py dcp", 0), ("sharded_state.py own", 1)],
)
def test_two_ranks_of_torchrun_end_like_two_bare_processes_although_a_member_was_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, script: str, lost: int
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    bare, ours, go = sandbox.folder / "bare", sandbox.folder / "ours", sandbox.folder / "go"
    bare.mkdir()
    ours.mkdir()
    name, *kind = script.split()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(JOBS / name), *kind]
    subprocess.run([*command, str(bare / "ckpt"), str(bare)], check=True, timeout=WITHIN_S)
    job = sandbox.folder / "pair.yaml"
    job.write_text(
        f"name: pair\nworkdir: {JOBS}\nnum_nodes: 2\ncheckpoint: {{every: 30s}}\n"
        f"train:\n  run: exec {TORCHRUN} {script} ckpt {ours} {go}\n  state: [ckpt/]\n"
        "resources: {cloud: local, accelerators: 'V100:1'}\nlocal: {time_scale: 10, boot: 20s}\n"
    )
    launch = sandbox.start("launch", job, "-y")
    eventually(lambda: sandbox.store.exists() and list(sandbox.store.glob("pair-*/ledger/*0.json")), WITHIN_S)
    eventually(lambda: sandbox.state("pair").latest_commit(), WITHIN_S)
    sandbox.call("chaos", "pair", "--member", f"1.{lost}", "--no-notice")
    eventually(lambda: len(sandbox.state("pair").attempts) == 2, WITHIN_S)
    go.touch()
    output, _ = launch.communicate(timeout=WITHIN_S)
    assert launch.returncode == 0, output
    of_bare, of_ours = ([(folder / f"rank-{rank}").read_text() for rank in (0, 1)] for folder in (bare, ours))
    assert of_ours == of_bare
    (attempt,) = sandbox.state("pair").attempts.values()[1:]
    assert [(trainer.commit is not None, trainer.in_place) for trainer in attempt.trainers] == [(True, False)]


# -- commands of the shell, each step of which a test lets pass


class Gated:
    """A gang whose members run the same command. They wait at `gate NAME` until the test opens that."""

    def __init__(self, folder: Path, size: int, command: str, *state: str, every: str = "1h") -> None:
        self.gates = folder / "gates"
        self.gates.mkdir()
        wait = f"GATES={self.gates}; gate() {{ until test -e $GATES/$1; do sleep 0.05; done; }}\n"
        train = {"run": f"{wait}echo begins at $(cat out/n 2>&1)\n{command}", "state": list(state or ("out/",))}
        self.run = AgentRun(folder, train=train, num_nodes=size, checkpoint={"every": every})

    def open(self, *names: str) -> None:
        for name in names:
            (self.gates / name).touch()

    def saved(self) -> ev.CheckpointCommitted:
        return self.run.wait_for(ev.CheckpointCommitted, within_s=WITHIN_S)

    def asks(self) -> bool:
        """Return whether the lead asks the others about their state."""
        status = read_status(self.run.store, agent_key(1), AgentStatus)
        return status is not None and status.state_asked is not None

    def taken(self, node: Node) -> None:
        node.is_taken()
        self.run.lost(node)

    def begins(self, node: Node) -> list[str]:
        return re.findall(r"begins at (.*)", self.run.log(node))

    def refused(self, *nodes: Node) -> str:
        """Why the attempt has ended, without a checkpoint."""
        ended = self.run.wait_for(ev.AttemptEnded, within_s=WITHIN_S)
        for node in nodes:
            node.powers_off(WITHIN_S)
        assert ended.cause is ev.Cause.USER_ERROR
        assert self.run.seen(ev.CheckpointCommitted) == []
        return ended.detail

    def completes(self, *nodes: Node) -> None:
        for node in nodes:
            node.powers_off(WITHIN_S)
        self.run.wait_for(ev.RunCompleted)
        assert not self.run.state.voids


Gang = Callable[..., Gated]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    gangs: list[Gated] = []

    def begin(*words: Any, **more: Any) -> Gated:
        folder = tmp_path / str(len(gangs))
        folder.mkdir()
        gangs.append(Gated(folder, *words, **more))
        return gangs[-1]

    yield begin
    for each in gangs:
        each.run.close()


COUNTS = "for n in 1 2 3; do gate $n; mkdir -p out; echo $n > out/n; echo wrote $n; done"


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_members_begin_with_one_commit_and_not_with_what_they_have_written_since(gang: Gang, victim: int) -> None:
    """Each of them saves on its own disk, as many trainings do that start on several nodes."""
    run = gang(3, COUNTS)
    nodes = run.run.launch_members(3)
    run.open("1")
    run.saved()
    run.open("2")
    eventually(lambda: all("wrote 2" in run.run.log(node) for node in nodes), WITHIN_S)
    run.taken(nodes.pop(victim))
    nodes += run.run.launch_members(1)
    run.open("3")
    run.completes(*nodes)
    assert [run.begins(node)[-1] for node in nodes] == ["1", "1", "1"]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_all_members_begin_with_one_commit_after_the_command_of_one_has_failed(gang: Gang, rank: int) -> None:
    """Alone, a command that has failed once goes on with its files as they stand."""
    fails = f"test $SPOTRUN_NODE_RANK != {rank} || test -e $FAILED || {{ touch $FAILED; exit 3; }}"
    run = gang(2, f"FAILED=$GATES/failed; {COUNTS}; gate fail; {fails}; gate end")
    nodes = run.run.launch_members(2)
    run.open("1")
    run.saved()
    run.open("2", "3", "fail")
    eventually(lambda: len(run.run.seen(ev.ResumedFrom)) == 2, WITHIN_S)
    run.open("end")
    run.completes(*nodes)
    assert [run.begins(node)[1:] for node in nodes] == [["1"], ["1"]]
    assert [event.in_place for event in run.run.seen(ev.ResumedFrom)] == [False, False]


def test_all_members_begin_with_the_commit_before_one_whose_files_another_member_cannot_read(gang: Gang) -> None:
    """The lead needs nothing of the store: it has the files still."""
    run = gang(2, f"{COUNTS}; gate end", every="30s")
    first, second = run.run.launch_members(2)
    for count in (1, 2):
        run.open(str(count))
        newest = run.run.wait_for(ev.CheckpointCommitted, count, within_s=WITHIN_S)
    assert newest.files is not None
    listing = listing_at(run.run.store, newest.files.key, newest.files.blake3, 1.0)
    (piece,) = [piece for file in listing.files for piece in file.pieces]
    run.run.store.delete(piece.key)
    run.taken(second)
    (third,) = run.run.launch_members(1)
    last = run.run.wait_for(ev.ResumedFrom, 3, within_s=WITHIN_S)
    assert last.skipped == (run.run.state.commits[1].number,)
    run.open("3", "end")
    run.completes(first, third)
    assert [run.begins(node)[-1] for node in (first, third)] == ["1", "1"]
    (exited,) = run.run.seen(ev.TrainerExited)
    assert "CheckpointDamaged" in exited.detail


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_each_rank_begins_with_its_own_files_and_those_that_only_other_ranks_have(gang: Gang, victim: int) -> None:
    """Shards with a name of their own, as DCP writes them, and of one name and size on all members."""
    writes = "mkdir -p out; echo $SPOTRUN_NODE_RANK$n | tee out/shard > out/part-$SPOTRUN_NODE_RANK; echo wrote $n"
    run = gang(2, f"grep . /dev/null out/*; for n in 1 2; do gate $n; {writes}; done; gate end")
    nodes = run.run.launch_members(2)
    run.open("1")
    first = run.saved()
    assert first.files is not None
    assert first.files.files == 4
    run.open("2")
    eventually(lambda: all("wrote 2" in run.run.log(node) for node in nodes), WITHIN_S)
    run.taken(nodes.pop(victim))
    nodes += run.run.launch_members(1)
    run.run.wait_for(ev.ResumedFrom, 2, within_s=WITHIN_S)
    eventually(lambda: [run.run.log(node).count("wrote 2") for node in nodes] == [2, 1], WITHIN_S)
    began = [re.findall(r"^out/(.*)$", run.run.log(node).rpartition("begins")[2], re.MULTILINE) for node in nodes]
    assert began == [["part-0:01", "part-1:11", f"shard:{rank}1"] for rank in (0, 1)]
    run.open("end")
    run.completes(*nodes)
    last = run.run.seen(ev.CheckpointCommitted)[-1].files
    assert last is not None
    listing = listing_at(run.run.store, last.key, last.blake3, 1.0)
    assert [file.path for file in listing.files] == ["out/part-0", "out/shard"]
    assert [(part.rank, [file.path for file in part.files]) for part in listing.others] == [
        (1, ["out/part-1", "out/shard"])
    ]


def test_the_last_checkpoint_is_not_made_without_the_answer_of_a_member_that_freezes(gang: Gang) -> None:
    run = gang(2, "test $SPOTRUN_NODE_RANK = 1 || { mkdir -p out; echo 1 > out/n; }; gate end; echo 2 > out/n")
    first, second = run.run.launch_members(2)
    run.saved()
    for process in carrying("SPOTRUN_INSTANCE_ID", second.instance_id):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(process.pid, signal.SIGSTOP)
    run.open("end")
    ended = run.run.wait_for(ev.AttemptEnded, within_s=WITHIN_S)
    assert ended.missing == (MemberName(1, 1),)
    assert len(run.run.seen(ev.CheckpointCommitted)) == 1
    run.taken(second)
    (third,) = run.run.launch_members(1)
    run.completes(first, third)


def test_a_checkpoint_is_made_once_other_members_have_no_other_files_of_the_state(gang: Gang) -> None:
    """A file that is no state does not count, nor does one that is gone soon after."""
    late = "test $SPOTRUN_NODE_RANK = 0 || { echo x > out/late; gate 2; rm out/late; }"
    run = gang(2, f"gate 1; mkdir -p out; echo 1 > out/n; {late}; echo $$ > out/pid; gate end", "out/", "!out/pid")
    nodes = run.run.launch_members(2)
    run.open("1")
    eventually(run.asks, WITHIN_S)
    run.open("2")
    run.saved()
    run.open("end")
    run.completes(*nodes)
