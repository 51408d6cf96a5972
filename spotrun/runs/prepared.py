"""
Prepares a run: gathers everything that has to be known before the run begins, shows it, and creates the run. Before
the creation, nothing is written or rented.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spotrun import address
from spotrun.clock import system_clock
from spotrun.clouds.registry import clock_of
from spotrun.errors import SpecInvalid, needs_extra
from spotrun.notify.sinks import require_sinks
from spotrun.offering import Offering
from spotrun.policy.deadline import deadline_at, unreachable
from spotrun.policy.feasibility import earlier as measured_by
from spotrun.policy.feasibility import hopeless_on_spot, median_life
from spotrun.policy.throughput import works_of_hours
from spotrun.report import offers
from spotrun.report.folding import say
from spotrun.report.tables import short_duration
from spotrun.run.state import RunState
from spotrun.runner.creation import prepare_run
from spotrun.runs import asking
from spotrun.runs.earlier_runs import earlier_runs, newest_state
from spotrun.runs.first_look import Market, look_at_market
from spotrun.runs.job_checks import about_home, check_job, without_checkpoints
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun, who
from spotrun.runs.pinning import pinned
from spotrun.runs.signals import Signalled
from spotrun.spec.model import RunSpec

ONLY_WHERE_THE_NETWORK_IS_YOURS = (
    "PyTorch on them runs what it receives from anyone who reaches its ports: train together only where the network is"
    " yours (docs/gangs.md)."
)


class Prepared(NamedTuple):
    """
    A job that can begin. `spec` is the job as it will be stored, and `chosen` the offering that it requests first.
    `earlier` are the runs of the same name, the newest first, and `notes` are for the user. `start` is the Lightning
    checkpoint that the training starts from. `later`: the job does not begin now.
    """

    spec: RunSpec
    market: Market
    chosen: Offering
    earlier: Sequence[OpenRun]
    notes: Sequence[str]
    start: Path | None
    later: bool

    def show(self, others: Sequence[str] = ()) -> None:
        """
        Print the offerings that suit the run, with a tick at the first choice. The notes go to stderr, `others` first.

        Raises:
            SpecInvalid: the file `start` is not a Lightning checkpoint, or could execute code.
        """
        spec, asked = self.spec, self.market.offerings
        work = works_of_hours(self.market.facts, asked)
        offers.show(sorted(asked, key=work.__getitem__) if work else asked, self.chosen, work=work)
        if spec.num_nodes > 1:
            all_of_them = spec.num_nodes * self.chosen.price_usd_per_hour
            say(f"{spec.num_nodes} instances train together: ${all_of_them:.4f} an hour in all, by the first choice.")
            if not self.chosen.simulated:
                say(ONLY_WHERE_THE_NETWORK_IS_YOURS)
        if (home := about_home(spec)) is not None:
            say(home)
        if self.chosen.simulated:
            scale = f", time passes {spec.local.time_scale:g} times as fast" if spec.local.time_scale != 1 else ""
            say(f"The local cloud: processes on this machine, simulated prices{scale}. {_who_bills(spec)}")
        if (warning := without_checkpoints(spec)) is not None:
            say(warning)
        if (deadline := _deadline_in_words(spec, later=self.later)) is not None:
            say(deadline)
        for note in (*others, *self.notes):
            asking.say(f"note: {note}")
        if self.start is not None:
            show_start(self.start)

    def create(self) -> OpenRun:
        """
        Create the run in its store, and remember it as this user's.

        Raises:
            SpotrunError: the run cannot be created.
            KeyboardInterrupt, Signalled: nothing was rented.
        """
        try:
            return create_known(prepare_run(self.spec, f"cli:{who()}", self.start))
        except (KeyboardInterrupt, Signalled):
            asking.say("nothing was rented; `spotrun status` shows whether there is a run already")
            raise


def prepare(
    spec: RunSpec,
    start: Path | None = None,
    *,
    later: bool = False,
    dry_run: bool = False,
    market: Market | None = None,
) -> Prepared:
    """
    Gather everything that has to be known before a run of `spec` begins. `start` is the Lightning checkpoint that the
    training starts from, or None.

    `later`: the run begins on another machine at another time, so its image's tag and this machine's secrets are not
    checked. `dry_run`: the notes name every file that is not uploaded, not only the first ones, and the checks that
    only a launch does. `market` is the market of another job with the same resources, if it was just read.

    Raises:
        SpecInvalid: no offering suits the job, none is within max_price now, or the run would never complete.
        SpotrunError: something that the run needs is missing on this machine, in the run's store or on its cloud.
    """
    stored, of_image = pinned(spec, os.environ, later=later)
    notes = [*check_job(stored, later=later, all_left_behind=dry_run), *of_image]
    if dry_run and not spec.cloud.here:
        doctor = f"spotrun doctor {spec.resources.cloud} JOB.yaml"
        notes.append(f"this command does not check rights, quotas and secrets: `{doctor}` does")
    market = look_at_market(stored) if market is None else market.for_job(stored)
    earlier = earlier_runs(stored)
    _refuse_hopeless(stored, newest_state(earlier), market)
    chosen = market.first_choice()
    _require_reachable(stored)
    if not later:
        require_sinks(stored)
    return Prepared(stored, market, chosen, earlier, notes, start, later)


def billed(spec: RunSpec) -> bool:
    """Return True if a launch costs real money. Even with simulated instances, the bucket may be real."""
    return not spec.cloud.simulated or spec.checkpoint.in_bucket


def show_start(path: Path) -> None:
    """
    Print which checkpoint a run will start from.

    Raises:
        SpecInvalid: the file is not a Lightning checkpoint, or could execute code.
    """
    with needs_extra("lightning", "a Lightning checkpoint"):
        from spotrun.lightning.checkpoint_file import read_facts
    facts = read_facts(path)
    rest = "" if facts.has_optimizer else "; the file has no optimizer state, so Lightning will refuse it"
    say(f"begins from step {facts.step:,} of {path} (Lightning {facts.lightning}){rest}")


def _refuse_hopeless(spec: RunSpec, newest: RunState | None, market: Market) -> None:
    """
    Raises:
        SpecInvalid: the newest run of this name has measurements by which the run would never complete on spot.
    """
    known = None if newest is None else measured_by(newest, market.unborn.created.time_scale)
    found = hopeless_on_spot(spec, known, median_life(market.world.observations))
    if found is not None:
        raise SpecInvalid(found.reason, hint=found.fix)


def _who_bills(spec: RunSpec) -> str:
    """Return a sentence about the costs of a run on a simulated cloud."""
    if not billed(spec):
        return "There is no bill."
    return f"There is no bill for the instances; the objects in {address.parse(spec.checkpoint.uri)} may cost money."


def _require_reachable(spec: RunSpec) -> None:
    """
    Raises:
        SpecInvalid: the deadline cannot be met even on demand.
    """
    if spec.policy.deadline is None:
        return
    now = system_clock().now()
    if (reason := unreachable(spec, deadline_at(spec.policy.deadline, now) - now)) is not None:
        hint = "give a later policy.deadline, or correct policy.expected_work"
        raise SpecInvalid(reason, hint=hint, key=("policy", "deadline"))


def _deadline_in_words(spec: RunSpec, *, later: bool) -> str | None:
    """Describe the deadline, and the strategy that has to meet it."""
    if spec.policy.deadline is None:
        return None
    now = system_clock().now()
    at = deadline_at(spec.policy.deadline, now)
    unknown = "; on demand until its work is measured, because expected_work is not given"
    known = "" if spec.policy.expected_work else unknown
    clock = " of run time" if clock_of(spec).scale != 1 else ""
    until = f"within {short_duration(at - now)} of its beginning" if later else f"by {at.astimezone():%Y-%m-%d %H:%M}"
    return f"To be done {until}{clock}, strategy {spec.policy.strategy}{known}."
