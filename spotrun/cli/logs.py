"""`spotrun logs`"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import RunOrNewest, StoreOption
from spotrun.errors import CloudError, LedgerDamaged, RunNotFound
from spotrun.run.gang import MemberName
from spotrun.runs.flags import only_one
from spotrun.runs.members import MemberOption, member_named
from spotrun.units import some_of

if TYPE_CHECKING:
    from spotrun.run.state import RunState
    from spotrun.runs.open_run import OpenRun
    from spotrun.store.port import Store

FOLLOW_EVERY_S = 1.0
"""Seconds of system time between two readings of new chunks."""


def logs(
    run: RunOrNewest = None,
    store: StoreOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new output as it arrives, until the run ends.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Print only the log of attempt N, counted from 1.")
    ] = None,
    member: MemberOption = None,
) -> None:
    """
    Print the output of the training, attempt by attempt.

    For a run on several nodes, this is the output of rank 0, or of the instance that --member names.

    The output of each instance begins with a line like `==> attempt 2: spot in us-east-1a (g5.xlarge) <==`. If the
    run's ledger is damaged, the command still shows the output, then reports the damage.
    """
    from spotrun.runs.asking import say
    from spotrun.runs.open_run import open_run, or_newest_here
    from spotrun.runs.unreadable import nameless

    only_one(attempt=attempt is not None, member=member is not None)
    run = or_newest_here(run, store)
    try:
        opened = open_run(run, store)
    except LedgerDamaged:
        if (found := nameless(run, store)) is not None:
            _Output(found.store).print_new(None)
        raise
    only = _only(opened, attempt, member)
    output = _Output(opened.store, only)
    while True:
        state, damage = opened.read_whole_part()
        output.print_new(state)
        if damage is not None:
            raise damage
        if not follow or state.terminal is not None:
            break
        time.sleep(FOLLOW_EVERY_S)
    if not output.told and not _print_consoles(opened, only):
        say(output.none_told())


def _only(run: OpenRun, attempt: int | None, member: str | None) -> MemberName | None:
    """Return the member whose log to print, or None to print the logs of all members."""
    if attempt is None and member is None:
        return None
    state, _ = run.read_whole_part()
    return _lead_of(run, state, attempt) if attempt is not None else member_named(run, state, member or "")


def _lead_of(run: OpenRun, state: RunState, attempt: int) -> MemberName:
    """Return the member that had rank 0 in the run's attempt number `attempt`. Attempts count from 1."""
    found = {ordinal: number for number, ordinal in state.ordinals().items()}
    if attempt not in found:
        known = f"a number from 1 to {len(found)}" if len(found) > 1 else "--attempt 1, its only one" if found else None
        raise RunNotFound(f"{run.id} has no attempt {attempt}{'' if found else ' yet'}", hint=known)
    return state.attempts[found[attempt]].names[0]


_CHUNK = re.compile(r"logs/(\d{1,15})(?:\.(\d{1,2}))?/([^/]+)")
"""Matches the key of a chunk of an agent's log. Other objects in the folder of logs do not match."""


