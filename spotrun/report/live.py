"""Shows a run until it ends: as a live screen on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spotrun.account.outcome import status_word
from spotrun.account.prices import hourly_prices
from spotrun.account.summary import RunSummary, summarise
from spotrun.clock import Clock, zone
from spotrun.folder.ledger import Ledger
from spotrun.folder.status_objects import AgentStatus, Usage
from spotrun.report.budget import budget_forecast, budget_line
from spotrun.report.describe import EVENT_INDENT, span, timestamp
from spotrun.report.folding import fold
from spotrun.report.members import members_now
from spotrun.report.next_decision import next_decision
from spotrun.report.sparkline import sparkline
from spotrun.report.tables import dollars, plain
from spotrun.report.view import Screen, View
from spotrun.report.watched import watched_line, watched_lines, worth_watching
from spotrun.run.billing import ZERO
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from spotrun.runner.tick import Tick
from spotrun.spec.model import RunSpec
from spotrun.units import count_of, plain_usd

EVENTS_SHOWN = 10
"""Maximum number of lines with events on the live screen."""
BAR_WIDTH, BAR_WIDTH_MIN = 40, 10
PLAIN_EVERY_S = 10.0
"""Seconds of system time after which a progress line is printed, even if nothing has happened."""
NEWS_EVERY_S = 1.0
"""
Minimum seconds of system time between two progress lines. Normally a progress line is printed every PLAIN_EVERY_S. It
is printed earlier only if the reason why the run waits has changed.
"""


def view_for(ledger: Ledger, clock: Clock, spec: RunSpec, run_id: str) -> View[Tick]:
    """Return a live screen if the output goes to a terminal, and plain lines if it goes to a file or a pipe."""
    kind = LiveView if sys.stdout.isatty() else PlainView
    return kind(ledger, clock, spec, run_id)


class _Watching:
    def __init__(self, ledger: Ledger, clock: Clock, spec: RunSpec, run_id: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._spec = spec
        self._run_id = run_id


class PlainView(_Watching, View[Tick]):
    """Prints a line for each event, and every few seconds a line about the progress."""

    _printed = 0
    _progress_at = 0.0
    _held_up: str | None = None
    _told = ""

    def show(self, tick: Tick) -> None:
        entries = self._ledger.entries
        for entry in worth_watching(entries[self._printed :]):
            print(watched_line(entry, tick.state), flush=True)
        self._printed = len(entries)
        held_up = tick.waiting_for or tick.remark
        news = held_up is not None and held_up != self._held_up
        if time.monotonic() - self._progress_at >= (NEWS_EVERY_S if news else PLAIN_EVERY_S):
            self._held_up = held_up
            self._progress_at = time.monotonic()
            print(self._progress(tick), flush=True)

    def _progress(self, tick: Tick) -> str:
        """Describe the progress. Why the run waits, which may be long, is not repeated on each line."""
        reasons = " | ".join(plain(text) for text in (tick.waiting_for, tick.remark) if text)
        told = "as above" if reasons and reasons == self._told else reasons
        self._told = reasons
        now = self._clock.now()
        summary = summarise(tick.state, now)
        budget = _budget(tick, summary, now)
        parts = [status_word(tick.state), _where(tick.state), _position(tick.status), _so_far(summary)]
        parts += [budget and f"budget {budget}", told]
        return f"{timestamp(now)}  ..  " + " | ".join(part for part in parts if part)


class LiveView(_Watching, Screen[Tick]):
    """
    A continuously updated screen that shows the progress, the instance that trains, the bill so far, and the newest
    events.
    """

    def __init__(self, ledger: Ledger, clock: Clock, spec: RunSpec, run_id: str) -> None:
        _Watching.__init__(self, ledger, clock, spec, run_id)
        Screen.__init__(self, Console(), refresh_per_second=4, transient=False)

    def render(self, tick: Tick) -> RenderableType:
        summary = summarise(tick.state, self._clock.now())
        facts = Group(self._head(tick), self._bar(tick.status), self._facts(tick, summary))
        return Group(facts, self._events(tick.state, self.height - len(self._console.render_lines(facts))))

    def _head(self, tick: Tick) -> Text:
        scale = f", {self._clock.scale:g} times as fast" if self._clock.scale != 1 else ""
        return Text.assemble(
            (self._run_id, "bold"),
            "  ",
            (status_word(tick.state), "bold cyan"),
            f"  {timestamp(self._clock.now())} {zone(self._clock.scale)}{scale}",
        )

    def _bar(self, status: AgentStatus | None) -> RenderableType:
        done, position = None if status is None else _fraction(status), _position(status)
        if done is None:
            return Text(position)
        left = self.width - len(position) - 1
        if left < BAR_WIDTH_MIN:
            return Group(_drawn(done, min(BAR_WIDTH, self.width)), Text(position))
        row = Table.grid(padding=(0, 1))
        row.add_row(_drawn(done, min(BAR_WIDTH, left)), Text(position))
        return row

    def _facts(self, tick: Tick, summary: RunSummary) -> Table:
        now = self._clock.now()
        facts = {
            "where": _where(tick.state) or "no instance",
            "members": "; ".join(f"{each.name} {each.does}" for each in members_now(tick.state, lambda _: None)),
            "so far": _so_far(summary),
            "price": sparkline(hourly_prices(tick.state, now)),
            "budget": _budget(tick, summary, now),
            "uses": _uses(tick.status),
            "durable": self._durable(tick.state),
            "next": plain(next_decision(tick.state, self._spec, now)),
            "waiting": plain(tick.waiting_for or ""),
            "beside": plain(tick.remark or ""),
        }
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in facts.items():
            if text:
                table.add_row(Text(name, "dim"), Text(text))
        return table

    def _durable(self, state: RunState) -> str:
        commit = state.latest_commit()
        if commit is None:
            return "no checkpoint yet"
        age = (self._clock.now() - commit.event.taken_at).total_seconds()
        files = commit.event.files
        what = f"step {commit.event.step:,}" if commit.event.has_image or files is None else f"{files.files:,} files"
        return f"{what}, {span(max(0.0, age))} ago"

    def _events(self, state: RunState, room: int) -> RenderableType:
        """
        Return the newest events that fit into `room` or `EVENTS_SHOWN` lines, whichever is fewer. No event is shown in
        part.
        """
        latest = worth_watching(self._ledger.entries[-4 * EVENTS_SHOWN :])
        lines: list[str] = []
        for entry in reversed(latest):
            told = watched_lines(entry, state, EVENT_INDENT)
            folded = [part for line in told for part in fold(line, self.width, EVENT_INDENT)]
            if lines and len(folded) + len(lines) > min(room, EVENTS_SHOWN):
                break
            lines = folded + lines
        return Text("\n".join(lines), overflow="ignore", no_wrap=True)


def _fraction(status: AgentStatus) -> float | None:
    """
    Return the share of the training that is done. If the number of epochs is unknown, return the share of this epoch.
    Return None if the number of batches is unknown too, as until the first step of a trainer.
    """
    if not (status.epochs or status.batches):
        return None
    within = status.batch / status.batches if status.batches else 0.0
    return min(1.0, (status.epoch + within) / status.epochs if status.epochs else within)


def _drawn(done: float, width: int) -> Text:
    """Draw a bar that can be read without colours."""
    full = round(done * width)
    return Text.assemble(("=" * full, "bar.complete"), ("." * (width - full), "bar.back"))


def _position(status: AgentStatus | None) -> str:
    if status is None or status.attempt is None or not (status.batches or status.step):
        return ""
    epochs = f"/{status.epochs}" if status.epochs else ""
    batches = f"/{status.batches}" if status.batches else ""
    batch = f"batch {status.batch}{batches}, " if status.batch or batches else ""
    return f"epoch {status.epoch + 1}{epochs}, {batch}step {status.step:,}"


def _uses(status: AgentStatus | None) -> str:
    """
    Describe how busy the run keeps its processors, how busy the machine and its GPUs are, and how much of the time the
    training waits for data.
    """
    if status is None or status.attempt is None:
        return ""
    parts = []
    if (usage := status.usage) is not None:
        used, there = usage.memory_used_bytes / 2**30, usage.memory_bytes / 2**30
        own = usage.own_cpu_share
        of_run = "" if own is None else f"this run {own:.0%} of {count_of(usage.own_cpus, 'CPU')}; the machine "
        of_machine = f"{usage.cpu_share:.0%} of {count_of(usage.cpus, 'CPU')}, {used:.1f} of {there:.1f} GiB of memory"
        parts.append(of_run + of_machine)
        parts += _gpus(usage)
    if status.data_wait is not None:
        parts.append(f"waits for data {status.data_wait:.0%} of the time")
    return "; ".join(parts)


def _gpus(usage: Usage) -> list[str]:
    """
    Describe how busy the GPUs are, and how much of their memory is used. Return an empty list if there are no GPUs.
    Memory is left out if the GPUs have no memory of their own.
    """
    if not usage.gpus:
        return []
    there_are, share = count_of(len(usage.gpus), "GPU"), usage.gpu_share
    parts = [there_are if share is None else f"{share:.0%} of {there_are}"]
    used, there = usage.gpu_memory
    if there:
        parts.append(f"{used / 2**30:.1f} of {there / 2**30:.1f} GiB of GPU memory")
    return [", ".join(parts)]


def _where(state: RunState) -> str:
    """Describe the instances that train and, if a launch is in progress, the instances that are starting."""
    places = [] if state.current is None else [_place(state, state.current.names)]
    if state.pending_launch is not None:
        places.append(f"starting {_place(state, state.pending_launch.names)}")
    return "; ".join(places)


def _place(state: RunState, names: Sequence[MemberName]) -> str:
    """
    Describe the offering on which the members `names` run. The price in the text is the hourly price of all their
    instances together.
    """
    launches = [state.launches[name.launch] for name in names]
    offering = launches[0].intent.offering
    how_many = f"{len(names)} x " if len(names) > 1 else ""
    usd_per_hour = sum((launch.newest_price_usd_per_hour for launch in launches), ZERO)
    return f"{how_many}{offering} at ${plain_usd(usd_per_hour)}/h" + (" simulated" if offering.simulated else "")


def _budget(tick: Tick, summary: RunSummary, now: datetime) -> str:
    found = budget_forecast(tick.state, summary, now, tick.epochs_total)
    return "" if found is None else budget_line(found)


def _so_far(summary: RunSummary) -> str:
    total = summary.total
    lost = count_of(total.interruptions, "interruption")
    return f"{dollars(total.cost_usd)}, downtime {span(total.downtime.total_seconds())}, {lost}"
