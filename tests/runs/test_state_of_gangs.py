"""The state of commands on several members: real agents, and programs that know nothing of spotrun."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_two_ranks_of_torchrun_end_like_two_bare_processes_although_member_1_was_lost(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    bare, ours, go = sandbox.folder / "bare", sandbox.folder / "ours", sandbox.folder / "go"
    bare.mkdir()
    ours.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(JOBS / "ddp_state.py")]
    subprocess.run([*command, str(bare / "ckpt"), str(bare)], check=True, timeout=WITHIN_S)
    job = sandbox.folder / "pair.yaml"
    job.write_text(
        f"name: pair\nworkdir: {JOBS}\nnum_nodes: 2\ncheckpoint: {{every: 30s}}\n"
        f"train:\n  run: exec {TORCHRUN} ddp_state.py ckpt {ours} {go}\n  state: [ckpt/]\n"
        "resources: {cloud: local, accelerators: 'V100:1'}\nlocal: {time_scale: 10, boot: 20s}\n"
    )
    launch = sandbox.start("launch", job, "-y")
    eventually(lambda: sandbox.store.exists() and list(sandbox.store.glob("pair-*/ledger/*")), WITHIN_S)
    eventually(lambda: sandbox.state("pair").latest_commit(), WITHIN_S)
    sandbox.call("chaos", "pair", "--member", "1.1", "--no-notice")
    eventually(lambda: len(sandbox.state("pair").attempts) == 2, WITHIN_S)
    go.touch()
    output, _ = launch.communicate(timeout=WITHIN_S)
    assert launch.returncode == 0, output
    digests = {path.read_text() for folder in (bare, ours) for path in folder.glob("rank-*")}
    assert len(digests) == 1, "both ranks of both trainings have the same model"
    (attempt,) = sandbox.state("pair").attempts.values()[1:]
    assert [(trainer.commit is not None, trainer.in_place) for trainer in attempt.trainers] == [(True, False)]
