"""Trainings on the simulated accelerator that break while a snapshot is copied resume from the snapshot before."""

from __future__ import annotations

import importlib
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from spotrun.checkpoint import layout
from tests.device.apart import fault_in_fork

SCRIPT = Path(__file__).with_name("train.py")


def train(folder: Path, fault: str) -> None:
    sys.argv[:] = [str(SCRIPT), str(folder), str(folder.with_suffix(".pt")), fault]
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.exhaustive
def test_training_that_breaks_during_a_copy_resumes_with_the_same_bits(tmp_path: Path) -> None:
    for name in ("torch._dynamo", "spotrun.loop"):  # what each process would need seconds to import
        importlib.import_module(name)
    from tests.device import train as script

    whole = tmp_path / "whole"
    assert not fault_in_fork(partial(train, whole, ""))
    expected = torch.load(whole.with_suffix(".pt"))
    for fault, said in (
        ("killed", "the process ended with -9"),
        ("failed", "toy:1 has failed"),
        ("out of memory", "OutOfMemoryError"),
    ):
        folder = tmp_path / fault
        assert said in fault_in_fork(partial(train, folder, fault))
        saved = layout.decode_header((folder / "fit-1").read_bytes()).meta["step"]
        assert 0 < saved < script.AT
        assert not fault_in_fork(partial(train, folder, ""))
        found = torch.load(folder.with_suffix(".pt"))
        assert all(map(torch.equal, found, expected)), fault
    caught = tmp_path / "caught"
    assert not fault_in_fork(partial(train, caught, "caught"))
    steps = layout.decode_header((caught / "fit-1").read_bytes()).meta["step"]
    assert steps == len(expected[-1]) - 2, "the script leaves out two steps, and the end is saved"
