"""`spotrun checkpoints`: out as Lightning's own files, in as the beginning of a run, and away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from spotrun.checkpoint import pruning
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.lightning.checkpoint_file import export, read_facts
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.spec.model import CheckpointSpec
from tests.support.checkpoint_images import image_bytes
from tests.support.eventually import eventually
from tests.support.repository import JOBS
from tests.support.sandbox import Sandbox

STEPS = 24
WIDTH = 64
READ_BY_LIGHTNING = """
import sys
import fast_imports
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader
from tiny import Net, Noisy

path, width, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = Net.load_from_checkpoint(path, width=width, step_s=0.0)
saved = torch.load(path, weights_only=True)
assert all(torch.equal(value, saved["state_dict"][name]) for name, value in model.state_dict().items())
trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, num_sanity_val_steps=0)
train, judged = DataLoader(Noisy(96), batch_size=8, shuffle=True), DataLoader(Noisy(16), batch_size=8)
trainer.fit(model, train, judged, ckpt_path=path)
assert trainer.global_step == steps, trainer.global_step
assert len(trainer.optimizers[0].state) == len(list(model.parameters()))
"""


def job(
    sandbox: Sandbox, name: str, *, epochs: int = 2, step_s: float = 0.04, every: int = 4, script: str = ""
) -> Path:
    """A run that keeps a checkpoint each few steps, all of them."""
    arguments = f"--epochs, '{epochs}', --step-s, '{step_s}', --width, '{WIDTH}'"
    path = sandbox.job(name, args=arguments, scale=200, script=script)
    path.write_text(path.read_text().replace("every: 30s", f"every: {every} steps, keep_last: 100"))
    return path


def usable_steps(sandbox: Sandbox, name: str) -> list[int]:
    return [commit.event.step for commit in sandbox.state(name).commits if commit.usable]


def objects(sandbox: Sandbox, name: str) -> list[str]:
    return [stored.key for stored in sandbox.run(name).store.list("checkpoints/")]


# -- out and in ------------------------------------------------------------------------------------------------------


def test_an_exported_checkpoint_is_lightnings_and_a_run_that_begins_from_it_goes_on_as_the_first(
    sandbox: Sandbox,
) -> None:
    sandbox.call("launch", job(sandbox, "first"), "-y")
    quiet = sandbox.trace_by_step()
    sandbox.trace.unlink()
    middle = next(step for step in usable_steps(sandbox, "first") if 4 <= step < STEPS - 4)
    out = sandbox.folder / "out.ckpt"
    assert f"step {middle:,}" in sandbox.call("checkpoints", "export", "first", "--step", middle, out)

    saved = torch.load(out, weights_only=True)
    assert saved["global_step"] == middle
    assert "spotrun" not in saved
    run_by_lightning(out)
    assert "exists already" in sandbox.ask("checkpoints", "export", "first", out, code=2)
    sandbox.ask("checkpoints", "export", "first", out, "--force")
    assert torch.load(out, weights_only=True)["global_step"] == STEPS, "without a step, the newest"
    assert f", {STEPS}" in sandbox.ask("checkpoints", "export", "first", "--step", 9999, out, "--force", code=3)
    sandbox.ask("checkpoints", "export", "first", "--step", middle, out, "--force")

    # It is interrupted too: the second attempt resumes from its own checkpoint, and not from the file.
    script = "{when: epoch 2 at 80%, then: interrupt, notice: none}"
    made = sandbox.ask("checkpoints", "import", out, job(sandbox, "second", script=script))
    assert f"begins from step {middle}" in made
    assert sandbox.state("second").launches == {}, "nothing is rented by an import"
    sandbox.call("resume", "second")
    state = sandbox.state("second")
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert len(state.attempts) == 2
    assert sandbox.trace_by_step() == {step: lines for step, lines in quiet.items() if step >= middle}


def run_by_lightning(path: Path) -> None:
    """Model.load_from_checkpoint and trainer.fit(ckpt_path=…), in a process that has no agent."""
    command = [sys.executable, "-c", READ_BY_LIGHTNING, str(path), str(WIDTH), str(STEPS)]
    done = subprocess.run(command, cwd=JOBS, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


class Mischief:
    """A pickle of it would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("code ran",)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"weights": torch.ones(2)}, "is not a Lightning checkpoint"),
        ({"state_dict": {}, "pytorch-lightning_version": "2.6.6", "x": Mischief()}, "more than tensors"),
        (b"not a checkpoint", "was not written by torch.save"),
        (b"", "was not written by torch.save"),
        (None, "cannot be read"),
    ],
    ids=["other keys", "code", "text", "empty", "absent"],
)
def test_file_that_is_no_lightning_checkpoint_is_refused_and_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: object, word: str
) -> None:
    path = tmp_path / "bad.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(SpecInvalid, match=word):
        read_facts(path)
    assert "code ran" not in "".join(capfd.readouterr())


