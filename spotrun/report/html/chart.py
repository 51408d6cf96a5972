"""Draws a chart of a run over time: what the run did, and which instances it had in each zone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotrun.account.timeline import Activity, account_end, timeline
from spotrun.report.html.drawing import ROW, axis, bar, lane, legend, picture, tick
from spotrun.report.html.markup import Markup, join
from spotrun.report.tables import plain, short_duration
from spotrun.run.state import Launch, RunState
from spotrun.units import count_of

LANES_MAX = 20
QUARTERS = 4
Stretch = tuple[datetime, datetime]


@dataclass(frozen=True)
class Scale:
    """Converts times to positions, in percent of the drawing's width."""

    start: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        whole = max(self.end - self.start, timedelta(microseconds=1))
        return 100 * min(1.0, max(0.0, (moment - self.start) / whole))


def scale_of(state: RunState, now: datetime) -> Scale:
    """Return the scale of drawings of the whole run, as of `now`."""
    return Scale(state.created_at, account_end(state, now))


def chart(state: RunState, now: datetime) -> Markup:
    """
    Draw the run over time. There is one row for the run's activity, one for commits and notices, one for the times at
    which two instances overlapped (if there were any), and one for each zone and capacity type.
    """
    scale = scale_of(state, now)
    lanes = _lanes(state, scale.end)
    drawn = list(lanes.items())[:LANES_MAX]
    overlap = overlaps(stretch for stretches in lanes.values() for stretch in stretches)
    rows = [
        lane("the run", _bars(scale, [(s.start, s.end, str(s.kind)) for s in timeline(state, now)])),
        lane("commits, notices", _marks(state, scale)),
    ]
    if overlap:
        rows.append(lane("overlap", _bars(scale, [(*stretch, "overlap") for stretch in overlap])))
    for (zone, capacity), stretches in drawn:
        bars = _bars(scale, [(*stretch, capacity) for stretch in stretches])
        rows.append(lane(f"{plain(zone, 30)} {capacity.replace('_', '-')}", bars))
    whole = scale.end - scale.start
    times = axis(["0", *(short_duration(whole * n / QUARTERS) for n in range(1, QUARTERS + 1))])
    left_out = f" Not drawn: {count_of(len(lanes) - len(drawn), 'more zone')}." if len(lanes) > len(drawn) else ""
    attempts = count_of(len(state.attempts), "attempt")
    said = f"Timeline: {attempts} over {short_duration(whole)}.{left_out}"
    keys = [(str(kind), str(kind)) for kind in Activity]
    own = [("own", "own machine")] if any(capacity == "own" for (_, capacity), _ in drawn) else []
    keys += [("spot", "spot instance"), ("on_demand", "on-demand instance"), *own, ("overlap", "overlap, notice")]
    return join(picture(said, *rows, times), legend([*keys, ("commit", "commit")]), left_out)


def overlaps(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of the run's time in which more than one instance was billed."""
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
    """Return the start and the end of the time for which the launch was billed; None if billing has not begun."""
    if launch.billed_from is None:
        return None
    return launch.billed_from, launch.gone.ended_at if launch.gone is not None else end


def _bars(scale: Scale, stretches: Iterable[tuple[datetime, datetime, str]]) -> Markup:
    """
    Draw a bar for each stretch. Bars that are narrower than a thousandth of the drawing are hardly visible, so if
    several such bars of one class would be at the same place, draw only one of them.
    """
    drawn: list[Markup] = []
    seen: set[tuple[float, str]] = set()
    for start, end, class_ in stretches:
        x, width = scale.x(start), scale.x(end) - scale.x(start)
        if width < 0.1 and (round(x, 1), class_) in seen:
            continue
        seen.add((round(x, 1), class_))
        drawn.append(bar(x, 0, width, ROW, class_))
    return join(*drawn)


def _marks(state: RunState, scale: Scale) -> Markup:
    commits = {round(scale.x(commit.at), 1) for commit in state.commits}
    notices = {round(scale.x(a.notice_at), 1) for a in state.attempts.values() if a.notice_at is not None}
    ticks = [tick(x, 3, 1, ROW - 6, "commit") for x in sorted(commits)]
    return join(*ticks, *(tick(x, 0, 3, ROW, "notice") for x in sorted(notices)))