class _Output:
    """Prints the chunks of a run's logs as they arrive, instance by instance, each below a title."""

    def __init__(self, store: Store, only: MemberName | None = None) -> None:
        """Print the log of member `only`. If that is None, print the logs of all members that `_shows` selects."""
        self.told: set[str] = set()
        self._only = only
        self._store = store
        self._prefix = "logs/" if only is None else f"logs/{only.place}/"
        self._title = ""
        self._in_line = False

    def print_new(self, state: RunState | None) -> None:
        """
        Print the chunks that have not been printed yet. The title of an instance names its attempt and its offering,
        as they are in `state`. If `state` is None, because the ledger is damaged, the title names only the launch.
        """
        keys = (key for key in _keys(self._store, self._prefix) if _CHUNK.fullmatch(key))
        new = (key for key in keys if key not in self.told and self._shows(state, _order(key)[0]))
        for key in sorted(new, key=_order):
            text = _text(self._store, key)
            self._print_title(_title(state, _order(key)[0]))
            sys.stdout.write(text)
            self._in_line = not text.endswith("\n")
            self.told.add(key)
        sys.stdout.flush()

    def _shows(self, state: RunState | None, name: MemberName) -> bool:
        """
        Return True if the log of member `name` should be shown. In a gang, only members that had rank 0 are shown,
        because the trainers of the others print the same, or nothing.
        """
        if self._only is not None or state is None or not state.of_gangs:
            return True
        if name.launch in state.launches and state.launches[name.launch].attempt is None:
            return name.member == 0
        return any(attempt.names[0] == name for attempt in state.attempts.values())

    def none_told(self) -> str:
        """Say that nothing was printed, and how to print the output of other members, if there is any."""
        names = sorted({_order(key)[0] for key in _keys(self._store, "logs/") if _CHUNK.fullmatch(key)})
        if not names:
            return "no instance wrote any output"
        if self._only is not None:
            return "it wrote no output; without --attempt and --member, all output is printed"
        return f"the lead wrote no output; --member prints that of {some_of([str(name) for name in names])}"

    def _print_title(self, title: str) -> None:
        """Print the title, unless it is the same as the last one. `tail -f` on several files does the same."""
        if title != self._title:
            sys.stdout.write(("\n" if self._in_line else "") + f"==> {title} <==\n")
            self._title = title


def _title(state: RunState | None, name: MemberName) -> str:
    """
    Return a title like `attempt 2: spot in local-a (sim-v100)`. An instance without an attempt has a title too, such as
    `no attempt yet: spot in local-a (sim-v100)`, because its agent may already write a log.
    """
    from spotrun.report.tables import plain
    from spotrun.report.why import offering_text

    launch = None if state is None else state.launches.get(name.launch)
    if state is None or launch is None:
        return f"launch {name.launch}"
    if state.of_gangs:
        return f"member {name}: {plain(offering_text(launch.intent.offering))}"
    if launch.attempt is not None:
        attempt = f"attempt {state.ordinals()[launch.attempt]}"
    else:
        attempt = "no attempt yet" if launch.pending else "no attempt"
    return f"{attempt}: {plain(offering_text(launch.intent.offering))}"


def _print_consoles(run: OpenRun, only: MemberName | None) -> bool:
    """
    Print the console output of the run's instances, or of only one member. The console is the only log of an instance
    whose agent never started. Return False if there is none.
    """
    from spotrun.report.describe import printable

    printed = False
    for instance in run.driver.instances(run.created.uid, must_see=()):
        if only is not None and (instance.launch, instance.member) != (only.launch, only.member):
            continue
        try:
            console = run.cloud.console(instance)
        except CloudError as error:
            console = error.message
        if console is not None:
            printed = True
            print(f"console of {instance.instance_id}:")
            print(printable(console))
    if run.cloud.failed_starts and only is None:
        for key in _keys(run.store, run.cloud.failed_starts):
            printed = True
            print(f"launch {key.removeprefix(run.cloud.failed_starts).removesuffix('.log')}, before its agent ran:")
            print(_text(run.store, key))
    return printed


def _keys(store: Store, prefix: str) -> list[str]:
    from spotrun.store.retrying import persist

    return [stored.key for stored in persist(lambda: store.list(prefix))]


def _text(store: Store, key: str) -> str:
    from spotrun.report.describe import printable
    from spotrun.run.bounds import LOG_CHUNK_BYTES
    from spotrun.store.retrying import persist

    data = persist(lambda: store.get(key, 0, LOG_CHUNK_BYTES + 1))
    cut = f"\n[spotrun] {key} is longer than any chunk of an agent; its end is not shown\n"
    text = data[:LOG_CHUNK_BYTES].decode(errors="replace") + (cut if len(data) > LOG_CHUNK_BYTES else "")
    return printable(text)


def _order(key: str) -> tuple[MemberName, str]:
    """Return the key by which chunks are sorted: by launch, then by member, then by number."""
    found = _CHUNK.fullmatch(key)
    assert found is not None
    return MemberName(int(found[1]), int(found[2] or 0)), found[3]
