"""Draws the hourly price of a run over time, as small bars in one line."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from spotrun.units import plain_usd

BARS = "▁▂▃▄▅▆▇█"


def sparkline(prices: Sequence[Decimal | None]) -> str:
    """Draw a bar for each price, and a space for each unknown price. Append the lowest and the highest price."""
    known = [price for price in prices if price is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    price_range = f"${plain_usd(low)}/h" if low == high else f"${plain_usd(low)} to ${plain_usd(high)}/h"
    return f"{bars(prices)} {price_range}"


def bars(prices: Sequence[Decimal | None]) -> str:
    """Draw the bars without the lowest and the highest price; return "" if no price is known."""
    known = [price for price in prices if price is not None]
    return "".join(" " if price is None else _bar(price, min(known), max(known)) for price in prices) if known else ""


def _bar(price: Decimal, low: Decimal, high: Decimal) -> str:
    if low == high:
        return BARS[0]
    return BARS[int((price - low) / (high - low) * (len(BARS) - 1))]
