"""A run as a drawing: what each moment was spent on, and which instance was there, in which zone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotrun.account.timeline import Activity, account_end, timeline
from spotrun.report.html.markup import Markup, bar, join, label, legend, picture
from spotrun.report.tables import plain, short_duration
from spotrun.run.state import Launch, RunState
from spotrun.units import count_of

LANES_MAX = 20
LEFT, WIDTH, ROW = 190, 800, 26
Stretch = tuple[datetime, datetime]


@dataclass(frozen=True)
class Scale:
    """Converts times to units of the drawing."""

    start: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        whole = max(self.end - self.start, timedelta(microseconds=1))
        return LEFT + WIDTH * min(1.0, max(0.0, (moment - self.start) / whole))


def chart(state: RunState, now: datetime) -> Markup:
    """One row for the run, one for commits and notices, one for overlap, and one for each zone and capacity type."""
    scale = Scale(state.created_at, account_end(state, now))
    lanes = _lanes(state, scale.end)
    drawn = list(lanes.items())[:LANES_MAX]
    overlap = overlaps(stretch for stretches in lanes.values() for stretch in stretches)
    rows = [
        join(label(0, 17, "the run"), _bars(scale, 0, [(s.start, s.end, str(s.kind)) for s in timeline(state, now)])),
        join(label(0, ROW + 17, "commits, notices"), _marks(state, scale)),
        join(label(0, 2 * ROW + 17, "overlap"), _bars(scale, 2, [(*stretch, "overlap") for stretch in overlap])),
    ]
    for row, ((zone, capacity), stretches) in enumerate(drawn, len(rows)):
        name = label(0, row * ROW + 17, f"{plain(zone, 14)} {capacity.replace('_', '-')}")
        rows.append(join(name, _bars(scale, row, [(*stretch, capacity) for stretch in stretches])))
    axis = _axis(scale, len(rows) * ROW + 17)
    left_out = f" Not drawn: {count_of(len(lanes) - len(drawn), 'more zone')}." if len(lanes) > len(drawn) else ""
    attempts = count_of(len(state.attempts), "attempt")
    said = f"Timeline: {attempts} over {short_duration(scale.end - scale.start)}.{left_out}"
    keys = [(str(kind), str(kind)) for kind in Activity]
    keys += [("spot", "spot instance"), ("on_demand", "on-demand instance"), ("overlap", "overlap, notice")]
    return join(picture(said, (len(rows) + 1) * ROW, *rows, axis), legend([*keys, ("commit", "commit")]), left_out)


def overlaps(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The times with more than one instance."""
    found: list[Stretch] = []
    latest: datetime | None = None
    for start, end in sorted(stretches):
        if latest is not None and start < latest:
            found.append((start, min(end, latest)))
        latest = end if latest is None else max(latest, end)
    return found


def _lanes(state: RunState, end: datetime) -> dict[tuple[str, str], list[Stretch]]:
    lanes: dict[tuple[str, str], list[Stretch]] = {}
    for launch in state.launches.values():
        stretch = _there(launch, end)
        if stretch is not None:
            offering = launch.intent.offering
            lanes.setdefault((offering.zone, str(offering.capacity_type)), []).append(stretch)
    return lanes


def _there(launch: Launch, end: datetime) -> Stretch | None:
    """The time for which the instance was billed; None before the meter runs."""
    if launch.billed_from is None:
        return None
    return launch.billed_from, launch.gone.ended_at if launch.gone is not None else end


def _bars(scale: Scale, row: int, stretches: Iterable[tuple[datetime, datetime, str]]) -> Markup:
    """Bars too narrow to see are drawn once for each unit and kind, so that the file stays small."""
    drawn: list[Markup] = []
    seen: set[tuple[int, str]] = set()
    for start, end, class_ in stretches:
        x, width = scale.x(start), scale.x(end) - scale.x(start)
        if width < 1 and (round(x), class_) in seen:
            continue
        seen.add((round(x), class_))
        drawn.append(bar(x, row * ROW + 3, max(width, 0.6), ROW - 8, class_))
    return join(*drawn)


def _marks(state: RunState, scale: Scale) -> Markup:
    commits = {round(scale.x(commit.at)) for commit in state.commits}
    notices = {round(scale.x(a.notice_at)) for a in state.attempts.values() if a.notice_at is not None}
    ticks = [bar(x, ROW + 8, 1, ROW - 12, "commit") for x in sorted(commits)]
    return join(*ticks, *(bar(x - 1, ROW + 2, 4, ROW - 5, "notice") for x in sorted(notices)))


def _axis(scale: Scale, y: float) -> Markup:
    """Time since the run's creation, at each quarter. Each text ends there, so that the last one is not cut off."""
    whole = scale.end - scale.start
    quarters = (label(LEFT + WIDTH * n / 4, y, short_duration(whole * n / 4), "end") for n in range(1, 5))
    return join(label(LEFT, y, "0"), *quarters)
