"""Dollars, downtime and the attempt as metrics of the script's own loggers, without a trace of them in the training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from spotrun.trainer_link import EpochEnded, Figures, Hello
from tests.support.sandbox import Sandbox
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

NAMES = {"cost_usd", "usd_per_epoch", "lost_s", "attempt"}


def tell_each_epoch(agent: Agent, message: object) -> None:
    """An agent that has figures at the beginning and after each epoch."""
    if isinstance(message, Hello | EpochEnded):
        epochs = message.epoch + 1 if isinstance(message, EpochEnded) else 0
        cost = epochs + agent.attempts / 100
        usd_per_epoch = cost / epochs if epochs else None
        agent.link.send(
            Figures(cost_usd=cost, usd_per_epoch=usd_per_epoch, lost_s=7.5, attempt=agent.attempts, epochs=epochs)
        )


def test_figures_are_in_every_logger_once_a_step_and_change_nothing_else(zygote: Zygote, tmp_path: Path) -> None:
    job = {"loggers": ["CSVLogger", "TensorBoardLogger"], "scheduler": "plateau"}
    straight = Agent(zygote, job, tmp_path / "straight").run()
    agent = Agent(zygote, job, tmp_path / "told", every_steps=1, on_message=tell_each_epoch)
    told = agent.run(["batch:0:3", "batch:1:5"])
    logs, plain = told.pop("logs"), straight.pop("logs")
    assert told == straight, "weights, optimizer, metrics and trace are those of a training that knows of no dollars"

    (table,) = [text for name, text in logs.items() if name.endswith(".csv")]
    rows = [row for row in csv.DictReader(table.splitlines()) if row["cost_usd"]]
    attempts = [float(row["attempt"]) for row in rows]
    assert attempts == sorted(attempts), "what a killed trainer logged after its last snapshot is gone"
    assert {row["cost_usd"] for row in rows if row["attempt"] == "3.0"} >= {"0.03", "3.03"}
    assert rows[-1]["usd_per_epoch"] == "1.01"
    assert len({row["step"] for row in rows}) == len(rows)
    others = [{k: v for k, v in row.items() if k not in NAMES} for row in csv.DictReader(table.splitlines())]
    (bare,) = [text for name, text in plain.items() if name.endswith(".csv")]
    assert [row for row in others if set(row.values()) - {row["step"], row["epoch"], ""}] == list(
        csv.DictReader(bare.splitlines())
    )

    (points,) = [found for name, found in logs.items() if not name.endswith(".csv") and "curves" not in name]
    shown = sorted((step, value) for name, step, value in points if name == "cost_usd")
    assert shown == [(int(row["step"]), pytest.approx(float(row["cost_usd"]))) for row in rows]


def test_a_real_run_logs_what_it_costs_through_an_interruption(sandbox: Sandbox) -> None:
    logs = sandbox.folder / "logs"
    path = sandbox.job("logged", program="logged.py", script="{when: epoch 3 at 30%, then: interrupt, notice: none}")
    path.write_text(path.read_text().replace("envs: {", f"envs: {{LOGS: '{logs}', "))
    sandbox.call("launch", path, "-y")
    (table,) = logs.rglob("metrics.csv")
    rows = [row for row in csv.DictReader(table.read_text().splitlines()) if row["cost_usd"]]
    costs = [float(row["cost_usd"]) for row in rows]
    assert costs == sorted(costs)
    assert {row["attempt"] for row in rows} == {"1.0", "2.0"}
    lost = [float(row["lost_s"]) for row in rows]
    assert lost[-1] > lost[0], "the changeover is in it"
    report = json.loads(sandbox.call("report", "logged", "--json"))
    total, paid = float(report["total"]["cost_usd"]), float(rows[-1]["cost_usd"])
    assert 0.5 * total < paid <= total
    assert float(rows[-1]["usd_per_epoch"]) == pytest.approx(paid / 6)
