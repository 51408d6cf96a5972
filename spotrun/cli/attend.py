"""What launch and resume share: they show the plan, and attend to a run in the foreground."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from spotrun import address
from spotrun.account.summary import RunSummary, summarise
from spotrun.cli.background import say_that_it_attends
from spotrun.cli.before_launch import about_home, earlier_run, first_look, no_choice, without_checkpoints
from spotrun.cli.interrupts import Interrupts
from spotrun.cli.notifying import notifying
from spotrun.cli.program import program
from spotrun.cli.runs import OpenRun
from spotrun.cli.signals import Signalled
from spotrun.clock import system_clock
from spotrun.clouds.registry import cloud_of
from spotrun.creation import clock_of, deadline_at
from spotrun.errors import RunEnded, SpecInvalid, needs_extra
from spotrun.folder.ledger import forged
from spotrun.folder.machine_use import machine_use
from spotrun.market.wishes import may_be_asked
from spotrun.market.world import World
from spotrun.notify.news import night
from spotrun.notify.notifier import Notifier
from spotrun.offering import Offering
from spotrun.policy import Append, decide
from spotrun.policy.cross_region import reservable
from spotrun.policy.deadline import unreachable
from spotrun.policy.facts import Facts
from spotrun.policy.feasibility import earlier, hopeless_on_spot, median_life
from spotrun.policy.least_budget import least_budget_usd
from spotrun.policy.throughput import works_of_hours
from spotrun.report import limits, offers, terminal
from spotrun.report.folding import say
from spotrun.report.live import view_for
from spotrun.report.results import how_to_get
from spotrun.report.tables import short_duration
from spotrun.report.view import View
from spotrun.run.events import LaunchIntended, RunStopped
from spotrun.run.owners import about_forged
from spotrun.run.reasons import in_one_line, member_in
from spotrun.run.state import RunState
from spotrun.runner import Tick
from spotrun.spec.model import RunSpec

ONLY_WHERE_THE_NETWORK_IS_YOURS = (
    "PyTorch on them runs what it receives from anyone who reaches its ports: train together only where the network is"
    " yours (docs/gangs.md)."
)


def show_plan(spec: RunSpec, *, later: bool = False) -> None:
    """
    Print the offerings that suit the run, and tick the one that it will ask for first. `later`: it does not begin now.

    Raises:
        SpecInvalid: no offering suits, none is within max_price now, or the run would never be done.
        CloudError: nothing is offered there.
    """
    unborn, world = first_look(spec)
    refuse_hopeless(spec, world)
    chosen = _first_choice(spec, unborn, world)
    facts = Facts.at_birth(unborn, spec, world)
    asked = [each for each in world.offerings if may_be_asked(each, spec.resources)]
    work = works_of_hours(facts, asked)
    offers.show(sorted(asked, key=work.__getitem__) if work else asked, chosen, work=work)
    if spec.num_nodes > 1:
        all_of_them = spec.num_nodes * chosen.price_usd_per_hour
        say(f"{spec.num_nodes} instances train together: ${all_of_them:.4f} an hour in all, by the first choice.")
        if not chosen.simulated:
            say(ONLY_WHERE_THE_NETWORK_IS_YOURS)
    if (home := about_home(spec)) is not None:
        say(home)
    if chosen.simulated:
        scale = f", time passes {spec.local.time_scale:g} times as fast" if spec.local.time_scale != 1 else ""
        say(f"The local cloud: processes on this machine, simulated prices{scale}. {_who_bills(spec)}")
    if (warning := without_checkpoints(spec)) is not None:
        say(warning)
    show_deadline(spec, later=later)


def refuse_hopeless(spec: RunSpec, world: World) -> None:
    """
    Raises:
        SpecInvalid: an earlier run of this name showed that on spot the run would never be done.
    """
    before = earlier_run(spec)
    known = None if before is None else earlier(before, clock_of(spec).scale)
    found = hopeless_on_spot(spec, known, median_life(world.observations))
    if found is not None:
        raise SpecInvalid(found.reason, hint=found.fix)


def billed(spec: RunSpec) -> bool:
    """Whether a launch costs real money: the instances may be simulated, and the bucket real."""
    return not (cloud_of(spec).simulated and isinstance(address.parse(spec.checkpoint.uri), str))


def _who_bills(spec: RunSpec) -> str:
    """For a simulated cloud."""
    place = address.parse(spec.checkpoint.uri)
    if not billed(spec):
        return "Nobody is billed."
    return f"Nobody bills the instances; the objects in {place} may cost money."


def show_deadline(spec: RunSpec, *, later: bool = False) -> None:
    """
    Print the deadline of the run, and the strategy that keeps it. `later`: it does not begin now.

    Raises:
        SpecInvalid: not even on-demand could meet it.
    """
    if spec.policy.deadline is None:
        return
    now = system_clock().now()
    at = deadline_at(spec.policy.deadline, now)
    if (reason := unreachable(spec, at - now)) is not None:
        hint = "give a later policy.deadline, or correct policy.expected_work"
        raise SpecInvalid(reason, hint=hint, key=("policy", "deadline"))
    known = (
        ""
        if spec.policy.expected_work
        else "; on demand until its work is measured, because expected_work is not given"
    )
    clock = " of run time" if clock_of(spec).scale != 1 else ""
    until = f"within {short_duration(at - now)} of its beginning" if later else f"by {at.astimezone():%Y-%m-%d %H:%M}"
    say(f"To be done {until}{clock}, strategy {spec.policy.strategy}{known}.")


def show_start(path: Path) -> None:
    """
    Print which checkpoint a run will begin from.

    Raises:
        SpecInvalid: the file is not a Lightning checkpoint, or could run code.
    """
    with needs_extra("lightning", "a Lightning checkpoint"):
        from spotrun.lightning.checkpoint_file import read_facts
    facts = read_facts(path)
    rest = "" if facts.has_optimizer else "; it has no optimizer state, so Lightning will refuse it"
    say(f"begins from step {facts.step:,} of {path} (Lightning {facts.lightning}){rest}")


def _first_choice(spec: RunSpec, unborn: RunState, world: World) -> Offering:
    """The offering that the run's first decision will ask for."""
    for action in decide(unborn, spec, world, unborn.created_at):
        if isinstance(action, Append) and isinstance(action.event, LaunchIntended):
            return action.event.offering
        if isinstance(action, Append) and isinstance(action.event, RunStopped):
            reason = f"nothing could be launched: {action.event.reason}"
            least = least_budget_usd(unborn, spec, world)
            first = "the first instance needs" if spec.num_nodes == 1 else f"the {spec.num_nodes} instances need"
            needed = "" if least is None else f": {first} ${least}"
            raise SpecInvalid(reason, hint=f"raise budget.max_usd{needed}", key=("budget", "max_usd"))
    _refuse_a_far_bucket(Facts.at_birth(unborn, spec, world), spec.resources.cloud)
    raise no_choice(spec, world.offerings)


