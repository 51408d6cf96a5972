"""What an hour cost while a run went on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from spotrun.account.timeline import account_end
from spotrun.run.state import Launch, RunState

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
