"""Takes care of a run in the foreground, for `spotrun launch` and `spotrun resume`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from shlex import quote

from spotrun.account.summary import RunSummary, summarise
from spotrun.errors import RunEnded
from spotrun.folder.ledger import forged
from spotrun.folder.machine_use import machine_use
from spotrun.notify.news import night
from spotrun.notify.notifier import Notifier
from spotrun.policy.money import OUT_OF_BUDGET
from spotrun.report import limits, terminal
from spotrun.report.folding import say
from spotrun.report.live import view_for
from spotrun.report.results import how_to_get
from spotrun.run.events import Cause
from spotrun.run.owners import about_forged
from spotrun.run.reasons import in_brief, in_one_line, member_in
from spotrun.run.state import RunState
from spotrun.runner.tick import Tick
from spotrun.runs.background import say_that_it_attends
from spotrun.runs.interrupts import Interrupts
from spotrun.runs.notifying import notifying
from spotrun.runs.open_run import OpenRun
from spotrun.runs.program import program
from spotrun.runs.signals import Signalled
from spotrun.spec.model import RunSpec

CHANGED_CODE = "to train the changed code"


def attend(run: OpenRun, *, nightly: bool = False, background: bool = False) -> None:
    """
    Take care of the run as its runner until it ends, then show its bill. After a nightly run, send its summary.
    `background` is True if this process has no terminal.

    Raises:
        RunEnded: the run failed, or was stopped.
        LimitExceeded: the run is complete, and the condition of `report.fail_if` holds.
        KeyboardInterrupt, Signalled: this process no longer takes care of the run. Before `attend` raises this error,
            it prints the state of the run, and the command that continues the run.
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
    """Take care of the run until it ends, and return the last tick; None if another runner has taken over."""
    view = view_for(run.ledger, run.clock, run.spec, run.id)

    def watch(tick: Tick) -> None:
        notifier.show(run.ledger.entries)
        say_that_it_attends()
        view.show(tick)

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
    Check the condition of `report.fail_if`, if the job has one.

    Raises:
        LimitExceeded: the condition holds.
    """
    if spec.report.fail_if is not None:
        limits.check(limits.parse(spec.report.fail_if), summary)


def _report_end(run: OpenRun, last: Tick) -> None:
    terminal_state = last.state.terminal
    assert terminal_state is not None
    if terminal_state.outcome == "completed":
        return
    what = f"{run.id} {terminal_state.outcome}: {in_one_line(terminal_state.detail)}"
    raise RunEnded(what, hint=f"see `spotrun logs {run.typed}{_of_member(last.state)}`; {next_step(run, last.state)}")


def next_step(run: OpenRun, state: RunState) -> str:
    """Return what to type after a run that is not complete. A failure of the job's own code comes again in a resume."""
    resumed = f"`spotrun resume {run.typed}`"
    assert state.terminal is not None
    if state.terminal.detail == OUT_OF_BUDGET:
        return launch_again(run, state, "a run keeps the budget of its launch: raise budget.max_usd in the job")
    if state.terminal.outcome != "failed":
        return f"continue with {resumed}"
    if state.terminal.cause is Cause.USER_ERROR:
        first = launch_again(run, state, "correct the job or its code")
        return f"{first}; {resumed} would train the uploaded code again"
    return f"continue with {resumed}, which trains the uploaded code; {launch_again(run, state, CHANGED_CODE)}"


def _of_member(state: RunState) -> str:
    """
    Return the flag that makes `spotrun logs` show the output of the member that failed. Return "" if the run has no
    gang, or if the reason for its failure names no member.
    """
    named = member_in(state.terminal.detail) if state.terminal is not None and state.of_gangs else ""
    return f" --member {named}" if named else ""


def launch_again(run: OpenRun, state: RunState, why: str) -> str:
    """
    Return advice for a changed script or job: how to train it from the beginning, or from the run's newest checkpoint
    if it has one. `why` is the first half of the sentence.
    """
    if not state.has_weights:
        return f"{why}, launch again"
    file = quote(f"{run.created.name}.ckpt")
    return (
        f"{why}, launch again; to continue from the newest checkpoint, "
        f"`spotrun checkpoints export {run.typed} {file}` and then `spotrun launch JOB.yaml --init-from {file}`"
    )


def fails_again(run: OpenRun) -> str | None:
    """Return a note if the run failed because of its own code, which `resume` would train again; otherwise None."""
    state = run.ledger.state
    if state.terminal is None or state.terminal.outcome != "failed" or state.terminal.cause is not Cause.USER_ERROR:
        return None
    failed = f"{run.id} failed because of its own code ({in_brief(state.terminal.detail)}), and trains the same again"
    return f"{failed}; {launch_again(run, state, CHANGED_CODE)}"


def changed_script(run: OpenRun) -> str | None:
    """
    Return a note if the script on this machine has changed since the launch; None if it is the same, or cannot be
    compared.
    """
    launched, train = run.created.script_sha256, run.spec.train
    source = train.source(Path(run.spec.workdir))
    if not launched or source is None:
        return None
    try:
        here = hashlib.sha256((Path(run.spec.workdir) / source).read_bytes()).hexdigest()
    except OSError:
        return None  # launched from another machine, or the folder was deleted
    if here == launched:
        return None
    advice = launch_again(run, run.ledger.state, CHANGED_CODE)
    return f"{source} has changed since the launch, and this run trains the uploaded version; {advice}"