def _refuse_a_far_bucket(facts: Facts, cloud: str) -> None:
    """
    Raises:
        SpecInvalid: no offering could keep the budget.
    """
    offerings, bucket_region = facts.world.offerings, facts.state.created.storage.region
    if offerings and not any(reservable(facts, found) for found in offerings):
        raise SpecInvalid(
            f"a budget cannot be kept: the bucket is in {bucket_region}, every offering is "
            "elsewhere, and the transfer cost of checkpoints is not known before the first one",
            hint=f"add that region to {cloud}.regions, use a bucket in one of them, or leave budget.max_usd out",
            key=("budget", "max_usd"),
        )


def attend(run: OpenRun, *, nightly: bool = False, background: bool = False) -> None:
    """
    Be the run's runner until it ends, then show its bill. After a nightly run, send its summary. `background`: no
    terminal belongs to this process.

    Raises:
        RunEnded: the run failed, or was stopped.
        LimitExceeded: the run is complete, and the condition of `report.fail_if` holds.
        KeyboardInterrupt, Signalled: this process attends to the run no longer. What is left of it has been said.
    """
    with notifying(run, ours=nightly) as notifier:
        last = _until_the_end(run, notifier, Interrupts(run, background=background))
        if last is None:
            return
        summary = summarise(last.state, run.clock.now())
        terminal.show(summary, machines=machine_use(run.store, last.state))
        _show_results(run, last.state)
        if line := about_forged(forged(last.state), run.typed):
            say(line)
        if nightly:
            notifier.tell(night(last.state, summary))
    _report_end(run, last)
    check_limits(run.spec, summary)


