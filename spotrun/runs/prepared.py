"""
Prepares a run: gathers everything that has to be known before the run begins, shows it, and creates the run. Before
that, nothing is written or rented.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from spotrun.clock import system_clock
from spotrun.clouds.cloud import Cloud
from spotrun.clouds.registry import clock_of, cloud_of
from spotrun.errors import Mistakes, SpecInvalid, StoreError, needs_extra
from spotrun.market.world import World
from spotrun.notify.sinks import require_sinks
from spotrun.offering import Offering
from spotrun.policy.deadline import deadline_at, unreachable
from spotrun.policy.feasibility import earlier as measured_by
from spotrun.policy.feasibility import hopeless_on_spot, median_life
from spotrun.policy.throughput import works_of_hours
from spotrun.report import offers
from spotrun.report.folding import say
from spotrun.report.tables import short_duration
from spotrun.report.unattended import attended_to, left_alone
from spotrun.run.state import RunState
from spotrun.runner.creation import prepare_run
from spotrun.runs import asking
from spotrun.runs.first_look import Market, look_at_market
from spotrun.runs.job_checks import CheckedJob, about_home, check_job, check_machine, without_checkpoints
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun, attended, open_each, ours_first, who
from spotrun.runs.pinning import with_baseline_price, with_image
from spotrun.runs.signals import Signalled
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

RUNS_MAX = 10
"""
Maximum number of earlier runs that are checked: those known on this machine first, and the newest first. The user gets
a note about each of them that still trains or still costs money.
"""
ONLY_WHERE_THE_NETWORK_IS_YOURS = (
    "PyTorch on them executes whatever arrives at its ports, from any sender: use a private network (docs/gangs.md)."
)


class Prepared(NamedTuple):
    """
    A job that is ready to begin.

    `spec` is the job as it will be stored, and `chosen` is the offering that it requests first. `earlier` are the runs
    with the same name: those that are known on this machine first, then the newest. `notes` are for the user. `start`
    is the Lightning checkpoint that the training starts from. `later` is True if the job is to begin later.
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
        Print the offerings that suit the run, and mark the first choice. Print the notes to stderr, `others` first.

        Raises:
            SpecInvalid: the checkpoint file that training starts from is not a Lightning checkpoint, or could execute
            code.
        """
        spec, asked = self.spec, self.market.offerings
        work = works_of_hours(self.market.facts, asked)
        offers.show(sorted(asked, key=work.__getitem__) if work else asked, self.chosen, work=work)
        if spec.num_nodes > 1:
            all_of_them = spec.num_nodes * self.chosen.price_usd_per_hour
            say(f"{spec.num_nodes} instances train together: ${all_of_them:.4f} an hour in all, for the first choice.")
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

    def going_on(self) -> list[str]:
        """
        Return a note on each earlier run that is still training or may still cost money, or that is known on this
        machine and cannot be read.
        """
        return [note for run in self.earlier[:RUNS_MAX] if (note := _if_going_on(run))]

    def create(self) -> OpenRun:
        """
        Create the run in its store, and add it to this user's list of runs.

        Raises:
            SpotrunError: the run cannot be created.
            KeyboardInterrupt, Signalled: the user or a signal interrupted the creation. Nothing was rented.
        """
        try:
            return create_known(prepare_run(self.spec, f"cli:{who()}", self.start))
        except (KeyboardInterrupt, Signalled):
            asking.say("nothing was rented; `spotrun status` shows whether there is a run already")
            raise


def prepare(
    spec: RunSpec, job: Path, start: Path | None = None, *, dry_run: bool = False, world: World | None = None
) -> Prepared:
    """
    Gather everything that has to be known before this machine launches a run of `spec` now. `job` is the file that
    describes the job, and `start` is the Lightning checkpoint that the training starts from, or None.

    With `dry_run`, the notes name all files that are not uploaded, instead of only the first ones. They also name the
    checks that only a launch makes. `world` can be the market that was just read for another job with the same
    resources.

    Raises:
        SpecInvalid: no offering suits the job, none is within max_price now, or the run would never complete.
        SpotrunError: something that the run needs is missing on this machine, in the run's store or on its cloud.
    """
    mistakes = Mistakes()
    with mistakes:
        prepared = prepare_later(spec, cloud_of(spec), all_left_behind=dry_run, world=world)
    with mistakes:
        check_machine(spec)
    with mistakes:
        require_sinks(spec)
    with mistakes:
        found, of_image = with_image(spec, os.environ)
    mistakes.refuse()
    pinned = prepared.spec if found.image is None else prepared.spec.with_image(found.image)
    notes = [*prepared.notes, *of_image]
    if dry_run and not spec.cloud.here:
        doctor = f"spotrun doctor {spec.resources.cloud} {quote(str(job))}"
        notes.append(f"this command does not check rights, quotas and secrets: `{doctor}` does")
    return prepared._replace(spec=pinned, notes=notes, start=start, later=False)


def prepare_later(
    spec: RunSpec, cloud: Cloud, *, all_left_behind: bool = False, world: World | None = None
) -> Prepared:
    """
    Gather what has to be known before a run of `spec` begins later, on another machine. The tag of the job's image is
    not replaced with a digest, because by then the tag may refer to a newer image. With `all_left_behind`, a note names
    all files that are not uploaded, instead of only the first ones. `world` is as in `prepare`.

    Raises:
        SpecInvalid: no offering suits the job, none is within max_price now, or the run would never complete.
        SpotrunError: something that the run needs is missing in its store or on its cloud.
    """
    mistakes, stored, checked = Mistakes(), spec, CheckedJob([], None)
    with mistakes:
        checked = check_job(spec, cloud, all_left_behind=all_left_behind)
    with mistakes:
        stored = with_baseline_price(spec)
    with mistakes:
        market = look_at_market(stored, cloud, checked.runs, world=world)
        chosen = market.first_choice()
        earlier = _earlier_runs(stored.name, checked.runs)
        _require_completion(stored, _newest_state(earlier), market)
    mistakes.refuse()
    return Prepared(stored, market, chosen, earlier, checked.notes, start=None, later=True)


def _earlier_runs(job: str, store: Store | None) -> list[OpenRun]:
    """
    Return the readable runs in `store` whose job has this name, in the order of `ours_first`. Return an empty list if
    `store` is None or cannot be read.
    """
    if store is None:
        return []
    with contextlib.suppress(StoreError):
        runs, _ = open_each(store, [name for name in store.folders() if name.rpartition("-")[0] == job])
        return ours_first(runs)
    return []


def _if_going_on(run: OpenRun) -> str | None:
    try:
        if run.final_status() is not None:
            return None
        state, looked_after = run.ledger.refresh(), attended(run)
    except StoreError as error:
        return f"{run.typed} cannot be read: {error.message}" if run.known.is_known() else None
    if state.terminal is not None or (not looked_after and all(each.settled for each in state.launches.values())):
        return None
    return attended_to(run.typed, state) if looked_after else left_alone(run.typed, state)


def _newest_state(runs: Sequence[OpenRun]) -> RunState | None:
    with contextlib.suppress(StoreError):
        return runs[0].ledger.refresh() if runs else None
    return None


def billed(spec: RunSpec) -> bool:
    """
    Return True if a launch costs real money. Even a launch of simulated instances does, if the store is a real bucket.
    """
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


def _require_completion(spec: RunSpec, newest: RunState | None, market: Market) -> None:
    """
    Refuse a job if it is already certain that the run would never complete, or would miss its deadline. The speed of
    the training is taken from `newest`, the newest run with this name.

    Raises:
        SpecInvalid: the run would never complete on spot instances; or the deadline cannot be met even on demand.
    """
    known = None if newest is None else measured_by(newest, market.unborn.created.time_scale)
    found = hopeless_on_spot(spec, known, median_life(market.world.observations))
    if found is not None:
        raise SpecInvalid(found.reason, hint=found.fix)
    if spec.policy.deadline is None:
        return
    now = system_clock().now()
    if (reason := unreachable(spec, deadline_at(spec.policy.deadline, now) - now)) is not None:
        or_work = "" if spec.policy.expected_work is None else ", or correct policy.expected_work"
        hint = f"give a later policy.deadline{or_work}"
        raise SpecInvalid(reason, hint=hint, key=("policy", "deadline"))


def _who_bills(spec: RunSpec) -> str:
    if not billed(spec):
        return "There is no bill."
    return f"There is no bill for the instances; the objects in {spec.checkpoint.place} may cost money."


def _deadline_in_words(spec: RunSpec, *, later: bool) -> str | None:
    if spec.policy.deadline is None:
        return None
    now = system_clock().now()
    at = deadline_at(spec.policy.deadline, now)
    unknown = "; on demand until its work is measured, because expected_work is not given"
    known = "" if spec.policy.expected_work else unknown
    clock = " of run time" if clock_of(spec).scale != 1 else ""
    until = f"within {short_duration(at - now)} of its beginning" if later else f"by {at.astimezone():%Y-%m-%d %H:%M}"
    return f"To be done {until}{clock}, strategy {spec.policy.strategy}{known}."
