"""
Snapshots that are copied while training goes on: which tensors may be, and what happens where a script writes to them.

That the results are the same bits is shown for every training of test_lightning_exact.py, whose snapshots all overlap.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from spotrun.checkpoint.snapshot import ImagePlan, Piece, plan_image, read_image
from spotrun.checkpoint.staging import Stager
from spotrun.trainer_link import SnapshotTaken
from spotrun.training import overlap
from spotrun.training.overlap import Overlap
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

PATIENT = {"patient": True}
"""From the second step on there is always a free arena."""
GAVE_UP = "something writes to weights between optimizer steps"


@pytest.mark.parametrize(
    ("job", "overlaps", "gives_up"),
    [
        ({}, True, False),
        pytest.param({"overlap_from": (1 << 40, 0)}, False, False, marks=pytest.mark.nightly),
        ({"overlap_from": (0, 1 << 40)}, False, False),
        ({"manual": True, "scheduler": "epoch"}, False, False),
        pytest.param({"writes": "counted", "writes_in": range(8)}, False, True, marks=pytest.mark.nightly),
        ({"writes": "hidden", "writes_in": range(8)}, False, True),
        ({"writes": "counted", "writes_in": [2]}, False, True),
    ],
    ids=["overlaps", "small", "small pieces", "manual", "writes", "writes through .data", "writes once"],
)
def test_snapshot_counts_once_no_write_can_have_reached_it(
    zygote: Zygote, tmp_path: Path, job: dict[str, object], overlaps: bool, gives_up: bool
) -> None:
    """Killed at the start of the fifth batch: the fourth's snapshot is being copied then, or was copied at once."""
    job = PATIENT | {key: list(value) if isinstance(value, range | tuple) else value for key, value in job.items()}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "killed", every_steps=1, arenas=8)
    assert agent.attempt(kill="start:0:4") == "killed"
    assert agent.snapshot is not None
    assert agent.snapshot.batch == (3 if overlaps else 4)
    assert (GAVE_UP in agent.log.read_text()) is gives_up
    assert agent.run() == straight


def test_overwritten_snapshot_is_taken_again(zygote: Zygote, tmp_path: Path) -> None:
    job = PATIENT | {"writes": "counted", "writes_in": [5]}
    agent = Agent(zygote, job, tmp_path, every_steps=1, arenas=8)
    assert agent.attempt(kill="start:0:7") == "killed"
    steps = [message.step for message in agent.told(SnapshotTaken)]
    assert steps[-3:] == [4, 6, 7], "the fifth was thrown away: batch 5 writes before its optimizer does"


def test_a_drain_ends_in_a_whole_snapshot(zygote: Zygote, tmp_path: Path) -> None:
    straight = Agent(zygote, PATIENT, tmp_path / "straight").run()

    def drain(agent: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken) and message.step == 3:
            agent.drain()
        if isinstance(message, SnapshotTaken) and message.final:
            agent.kill()

    agent = Agent(zygote, PATIENT, tmp_path / "drained", every_steps=1, on_message=drain)
    assert agent.attempt() == "killed"
    agent.on_message = None
    assert agent.run() == straight


# --- the parts


def _framework(module: nn.Module) -> SimpleNamespace:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    sum(parameter.sum() for parameter in module.parameters()).backward()
    optimizer.step()
    return SimpleNamespace(steps_optimizers=True, optimizers=[optimizer])


def test_only_optimizer_state_is_copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "FROM_BYTES", 0)
    monkeypatch.setattr(overlap, "PIECE_FROM_BYTES", 1000)
    module = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(300))
    framework = _framework(module)
    state = {
        "weights": module.state_dict(),
        "optimizer": framework.optimizers[0].state_dict(),
        "other": torch.ones(900),
    }
    owned = [module[0].weight, module[1].weight, module[1].bias]
    moments = [
        framework.optimizers[0].state[parameter][name] for parameter in owned for name in ("exp_avg", "exp_avg_sq")
    ]
    found = Overlap(framework).pieces(plan_image(state, {}))
    assert {piece.tensor.data_ptr() for piece in found} == {tensor.data_ptr() for tensor in [*owned, *moments]}


