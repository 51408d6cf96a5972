"""`spotrun plan`"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, SpecArgument, StoreOption, print_json, progress_bar

if TYPE_CHECKING:
    from spotrun.spec import RunSpec


def plan(
    spec_path: SpecArgument,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="8h|07:00", help="Instead of policy.deadline.")
    ] = None,
    budget: Annotated[str | None, typer.Option("--budget", metavar="USD", help="Instead of budget.max_usd.")] = None,
    work: Annotated[
        str | None,
        typer.Option("--work", metavar="3h", help="How long the training itself takes."),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="PATH", help="Recorded windows (.npz) for markets."),
    ] = None,
    lifetimes: Annotated[int, typer.Option("--lifetimes", min=1, max=100_000, help="Simulated per line.")] = 500,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed, other markets.")] = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast what JOB.yaml will cost and when it will be done, before anything is spent."""
    from spotrun.cli.wiring import first_look, only_local
    from spotrun.clock import system_clock
    from spotrun.creation import deadline_at
    from spotrun.errors import SpecInvalid
    from spotrun.policy.considered import considered
    from spotrun.policy.deadline import unreachable
    from spotrun.report import forecast as shown
    from spotrun.simulation.plan import plan as forecast_of
    from spotrun.simulation.traces import read_windows
    from spotrun.spec_file import load_spec

    overrides: dict[str, object] = {
        "policy.deadline": deadline,
        "policy.expected_work": work,
        "budget.max_usd": budget,
    }
    spec = load_spec(spec_path, overrides)
    only_local(spec)
    if spec.policy.deadline is None:
        raise SpecInvalid("a forecast needs a deadline to plan for", hint="add --deadline 12h, or policy.deadline")
    expected, epochs = _work(spec, store)
    now = system_clock().now()
    time_left = deadline_at(spec.policy.deadline, now) - now
    policy = spec.policy.model_copy(update={"expected_work": expected})
    told = spec.model_copy(update={"policy": policy})
    if (reason := unreachable(told, time_left)) is not None:
        raise SpecInvalid(reason, hint="give a later deadline")
    unborn, world = first_look(told, store)
    record = None if traces is None else (traces.name, read_windows(traces))
    with progress_bar(quiet=as_json) as progressed:
        found = forecast_of(
            spec,
            world.offerings,
            expected,
            time_left,
            lifetimes,
            epochs=epochs,
            seed=seed,
            record=record,
            considered=considered(unborn, told, world),
            progressed=progressed,
        )
    if as_json:
        print_json(shown.for_machines(found))
        return
    shown.show(found, known=spec.policy.expected_work is not None)


def _work(spec: RunSpec, store: str | None) -> tuple[timedelta, int | None]:
    """
    How long the training takes, and its epochs where they are known: as told, else as the newest completed run took.

    Raises:
        SpecInvalid: neither is there.
    """
    from spotrun.accounting import summarise
    from spotrun.cli.wiring import runs_in
    from spotrun.errors import SpecInvalid

    if spec.policy.expected_work is not None:
        return spec.policy.expected_work, None
    runs = [run for run in runs_in(store or spec.checkpoint.uri) if run.created.name == spec.name]
    for run in sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True):
        state = run.ledger.refresh()
        if state.terminal is not None and state.terminal.outcome == "completed":
            summary = summarise(state, state.terminal.at)
            return summary.total.productive, len(summary.epochs)
    hint = "give --work 3h, or policy.expected_work; a completed run of this name would tell it too"
    raise SpecInvalid("nobody knows how long this training takes", hint=hint)
