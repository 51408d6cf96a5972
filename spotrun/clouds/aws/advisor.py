"""
Reads Amazon's Spot Instance Advisor. For each instance type and region, it shows how often EC2 interrupted spot
instances last month, as a band such as "<5%" or "5-10%".

The data is public (https://aws.amazon.com/ec2/spot/instance-advisor/), but not part of EC2's API.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.errors import CloudError
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType
from spotrun.store.atomic_write import write_atomically

ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
KEPT_FOR_S = 24 * 3600.0
"""Maximum age of the cached data in seconds. The data describe the last month and seldom change."""
_TIMEOUT_S = 20.0
_SIZE_MAX_BYTES = 64 << 20
_LINUX = "Linux"


class Advised(msgspec.Struct, frozen=True):
    """The advisor's data for one type in one region. `r` is the index of the type's band (see `Range`)."""

    r: int


class Range(msgspec.Struct, frozen=True):
    index: int
    label: str


class Advice(msgspec.Struct, frozen=True):
    ranges: tuple[Range, ...]
    spot_advisor: dict[str, dict[str, dict[str, Advised]]]

    def band(self, region: str, instance_type: str) -> str | None:
        """
        Return the share of the type's instances that were interrupted last month, as a band such as "<5%". Return None
        if the advisor does not list the type.
        """
        advised = self.spot_advisor.get(region, {}).get(_LINUX, {}).get(instance_type)
        return next((each.label for each in self.ranges if advised is not None and each.index == advised.r), None)


def bands_known(source: str, regions: Iterable[str], instance_types: Collection[str], clock: Clock) -> dict[str, str]:
    """
    Return the band of each type in each region, keyed by `REGION/TYPE`. Types without a band in the advisor's data at
    `source` are left out. If `instance_types` is empty, all types are returned. Raises the same
    errors as `read_advice`.
    """
    advice = read_advice(source, clock)
    found = {
        f"{region}/{kind}": advice.band(region, kind)
        for region in regions
        for kind in (instance_types or advice.spot_advisor.get(region, {}).get(_LINUX, {}))
    }
    return {name: band for name, band in found.items() if band is not None}


def read_advice(source: str, clock: Clock, cache: Path | None = None) -> Advice:
    """
    Read the advisor's data from a file or a URL. Data from a URL is kept in `cache` for a day.

    Raises:
        CloudError: `source` cannot be read, or its content is not the advisor's data.
    """
    try:
        if source.startswith(("http://", "https://")):
            return _decoded(_through(cache or _default_cache(), source, clock))
        return _decoded(Path(source).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise CloudError(
            f"the Spot Instance Advisor cannot be read from {source}: {error}", hint=f"try --advisor {ADVISOR_URL}"
        ) from error


def with_bands(quotes: Quotes, advice: Advice) -> Quotes:
    return replace(quotes, quotes=tuple(_with_band(quote, advice) for quote in quotes.quotes))


def _with_band(quote: Quote, advice: Advice) -> Quote:
    offering = quote.offering
    if offering.capacity_type is not CapacityType.SPOT:
        return quote
    return replace(quote, interruption_band=advice.band(offering.region, offering.instance_type))


def _through(cache: Path, url: str, clock: Clock) -> bytes:
    kept = cache / f"spot-advisor-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
    if kept.exists() and clock.now().timestamp() - kept.stat().st_mtime < KEPT_FOR_S:
        return kept.read_bytes()
    data = _fetched(url)
    _decoded(data)  # raises an error, so only the advisor's data is cached
    cache.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, data)
    return data


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  read_advice checked for http or https
        data: bytes = answer.read(_SIZE_MAX_BYTES)
        return data


def _decoded(data: bytes) -> Advice:
    return msgspec.json.decode(data, type=Advice)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spotrun"
