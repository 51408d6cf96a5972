"""
Jobs are planned, and then run for real in markets of the same kind: what they cost and take is what was forecast.

The market comes and goes as a seeded process here does. The plan reads windows of it as a record; the local cloud is
told other stretches of it as a script. Trainings are real processes that tell of their steps and save their state;
their steps only wait, so that a slow machine hardly changes how long the work is.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spotrun.account.summary import RunSummary, summarise
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox

SCALE = 180.0
STEP_S, STEPS = 0.25, 60
WORK_S = STEPS * STEP_S * SCALE
"""45 min of run time, 15 s of ours."""
UP_S, DOWN_S = (720.0, 2160.0), (120.0, 840.0)
"""How long spot lasts and is away: every job is interrupted at least once."""
UNANNOUNCED = 0.1
TICK_S = 15.0
WINDOWS, WINDOW_S = 40, 6 * 3600.0
TRAINER = ROOT / "tests" / "support" / "played_trainer.py"


class Planned(NamedTuple):
    """
    A job, and the seed of the market in which it is run.

    By chance one market in ten lies outside of what is forecast even where that is right. These are none of that tenth:
    simulated on their own, all three lie between P25 and P70 whether a start takes five minutes or eleven.
    """

    name: str
    keys: str
    seed: int


JOBS = (
    Planned("patient", "policy: {on_demand_after: 5m, return_cooldown: 5m, expected_work: 45m}\n", 24),
    Planned("due", "policy: {deadline: 150m, return_cooldown: 5m, expected_work: 45m}\n", 14),
    Planned("spot-alone", "policy: {expected_work: 45m}\n", 5),
)


def stretches(seed: int) -> list[tuple[float, bool]]:
    """How long each lasts, and whether spot is there; the first is cut off, as at a random moment of a long history."""
    rng = np.random.default_rng(seed)
    found = [(float(rng.uniform(*(UP_S if up else DOWN_S))), up) for up in [True, False] * 40]
    skip_s = float(rng.uniform(0, 5 * (sum(UP_S) + sum(DOWN_S))))
    while skip_s >= found[0][0]:
        skip_s -= found.pop(0)[0]
    return [(found[0][0] - skip_s, found[0][1]), *found[1:]]


def record(path: Path) -> Path:
    """Windows of the market, at the constant price of which a plan takes no notice."""
    up = np.zeros((WINDOWS, int(WINDOW_S / TICK_S), 1), dtype=bool)
    for window in range(WINDOWS):
        ends = np.cumsum([seconds for seconds, _ in stretches(1000 + window)])
        at = np.searchsorted(ends, np.arange(up.shape[1]) * TICK_S, side="right")
        up[window, :, 0] = [stretches(1000 + window)[each][1] for each in at]
    packed, price = np.packbits(up, axis=1), np.ones(up.shape)
    np.savez(path, up=packed, ticks=up.shape[1], price=price, zone=np.array(["only"]), gap_s=TICK_S)
    return path


def script(seed: int) -> str:
    """The same for the local cloud: its market begins with spot."""
    rng, steps = np.random.default_rng((seed, 1)), []
    found = stretches(seed)
    if not found[0][1]:
        found = [(1.0, True), *found]
    for (seconds, _), (_, up) in pairwise(found[:17]):
        notice = "none" if rng.random() < UNANNOUNCED else "2m"
        then = "{then: spot-returns" if up else f"{{then: no-spot, notice: {notice}"
        steps.append(f"    - {then}, when: after {seconds:.0f}s}}\n")
    return "  script:\n" + "".join(steps)


def job(sandbox: Sandbox, planned: Planned, steps: int, market: str = "") -> Path:
    """One zone, so that there is one market."""
    told = json.dumps({"steps": steps, "epoch_steps": 8, "step_s": STEP_S, "trace": str(sandbox.trace)})
    alone = ", spot_policy: spot" if planned.name == "spot-alone" else ""
    path = sandbox.folder / f"{planned.name}.yaml"
    path.write_text(
        f"name: planned\nworkdir: {sandbox.folder / 'work'}\n"
        f"train: {{script: played_trainer.py, args: ['{told}']}}\n"
        f"checkpoint: {{uri: '{sandbox.uri}', every: 2m}}\n"
        f"resources: {{cloud: local, accelerators: 'V100:1', zone: us-east-1a{alone}}}\n"
        f"local:\n  time_scale: {SCALE}\n  boot: 60s\n{market}{planned.keys}"
    )
    return path


def all_at_once(sandbox: Sandbox, jobs: list[Path], *, named: bool = False) -> None:
    """Run jobs to their ends; `named`, under the names of their files instead of the one that all have."""
    children = [sandbox.start("launch", path, "-y", *(["--name", path.stem] if named else [])) for path in jobs]
    for child in children:
        output, _ = child.communicate(timeout=180)
        assert child.returncode == 0, output


def forecast_of(sandbox: Sandbox, path: Path, traces: Path) -> dict[str, Any]:
    plan = sandbox.call_json("plan", path, "--traces", traces, "--lifetimes", "150")
    assert "as measured" in plan["assumed"]
    ours: dict[str, Any] = plan["forecasts"][0]
    assert ours["strategy"] == "ours"
    return ours


def summary_of(sandbox: Sandbox, name: str) -> RunSummary:
    state = sandbox.state(name)
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    return summarise(state, state.terminal.at)


def test_three_jobs_cost_and_take_what_was_forecast(sandbox: Sandbox) -> None:
    (sandbox.folder / "work").mkdir()
    shutil.copy(TRAINER, sandbox.folder / "work")
    traces = record(sandbox.folder / "market.npz")
    calm = [job(sandbox, planned, steps=2) for planned in JOBS]
    all_at_once(sandbox, calm[:1])  # what a start takes on this machine, alone and
    all_at_once(sandbox, calm)  # beside others
    real = [job(sandbox, planned, STEPS, script(planned.seed)) for planned in JOBS]
    forecasts = {planned.name: forecast_of(sandbox, path, traces) for planned, path in zip(JOBS, real, strict=True)}
    all_at_once(sandbox, real, named=True)
    for name, forecast in forecasts.items():
        total = summary_of(sandbox, name).total
        cost_usd, wall_s = float(total.spot_usd + total.on_demand_usd), total.wall.total_seconds()
        said = f"{name}: ${cost_usd:.3f} in {wall_s:.0f} s, forecast {forecast}"
        assert forecast["interruptions"] > 1, said
        assert forecast["cost_p5_usd"] <= cost_usd <= forecast["cost_p95_usd"], said
        assert forecast["finish_p5_s"] <= wall_s <= forecast["finish_p95_s"], said
