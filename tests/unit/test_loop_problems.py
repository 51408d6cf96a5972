"""What a Loop cannot resume exactly is found in what it was given, without a training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from spotrun.loop.given import Given


class FSDPModule(nn.Linear):
    """Known by its name."""


def accelerator(kind: str) -> Any:
    cls = type("Accelerator", (), {"__module__": "accelerate.accelerator", "scaler": None})
    made: Any = cls()
    made.distributed_type = SimpleNamespace(name=kind)
    return made


def fabric(strategy: str) -> Any:
    cls = type("Fabric", (), {"__module__": "lightning.fabric.fabric"})
    made: Any = cls()
    made.strategy = type(strategy, (), {"precision": None})()
    return made


def problems_of(launcher: Any = None, model: nn.Module | None = None) -> list[str]:
    model = nn.Linear(2, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = list(Given(launcher, {"model": model, "optimizer": optimizer}).problems())
    assert all(problem.hint for problem in found)
    return [problem.reason for problem in found]


@pytest.mark.parametrize("launcher", [None, accelerator("NO"), accelerator("MULTI_GPU"), fabric("DDPStrategy")])
def test_one_process_and_ddp_are_no_problem(launcher: Any) -> None:
    assert problems_of(launcher) == []


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (accelerator("DEEPSPEED"), "accelerate's DEEPSPEED spreads the state over processes or devices"),
        (accelerator("FSDP"), "accelerate's FSDP spreads the state over processes or devices"),
        (accelerator("XLA"), "accelerate's XLA spreads the state over processes or devices"),
        (fabric("FSDPStrategy"), "Fabric's FSDPStrategy spreads the state over processes or devices"),
        (fabric("DeepSpeedStrategy"), "Fabric's DeepSpeedStrategy spreads the state over processes or devices"),
    ],
)
def test_launcher_that_spreads_the_state_is_refused(launcher: Any, reason: str) -> None:
    assert problems_of(launcher) == [reason]


def test_a_model_that_the_script_has_sharded_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), FSDPModule(2, 2))
    assert problems_of(model=model) == ["model is sharded: each process has a part of its state"]


def test_a_bare_weight_is_named_with_the_line_that_carries_it() -> None:
    model, log_alpha = nn.Linear(2, 2), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*model.parameters(), log_alpha])
    (problem,) = Given(None, {"model": model, "optimizer": optimizer, "log_alpha": log_alpha}).problems()
    assert problem.hint.endswith("Loop(log_alpha=nn.ParameterList([log_alpha]), …)")
    carried = {"model": model, "optimizer": optimizer, "log_alpha": nn.ParameterList([log_alpha])}
    assert list(Given(None, carried).problems()) == []
