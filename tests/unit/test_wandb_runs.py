"""Offline W&B runs go on with the number of their next row. The client stands in here by what is used of it."""

from __future__ import annotations

from typing import Any

import pytest

from spotrun.training.log_files import wandb_runs


class Run:
    """Numbers rows as the client does: by itself, unless `log` says a number; the rest waits for the next."""

    def __init__(self, id: str, *, offline: bool = True) -> None:
        self.id, self.offline, self.step = id, offline, 0
        self.rows: list[int] = []

    def log(self, row: dict[str, Any], step: int | None = None, commit: bool = True) -> None:
        self.step = self.step if step is None else step
        if commit:
            self.rows.append(self.step)
            self.step += 1


Run.__module__ = "wandb.sdk.wandb_run"


class WandbLogger:
    def __init__(self, run: object) -> None:
        self._experiment = self.experiment = run


class Anything:
    """What other ranks have for a run."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def resumed(first: Run, second: Run) -> list[int]:
    for _ in range(3):
        first.log({"loss": 1.0})
    wandb_runs.continue_run([WandbLogger(second)], wandb_runs.dump([WandbLogger(first)]))
    second.log({"loss": 1.0})
    return second.rows


def test_a_resumed_offline_run_numbers_its_rows_on_from_the_snapshot() -> None:
    assert resumed(Run("a"), Run("a")) == [3]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Run("a"), Run("another")),
        (Run("a", offline=False), Run("a", offline=False)),
        (Run("a"), Run("a", offline=False)),
    ],
)
def test_another_run_and_one_that_is_online_are_left_as_they_are(first: Run, second: Run) -> None:
    assert resumed(first, second) == [0]


def test_ranks_without_a_run_say_nothing() -> None:
    others = [WandbLogger(Anything()), WandbLogger(None), object()]
    assert wandb_runs.dump(others) == [{}, {}]
    wandb_runs.continue_run(others, [{"run": "a", "rows": 3}] * 2)
