"""The hourly price over the time of a run, as one line of small bars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from spotrun.account.timeline import account_end
from spotrun.run.state import Launch, RunState

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24


def hourly_prices(state: RunState, now: datetime, width: int = WIDTH) -> list[Decimal | None]:
    """
    The hourly price of the newest instance at `width` evenly spaced moments, from the run's creation to now or its end;
    None where no instance was rented.
    """
    launches = list(state.launches.values())
    whole = account_end(state, now) - state.created_at
    moments = (state.created_at + whole * (n + 1) / width for n in range(width))
    return [_price_at(launches, moment) for moment in moments]


def _price_at(launches: Sequence[Launch], moment: datetime) -> Decimal | None:
    for launch in reversed(launches):
        gone = launch.gone is not None and launch.gone.ended_at < moment
        if launch.billed_from is not None and launch.billed_from <= moment and not gone:
            in_effect = [each for each in launch.prices if each.since <= moment] or list(launch.prices[:1])
            return in_effect[-1].usd_per_hour if in_effect else None
    return None


def sparkline(prices: Sequence[Decimal | None]) -> str:
    """A bar for each price, a space where there is none, and the range of prices beside them."""
    known = [price for price in prices if price is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    price_range = f"${low:f}/h" if low == high else f"${low:f} to ${high:f}/h"
    return f"{bars(prices)} {price_range}"


def bars(prices: Sequence[Decimal | None]) -> str:
    """The bars alone; empty if no price is known."""
    known = [price for price in prices if price is not None]
    return "".join(" " if price is None else _bar(price, min(known), max(known)) for price in prices) if known else ""


def _bar(price: Decimal, low: Decimal, high: Decimal) -> str:
    if low == high:
        return BARS[0]
    return BARS[int((price - low) / (high - low) * (len(BARS) - 1))]
