"""
Compares the Trainer of transformers, resumed by itself and by spotrun, with a training that is never interrupted: what
is the same?

Each training has 75 batches and is killed in the middle of an epoch. Alone, it goes on from its last checkpoint, as
`train(resume_from_checkpoint=True)` does, with all that its own checkpoints hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote
from tests.support.trainings.zygote import TRANSFORMERS

SAVED = {"save_strategy": "steps", "save_steps": 10}
SAMPLES = 125
"""Samples, in 25 batches of an epoch; there are three epochs."""
KILLS = ("start:0:13", "start:1:12", "start:2:8")
ALONE = KILLS[1]
BEST = {"eval_strategy": "steps", "eval_steps": 10, "load_best_model_at_end": True}
CASES: dict[str, dict[str, Any]] = {
    "a data set that draws nothing": {"own_data": "calm"},
    "samples that draw": {"own_data": True},
    "`group_by_length`": {"own_data": "calm", "arguments": {"train_sampling_strategy": "group_by_length"}},
    "2 workers, samples that draw": {"own_data": True, "arguments": {"dataloader_num_workers": 2}},
    "accumulation of 3 batches, samples that draw": {"own_data": True, "trainer": {"accumulate_grad_batches": 3}},
    "a stream that shuffles": {"loader": "stream", "arguments": {"max_steps": 75}},
    "evaluation and the best model, samples that draw": {"own_data": True, "arguments": BEST},
    "LoRA, samples that draw": {"own_data": True, "adapters": 1},
}


class Row(NamedTuple):
    """
    Differences from a training that is never interrupted, alone and under spotrun; nothing if the bits are the same.
    """

    case: str
    alone: list[str]
    ours: list[str]


def rows(folder: Path) -> Iterator[Row]:
    """Yield each row as it comes."""
    zygote = Zygote(folder / "zygote", TRANSFORMERS)
    try:
        for number, (case, changes) in enumerate(CASES.items()):
            yield row(zygote, folder / str(number), case, job_of(changes))
    finally:
        zygote.close()


def job_of(changes: dict[str, Any]) -> dict[str, Any]:
    job = {"package": "transformers", "samples": SAMPLES, "slow_s": 0, **changes}
    return {**job, "arguments": {**SAVED, "eval_steps": 25, **changes.get("arguments", {})}}


def row(zygote: Zygote, folder: Path, case: str, job: dict[str, Any]) -> Row:
    straight, batches = zygote.alone(job, folder / "plain"), batches_in(folder / "plain" / "trace")
    again = folder / "alone"
    again.mkdir(parents=True)
    killed(zygote, job, again)
    (again / "trace").rename(again / "trace-before")
    resumed = zygote.alone(job | {"resume_from": True}, again)
    alone = differences(straight, resumed, batches, batches_in(again / "trace"))
    calm = Agent(zygote, job, folder / "calm", every_steps=10).run()
    other = Agent(zygote, job, folder / "killed", every_steps=10).run(list(KILLS))
    return Row(case, alone, differences(calm, other, lines_of(calm), lines_of(other)))


def killed(zygote: Zygote, job: dict[str, Any], folder: Path) -> None:
    """Run the training alone, ended in the middle of an epoch."""
    job = job | {"trace": str(folder / "trace"), "result": str(folder / "result.json"), "kill": ALONE}
    log = folder / "log"
    if (code := zygote.end(zygote.start(job, None, log))) != -9:
        raise AssertionError(f"the training has ended with {code}: {log.read_text()[-2000:]}")


def batches_in(trace: Path) -> list[Any]:
    return trained(trace.read_text().splitlines())


def lines_of(result: dict[str, Any]) -> list[Any]:
    return trained(result["trace"])


def trained(lines: list[str]) -> list[Any]:
    """Return the samples of each batch, and its loss."""
    return [line[4:6] for line in map(json.loads, lines) if line[0] == "train"]


def differences(straight: dict[str, Any], other: dict[str, Any], batches: list[Any], again: list[Any]) -> list[str]:
    """
    Return the differences in words. Of a training that was resumed, `again` may have the batches after that alone.
    """
    wanted = batches[len(batches) - len(again) :]
    found = []
    if [one for one, _ in wanted] != [one for one, _ in again]:
        found.append("which samples a batch has")
    elif wanted != again:
        found.append("the loss of batches")
    for name, what in (("weights", "weights"), ("optimizer", "optimizer"), ("best", "the best metric")):
        if straight[name] != other[name]:
            found.append(what)
    if straight["history"] != other["history"]:
        found.append("what was logged")
    if straight["loss"] != other["loss"]:
        found.append("`train_loss`")
    return found


def table(found: list[Row]) -> str:
    lines = [
        "| training, 75 batches | resumed by transformers alone | resumed by spotrun, after three kills |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {one.case} | {_said(one.alone)} | {_said(one.ours)} |" for one in found)]) + "\n"


def _said(differences: list[str]) -> str:
    return f"differ: {', '.join(differences)}" if differences else "the same bits"
