"""
Computes how often Google has recently interrupted spot instances of a type in a region. The result is one of the bands
in which Amazon publishes its figures, such as 5 to 10 %.

The two figures measure different things. Amazon's is the share of all instances that Amazon interrupted within a month.
Google's, r, is for one day: of the instances that *ended* on that day, the share that Google ended and not a user. It
does not tell how long the instances had run, so a band computed from r is not an interruption rate.

Therefore a run uses these bands only to compare Google's types and regions with each other
(spotrun.policy.interruption_rates). This assumes that users end instances of each type equally often. Then the
interruption rates are proportional to r / (1 - r), which is nearly r if r is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, NamedTuple

from spotrun.clock import Clock
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.capacity_history import histories
from spotrun.clouds.gcp.catalog import catalogs
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.moments import moment
from spotrun.errors import CloudError

KEPT_BY_GOOGLE = timedelta(days=30)
"""Maximum age of the shares: https://cloud.google.com/compute/docs/instances/view-spot-preemption-price"""
DAYS_MIN = 7
"""Minimum number of days with a share that a band needs, because one day's share may come from only a few instances."""
_BANDS = ((0.05, "<5%"), (0.10, "5-10%"), (0.15, "10-15%"), (0.20, "15-20%"))
_HIGHEST = ">20%"


class PreemptionShares(NamedTuple):
    """
    The daily shares that Google reports, keyed by type, oldest first. `troubles` gives the reason for each type without
    shares.
    """

    shares: Mapping[str, tuple[float, ...]]
    troubles: Mapping[str, str]


def preemption_shares(google: Google, project: str, region: str, types: Sequence[str]) -> PreemptionShares:
    """Read the shares of these types for the whole of `region`."""
    found = histories(google, project, region, types, "PREEMPTION")
    return PreemptionShares({kind: _shares(answer) for kind, answer in found.answers.items()}, found.troubles)


def bands_known(config: GcpConfig, clock: Clock) -> dict[str, str]:
    """
    Return the bands of the types that a job names, keyed by `REGION/TYPE`. A type has no band if Google reports its
    share for too few days. No error is raised here: a run that cannot reach Google will fail in other calls.
    """
    found: dict[str, str] = {}
    google = Google(clock).aside
    with suppress(CloudError):
        project = google.project(config.project)
        for region, catalog in catalogs(google, project, config, clock).items():
            found |= bands_in(google, project, region, catalog.asked_for)
    return found


def bands_in(google: Google, project: str, region: str, types: Sequence[str]) -> dict[str, str]:
    """Return the bands of these types in one region, keyed by `REGION/TYPE`."""
    shares = preemption_shares(google, project, region, types).shares
    bands = {f"{region}/{kind}": band_of(days) for kind, days in shares.items()}
    return {name: band for name, band in bands.items() if band is not None}


def band_of(days: Sequence[float]) -> str | None:
    """
    Return the band for the mean of the daily shares; None if there are too few days. The mean is not weighted, because
    Google does not report how many instances ended on each day.
    """
    if len(days) < DAYS_MIN:
        return None
    share = fmean(days)
    return next((band for limit, band in _BANDS if share < limit), _HIGHEST)


def _shares(answer: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the shares, oldest first. A day without a share is left out: no instance ended, or Google has no data."""
    read = (_read(record) for record in answer.get("preemptionHistory", ()))
    return tuple(share for _, share in sorted(day for day in read if day is not None))


def _read(record: Mapping[str, Any]) -> tuple[datetime, float] | None:
    begins, share = moment(record.get("interval", {}).get("startTime")), record.get("preemptionRate")
    if begins is None or not isinstance(share, int | float) or not 0 <= share <= 1:
        return None
    return begins, float(share)
