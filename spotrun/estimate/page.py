"""Makes the HTML page of `spotrun estimate STUDY --html FILE`: a single file that loads no other files."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby

from spotrun.estimate.assumptions import assumptions
from spotrun.estimate.cost_study import CostStudy
from spotrun.estimate.costs import DAYS_MAX, Cost, costs
from spotrun.estimate.report import digits, tables
from spotrun.estimate.speeds import samples_per_second
from spotrun.report.html.document import document
from spotrun.report.html.drawing import ROW, axis, bar, curve, lane, legend, picture, plot
from spotrun.report.html.markup import Markup, element, head, join, row, section, table
from spotrun.report.tables import FiguresTable, dollars
from spotrun.spec.own_machine import Machine

COLOURS = {"spot": "spot", "on-demand": "on_demand", "own": "productive", "subscription": "storage"}


def estimates_page(studies: Sequence[tuple[str, CostStudy]]) -> str:
    """Return one page for several studies, each given with the name of its file."""
    title = studies[0][1].title if len(studies) == 1 else f"{len(studies)} cost studies"
    return document(title, element("main", element("h1", title), *(_study(*study) for study in studies)))


def _study(name: str, study: CostStudy) -> Markup:
    trainings = groupby(costs(study), key=lambda cost: cost.training)
    machines = [(place, found.own) for place, found in study.places.items() if found.own is not None]
    assumed = element("ul", *(element("li", line) for line in assumptions(study)))
    return join(
        element("p", f"{study.title}, from {name}" + (f", after {study.source}" if study.source else "")),
        *(section(f"Dollars of {training}", _bars(list(rows))) for training, rows in trainings),
        *(section(f"An hour of {place}", _hours(place, machine, study)) for place, machine in machines),
        section("All figures", *(_listed(each) for each in tables(study))),
        section("Assumed", assumed),
    )


def _bars(rows: Sequence[Cost]) -> Markup:
    """Draw a bar for each place. The bar of the most expensive place has the full width."""
    most = max(row.usd for row in rows) or Decimal(1)
    drawn = [
        lane(row.place, bar(0, 0, float(row.usd / most) * 100, ROW, COLOURS[row.capacity]), value=dollars(row.usd))
        for row in rows
    ]
    said = ", ".join(f"{row.place} {dollars(row.usd)} in {digits(row.hours)} h" for row in rows)
    used = dict.fromkeys(row.capacity for row in rows)
    return join(picture(f"Cost: {said}", *drawn), legend([(COLOURS[each], each) for each in used]))


def _hours(place: str, machine: Machine, study: CostStudy) -> Markup:
    """
    Draw the price of an hour on the user's machine as a curve: the more days a month it is used, the cheaper an hour
    is. For comparison, draw a horizontal line at the price of the same number of samples on the cheapest rented
    machine.
    """
    prices = [machine.usd_per_hour(Decimal(day)) for day in range(1, DAYS_MAX + 1)]
    rival, rented = _rival(study, place)
    most = max([*prices, rented]) or Decimal(1)
    points = ((100 * day / (DAYS_MAX - 1), float(price / most)) for day, price in enumerate(prices))
    level = [curve(((0, float(rented / most)), (100, float(rented / most))), "on_demand")] if rival else []
    drawn = plot(dollars(most), "$0", curve(points, "productive"), *level)
    keys = [("productive", place), *([("on_demand", rival)] if rival else [])]
    said = f"An hour of {place}: {dollars(prices[0])} at 1 day a month, {dollars(prices[-1])} at {DAYS_MAX}"
    return join(picture(said, drawn, axis(["1 day a month", "16", f"{DAYS_MAX}"])), legend(keys))


def _rival(study: CostStudy, own: str) -> tuple[str, Decimal]:
    """
    Find the rented place with the lowest price per sample. Return its title, and what it charges for as many samples as
    the user's machine `own` trains in an hour.

    The comparison uses the first training whose speed is known both at `own` and at a rented place. If there is no such
    training, return "" and 0.
    """
    for training, rows in groupby(costs(study), key=lambda cost: cost.training):
        speed = samples_per_second(study, own, training)
        others = [row for row in rows if study.places[row.place].own is None and row.samples_per_usd is not None]
        if speed is not None and others:
            cheapest = others[0]
            assert cheapest.samples_per_usd is not None
            title = f"{cheapest.place} ({cheapest.capacity}) for as many samples of {training}"
            return title, speed * 3600 / cheapest.samples_per_usd
    return "", Decimal(0)


def _listed(found: FiguresTable) -> Markup:
    """
    Return a table as HTML. Leave out its column of bars, because the page already draws these bars above the table.
    """
    columns = [number for number, text in enumerate(found.heads) if text]
    heads = [head(found.heads[number].replace("\n", " ")) for number in columns]
    rows = [row(cells[0], [cells[number] for number in columns[1:]]) for cells, *_ in found.rows]
    return table(found.title, heads, rows)
