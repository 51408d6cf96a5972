"""Draws how many members of an elastic gang trained over time, with its time and cost."""

from __future__ import annotations

from collections.abc import Sequence

from spotrun.account.gang_sizes import TrainedBy, by_size
from spotrun.report.html.chart import Scale
from spotrun.report.html.drawing import HEIGHT, axis, bar, level, picture, plot
from spotrun.report.html.markup import Markup, element, join
from spotrun.report.tables import short_duration
from spotrun.report.terminal import by_members
from spotrun.units import count_of

TITLE = "Members that trained"


def gang_sizes(found: Sequence[TrainedBy], scale: Scale, size: int) -> Markup:
    """Draw one bar for each of the intervals `found`. `size` is the number of members that the job asks for."""
    said = by_members(by_size(found))
    drawn = plot(count_of(size, "member"), "", *(_bar(each, scale, size) for each in found))
    times = axis(["0", short_duration(scale.end - scale.start)])
    return join(picture(f"{TITLE}: {said}", drawn, times), element("p", said, class_="soft"))


def _bar(each: TrainedBy, scale: Scale, size: int) -> Markup:
    x, top = scale.x(each.since), level(min(1.0, each.members / size))
    return bar(x, round(top, 1), scale.x(each.until) - x, round(HEIGHT - top, 1), "productive")
