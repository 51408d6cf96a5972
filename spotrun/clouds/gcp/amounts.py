"""Reads amounts of money in Google's format."""

from __future__ import annotations

from decimal import Decimal

_NANO = Decimal("1e-9")


def usd(money: object) -> Decimal | None:
    """
    Convert an amount such as `{"currencyCode": "USD", "units": "1", "nanos": 750000000}` to a number, here 1.75. Return
    None if it is not in US dollars.
    """
    if not isinstance(money, dict) or money.get("currencyCode") != "USD":
        return None
    try:
        return int(money.get("units", 0)) + int(money.get("nanos", 0)) * _NANO
    except (TypeError, ValueError):
        return None