def test_a_weight_whose_memory_is_not_its_value_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "FROM_BYTES", 0)
    monkeypatch.setattr(overlap, "PIECE_FROM_BYTES", 0)
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(torch.randn(4, 8)[:, ::2])
    framework = _framework(module)
    found = Overlap(framework).pieces(plan_image(dict(module.named_parameters()), {}))
    assert [piece.tensor.data_ptr() for piece in found] == [module.bias.data_ptr()]


@pytest.fixture
def stager() -> Iterator[Stager]:
    stager = Stager()
    fd = os.memfd_create("arenas")
    os.ftruncate(fd, 2 << 20)
    stager.adopt(fd, 1 << 20, (0, 1 << 20), 0)
    stager.free(1)
    yield stager
    stager.close()


def _planned(tensor: Tensor) -> tuple[ImagePlan, list[Piece]]:
    plan = plan_image({"x": tensor, "y": torch.arange(5)}, {"step": 3})
    return plan, [piece for piece in plan.pieces if piece.tensor.data_ptr() == tensor.data_ptr()]


def _image(stager: Stager, arena: int) -> dict[str, Tensor]:
    state, meta = read_image(memoryview(bytearray(stager._arenas[arena].numpy().tobytes())))
    assert meta == {"step": 3}
    return dict(state)


def test_a_copy_begins_when_the_model_is_about_to_compute_and_not_before(stager: Stager) -> None:
    tensor = torch.randn(5000)
    plan, later = _planned(tensor)
    staged = stager.stage(plan, later)
    stager._copier.submit(int).result(60)  # the thread has nothing left to do
    assert not staged.done()
    assert not _image(stager, staged.arena)["x"].any()
    staged.begin()
    stager._copier.submit(int).result(60)
    assert staged.done()
    assert torch.equal(_image(stager, staged.arena)["x"], tensor)


def test_memory_that_an_arena_may_grow_by_is_none_until_it_does() -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 64 << 20)
    stager = Stager()
    stager.adopt(os.dup(fd), 64 << 20, (0,), 0, used_bytes=1 << 20)
    try:
        assert 1 << 20 <= os.fstat(fd).st_blocks * 512 < 4 << 20
    finally:
        stager.close()
        os.close(fd)


def test_deferred_copies_are_there_after_the_wait(stager: Stager) -> None:
    tensor, may_copy = torch.randn(5000), threading.Event()
    plan, later = _planned(tensor)
    stager._copier.submit(may_copy.wait, 60)  # the thread is busy for as long as we like
    try:
        staged = stager.stage(plan, later)
        staged.begin()
        assert not staged.done()
        early = _image(stager, staged.arena)
    finally:
        may_copy.set()
    assert torch.equal(early["y"], torch.arange(5))
    assert not early["x"].any()
    staged.wait()
    assert staged.done()
    assert torch.equal(_image(stager, staged.arena)["x"], tensor)


@pytest.mark.parametrize("place", [0, 1], ids=["aligned to words", "between words"])
def test_a_probe_is_whole_at_once_and_sees_every_bit_that_changed(stager: Stager, place: int) -> None:
    tensor = torch.randn(5001)[place : place + 5000]
    tensor[7] = float("nan")
    plan, later = _planned(tensor)
    staged = stager.stage(plan, later, overlapped=False)
    assert staged.done()
    assert not staged.changed()
    tensor.data[4999] = -tensor[4999]
    assert staged.changed()


def test_an_arena_that_was_given_back_is_used_again(stager: Stager) -> None:
    plan, later = _planned(torch.randn(100))
    first, second = stager.stage(plan, later), stager.stage(plan, later)
    assert not stager.ready()
    first.wait()
    stager.free(first.arena)
    assert stager.ready(plan.size_bytes)
    assert stager.stage(plan).arena == first.arena != second.arena
