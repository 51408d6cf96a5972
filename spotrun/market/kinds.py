"""Matches offerings with the kinds that a job accepts."""

from __future__ import annotations

from collections.abc import Sequence

from spotrun.offering import Offering
from spotrun.spec.kinds import Kind, NamedType


def is_of(offering: Offering, kind: Kind) -> bool:
    """Return whether an offering is of a kind; letter case does not matter."""
    has = offering.instance_type if isinstance(kind, NamedType) else offering.accelerators
    return has.casefold() == str(kind).casefold()


def kind_among(offering: Offering, kinds: Sequence[Kind]) -> Kind | None:
    """Return the first of these kinds that the offering is; None if it is none."""
    return next((kind for kind in kinds if is_of(offering, kind)), None)
