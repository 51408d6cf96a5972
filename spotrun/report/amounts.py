"""
Rounds the dollars in tables so that, in each row and in each column, the amounts shown add up exactly to the sum shown.

All amounts are rounded to the same number of decimals, some up and some down, and zero stays zero. The choice between
up and down keeps the sum of each row and of each column.

To do so, the method finds a cycle of amounts that are not yet rounded: a path that moves alternately along a row and
along a column, and returns to its start. It adds a quantity to the first amount of the cycle, subtracts the same
quantity from the second, adds it to the third, and so on. This changes no sum. The quantity is chosen so that at least
one more amount is rounded. The method repeats this until all amounts are. Statistical offices use it (B. D.
Causey, L. H. Cox, L. R. Ernst, "Applications of Transportation Theory to Statistical Problems", JASA 80, 1985).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from spotrun.account.summary import Account, RunSummary
from spotrun.report.tables import NOTHING, decimals

Place = tuple[int, int]
"""Row and column of an amount. The last row and the last column hold the sums."""


class Money(NamedTuple):
    """
    One row of a bill in dollars, rounded for tables.

    `kept` is the sum of storage, requests and egress. `waiting` is the part of `spot` and `on_demand` that was paid for
    gang members while they waited for other members.
    """

    cost: str
    spot: str
    on_demand: str
    own: str
    storage: str
    requests: str
    egress: str
    kept: str
    all_on_demand: str
    waiting: str


def money(summary: RunSummary) -> list[Money]:
    """
    Return one item for each completed epoch, in order; then one for all costs that belong to no completed epoch; and
    last, the sum for the whole run.
    """
    accounts = [*summary.epochs, summary.rest]
    places, compared_places = decimals(summary.total.cost_usd), decimals(summary.total.counterfactual_usd)
    paid = with_sums(rounded([_parts(account) for account in accounts], places))
    compared = with_sums(rounded([[account.counterfactual_usd] for account in accounts], compared_places))
    waited = with_sums(rounded([[account.waiting_usd] for account in accounts], places))
    return [
        _money(
            account,
            parts,
            places,
            as_text(other, account.counterfactual_usd, compared_places),
            as_text(part, account.waiting_usd, places),
        )
        for account, parts, (other,), (part,) in zip([*accounts, summary.total], paid, compared, waited, strict=True)
    ]


def _parts(account: Account) -> list[Decimal]:
    return [account.spot_usd, account.on_demand_usd, account.own_usd, *_kept(account)]


def _kept(account: Account) -> list[Decimal]:
    return [account.storage_usd, account.requests_usd, account.egress_usd]


def _money(account: Account, parts: Sequence[Decimal], places: int, compared: str, waiting: str) -> Money:
    texts = [as_text(shown, exact, places) for shown, exact in zip(parts, _parts(account), strict=True)]
    cost = as_text(sum(parts, Decimal(0)), account.cost_usd, places)
    kept = as_text(sum(parts[-len(_kept(account)) :], Decimal(0)), account.kept_usd, places)
    return Money._make([cost, *texts, kept, compared, waiting])


def as_text(shown: Decimal, exact: Decimal, places: int) -> str:
    """
    Format an amount as `$0.0123`. An amount of exactly zero is shown as a dash, and an amount that rounds to zero as
    `<$0.0001`.
    """
    if not exact:
        return NOTHING
    sign = "-" if (shown or exact) < 0 else ""
    return f"{sign}${abs(shown):.{places}f}" if shown else f"{sign}<${Decimal(1).scaleb(-places):f}"


def with_sums(rows: Sequence[Sequence[Decimal]]) -> list[list[Decimal]]:
    """Return the rows, and below them the sum of each column."""
    return [*(list(row) for row in rows), [sum(column, Decimal(0)) for column in zip(*rows, strict=True)]]


def rounded(rows: Sequence[Sequence[Decimal]], places: int) -> list[list[Decimal]]:
    """
    Round each amount up or down to `places` decimals.

    The rounded amounts of a row or column add up to the row's or column's exact sum, rounded up or down. All rounded
    amounts together add up to the exact total, rounded to the nearest value.
    """
    digits = max([places, *(-_exponent(amount) for row in rows for amount in row)])
    unit = 10 ** (digits - places)
    exact = [[int(amount.scaleb(digits)) for amount in row] for row in rows]
    # Extend each row and each column by its negated sum. Then each row and each column adds up to zero, so each amount
    # with a remainder is part of a cycle.
    table = [[*row, -sum(row)] for row in exact]
    table.append([-sum(column) for column in zip(*table, strict=True)])
    _shift_rests(table, unit)
    return [[Decimal(amount // unit).scaleb(-places) for amount in row[:-1]] for row in table[:-1]]


def _exponent(amount: Decimal) -> int:
    exponent = amount.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _shift_rests(table: list[list[int]], unit: int) -> None:
    """Round all amounts to multiples of `unit`, cycle by cycle, as the module's docstring describes."""
    corner = (len(table) - 1, len(table[0]) - 1)
    nearest = _nearest(table[-1][-1], unit)
    graph: dict[int, set[int]] = {}
    for i, row in enumerate(table):
        for j, amount in enumerate(row):
            if amount % unit:
                graph.setdefault(i, set()).add(~j)
                graph.setdefault(~j, set()).add(i)
    while graph:
        cycle = _cycle(graph)
        if corner in cycle:
            at = cycle.index(corner)
            cycle = cycle[at:] + cycle[:at]
        i, j = cycle[0]
        upwards = (nearest if cycle[0] == corner else _nearest(table[i][j], unit)) > table[i][j]
        signs = [1 if (number % 2 == 0) == upwards else -1 for number in range(len(cycle))]
        step = min(-sign * table[i][j] % unit for (i, j), sign in zip(cycle, signs, strict=True))
        for (i, j), sign in zip(cycle, signs, strict=True):
            table[i][j] += sign * step
            if table[i][j] % unit == 0:
                _cut(graph, i, ~j)


def _nearest(amount: int, unit: int) -> int:
    """
    Return the multiple of `unit` that is nearest to `amount`. If two are equally near, return the even one, as Decimal
    does.
    """
    return round(Fraction(amount, unit)) * unit


def _cycle(graph: dict[int, set[int]]) -> list[Place]:
    """
    Find a cycle of amounts that are not yet rounded, and return their places.

    In the graph, row i is the node `i`, column j is the node `~j`, and each such amount is an edge. Every node has at
    least two edges: each row and each column adds up to zero, so it cannot contain only one amount that is not rounded.
    """
    path = [next(iter(graph))]
    at = {path[0]: 0}
    before: int | None = None
    while True:
        following = next(node for node in graph[path[-1]] if node != before)
        if following in at:
            nodes = path[at[following] :]
            return [(max(edge), ~min(edge)) for edge in zip(nodes, [*nodes[1:], following], strict=True)]
        before = path[-1]
        at[following] = len(path)
        path.append(following)


def _cut(graph: dict[int, set[int]], one: int, other: int) -> None:
    for node, neighbour in ((one, other), (other, one)):
        graph[node].discard(neighbour)
        if not graph[node]:
            del graph[node]