def _show_results(run: OpenRun, state: RunState) -> None:
    files = state.stored_files
    weights, found_by = state.has_weights, run.typed
    print()
    for line in how_to_get(program(), run.created.name, found_by, weights=weights, files=files):
        print(line)


def _until_the_end(run: OpenRun, notifier: Notifier, interrupts: Interrupts) -> Tick | None:
    """The last tick; None if the run was left to another runner."""
    view = view_for(run.ledger, run.clock, run.spec, run.id)
    show = _show_or_go_on(view)

    def watch(tick: Tick) -> None:
        notifier.show(run.ledger.entries)
        show(tick)

    try:
        while True:
            try:
                with view:
                    return run.runner.run(watch)
            except (KeyboardInterrupt, Signalled) as caught:
                if not interrupts.answer(caught):
                    return None
    finally:
        interrupts.done()


def check_limits(spec: RunSpec, summary: RunSummary) -> None:
    """
    Raises:
        LimitExceeded: the condition of `report.fail_if` holds.
    """
    if spec.report.fail_if is not None:
        limits.check(limits.parse(spec.report.fail_if), summary)


def _report_end(run: OpenRun, last: Tick) -> None:
    terminal_state = last.state.terminal
    assert terminal_state is not None
    if terminal_state.outcome == "completed":
        return
    hint = f"see `spotrun logs {run.typed}{_of_member(last.state)}`; continue with `spotrun resume {run.typed}`"
    if terminal_state.outcome == "failed":
        hint += ", which trains the code as it was uploaded; " + launch_again(run, last.state)
    raise RunEnded(f"{run.id} {terminal_state.outcome}: {in_one_line(terminal_state.detail)}", hint=hint)


def _of_member(state: RunState) -> str:
    """Of a gang, the flag that shows what the member has printed on which it failed, if that is not the lead."""
    named = member_in(state.terminal.detail) if state.terminal is not None and state.of_gangs else ""
    return f" --member {named}" if named else ""


def launch_again(run: OpenRun, state: RunState) -> str:
    """How to train what has changed since the run was launched, from the run's newest checkpoint if it has one."""
    if not state.has_weights:
        return "to train a change, launch again"
    file = quote(f"{run.created.name}.ckpt")
    return (
        "to train a change, launch again, or from the newest checkpoint: "
        f"`spotrun checkpoints export {run.typed} {file}`, then `spotrun launch JOB.yaml --from {file}`"
    )


def changed_script(run: OpenRun) -> str | None:
    """What to say if the script on this machine is not the one that the run was launched with; None if it may be."""
    launched, train = run.created.script_sha256, run.spec.train
    source = train.source(Path(run.spec.workdir))
    if not launched or source is None:
        return None
    try:
        here = hashlib.sha256((Path(run.spec.workdir) / source).read_bytes()).hexdigest()
    except OSError:
        return None  # launched from another machine, or the folder has gone
    if here == launched:
        return None
    advice = launch_again(run, run.ledger.state)
    return f"{source} has changed since the launch, and this run trains it as it was uploaded; {advice}"


def _show_or_go_on(view: View[Tick]) -> Callable[[Tick], None]:
    """Show ticks, and keep attending even if the reader of our output has left (`| head`, a terminal that is gone)."""

    def show(tick: Tick) -> None:
        say_that_it_attends()
        try:
            view.show(tick)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process

    return show