def test_a_file_of_an_older_torch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "old.ckpt"
    torch.save({"state_dict": {}}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(SpecInvalid, match=r"version of torch before 1\.6") as refused:
        read_facts(path)
    assert "mmap" not in str(refused.value)
    assert "save it again" in (refused.value.hint or "")


def test_an_export_into_a_folder_that_is_not_there_says_so_before_it_reads_anything(sandbox: Sandbox) -> None:
    missing = sandbox.folder / "missing"
    told = sandbox.ask("checkpoints", "export", "any", missing / "out.ckpt", code=2)
    assert f"there is no folder {missing}" in told
    assert "is a folder" in sandbox.ask("checkpoints", "export", "any", sandbox.folder, "--force", code=2)


def test_file_that_cannot_be_written_is_one_error() -> None:
    with pytest.raises(SpotrunError, match="cannot be written"):
        export(bytearray(image_bytes({"state_dict": {}, "global_step": 0}, {"epoch": 0})), Path("/proc/out.ckpt"))


def test_a_bad_start_starts_no_run(sandbox: Sandbox) -> None:
    path = sandbox.folder / "bad.ckpt"
    path.write_text("not a checkpoint")
    assert "was not written by torch.save" in sandbox.ask("checkpoints", "import", path, job(sandbox, "never"), code=2)
    assert "was not written by torch.save" in sandbox.ask(
        "launch", job(sandbox, "never"), "-y", "--init-from", path, code=2
    )
    assert not sandbox.store.exists()


def test_every_kind_of_value_in_a_state_comes_out_as_what_torch_reads_without_code(tmp_path: Path) -> None:
    state = {
        "state_dict": OrderedDict(a=torch.randn(3), b=torch.ones(2, dtype=torch.bfloat16), none=torch.empty(0, 3)),
        "pytorch-lightning_version": "2.6.6",
        "spotrun": {"seed": 1},
        "mine": {
            "plain": (None, True, 1 << 100, 1 + 2j, b"bytes", "text", float("inf")),
            "sets": ({1, "a"}, frozenset({2})),
            "counter": Counter(a=2),
            "path": PurePosixPath("/a/b"),
            "torch": (torch.Size([2]), torch.float16, torch.device("cpu")),
            "numpy": (np.arange(3, dtype=np.uint16), np.float32(2.5)),
        },
    }
    facts = export(bytearray(image_bytes(state, {})), tmp_path / "out.ckpt")
    assert (facts.step, facts.has_optimizer) == (0, False)
    read = torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert read.keys() == state.keys() - {"spotrun"}
    assert all(torch.equal(value, read["state_dict"][name]) for name, value in state["state_dict"].items())
    mine = read["mine"]
    assert mine["plain"] == state["mine"]["plain"]
    assert mine["sets"] == ({1, "a"}, {2})
    assert mine["counter"] == Counter(a=2)
    assert mine["path"] == "/a/b"
    assert mine["torch"] == state["mine"]["torch"]
    assert mine["numpy"][0].tolist() == [0, 1, 2]
    assert mine["numpy"][1] == 2.5
    assert list(tmp_path.iterdir()) == [tmp_path / "out.ckpt"]


def test_an_export_follows_no_link_that_was_put_in_its_way(tmp_path: Path) -> None:
    (victim := tmp_path / "victim").write_text("mine")
    (planted := tmp_path / f".out.ckpt.{os.getpid()}").symlink_to(victim)
    export(bytearray(image_bytes({"state_dict": {}, "global_step": 0}, {"epoch": 0})), tmp_path / "out.ckpt")
    assert victim.read_text() == "mine"
    assert {*tmp_path.iterdir()} == {victim, planted, tmp_path / "out.ckpt"}


# -- away ------------------------------------------------------------------------------------------------------------


def test_an_ended_run_is_pruned_to_what_is_wanted_for_the_price_of_the_entries(sandbox: Sandbox) -> None:
    sandbox.call("launch", job(sandbox, "full"), "-y")
    run = sandbox.run("full")
    (attempt,) = run.ledger.refresh().attempts
    run.store.put(f"checkpoints/{attempt}-0-99/part-0000", b"of an upload that was cut short")
    steps, before = usable_steps(sandbox, "full"), objects(sandbox, "full")
    bill = sandbox.ask_json("report", "full")["total"]["cost_usd"]
    assert len(steps) >= 3

    told = sandbox.ask("checkpoints", "prune", "full", "--keep", 1, "--dry-run")
    assert f"{len(steps) - 1} checkpoints" in told
    assert "would be deleted" in told
    assert objects(sandbox, "full") == before
    assert usable_steps(sandbox, "full") == steps

    assert "deleted" in sandbox.call("checkpoints", "prune", "full", "--keep", 1)
    assert usable_steps(sandbox, "full") == [STEPS]
    final = sandbox.state("full").restore_candidates()[0]
    assert {key.rpartition("/")[0] for key in objects(sandbox, "full")} == {final.event.prefix}
    assert "whole" in sandbox.ask("checkpoints", "verify", "full")
    requests = (len(steps) - 1) * Decimal("0.005") / 1000
    assert Decimal(sandbox.ask_json("report", "full")["total"]["cost_usd"]) == Decimal(bill) + requests
    assert "0 checkpoints, 0 objects" in sandbox.ask("checkpoints", "prune", "full", "--keep", 1)
    assert "0 checkpoints, 0 objects" in sandbox.ask("checkpoints", "prune", "full")


def test_a_run_that_goes_on_is_pruned_by_its_own_agent(sandbox: Sandbox) -> None:
    sandbox.call("launch", job(sandbox, "busy", epochs=500), "-y", "-d")
    eventually(lambda: sandbox.store.exists() and len(usable_steps(sandbox, "busy")) >= 4, within_s=90)
    assert "would delete" in sandbox.ask("checkpoints", "prune", "busy", "--keep", 1, "--dry-run")
    assert "its agent will keep only 1" in sandbox.ask("checkpoints", "prune", "busy", "--keep", 1)
    asked = sandbox.state("busy").prune
    assert asked is not None

    def older() -> list[int]:
        return [
            commit.number for commit in sandbox.state("busy").commits if commit.usable and commit.number < asked.number
        ]

    eventually(lambda: len(older()) == 1, within_s=60)
    retired = [entry.event for entry in entries(sandbox, "busy") if isinstance(entry.event, ev.CheckpointRetired)]
    assert len(retired) >= 3
    assert all(event.attempt is not None for event in retired), "the attempt retired them, and nobody else"
    sandbox.call("stop", "busy")
    eventually(lambda: sandbox.state("busy").terminal is not None, within_s=60)

    # Whoever opens the run again while it is being pruned keeps what was not retired yet.
    run = sandbox.run("busy")
    kept = usable_steps(sandbox, "busy")
    with pytest.raises(EntryRefused, match="only after the run's end"):
        pruning.prune(Overtaken(run), run.store, CheckpointSpec(keep_last=1))
    assert usable_steps(sandbox, "busy") == kept
    assert "whole" in sandbox.ask("checkpoints", "verify", "busy")
    sandbox.ask("down", "busy", "-y")


def entries(sandbox: Sandbox, name: str) -> list[ev.Entry]:
    run = sandbox.run(name)
    run.ledger.refresh()
    return run.ledger.entries


class Overtaken(Ledger):
    """A writer whose first entry comes just after somebody has opened the run again."""

    def __init__(self, run: Any) -> None:
        super().__init__(run.store, run.created.uid, "test", run.clock)
        self._other = run.ledger

    def append(self, decide: Callable[[RunState], Any]) -> ev.Entry | None:
        if self._other.refresh().terminal is not None:
            self._other.append(lambda _: ev.ResumeRequested(by="another"))
        return super().append(decide)
