"""
Translates SkyPilot's candidates (`any_of`, `ordered`) into spotrun's keys.

In SkyPilot, each candidate is one combination of a place, accelerators and a capacity type. In spotrun, a job names the
places, the kinds and the capacity types separately, and spotrun may rent any combination of them. So a list of
candidates is accepted only if it contains every combination of its values. With any other list, spotrun could rent a
combination that the user has left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from spotrun.spec.kinds import ANY_OF
from spotrun.spec.model import RunSpec
from spotrun.spec.problems import keys_of
from spotrun.spec.values import kind_of, read_accelerators
from spotrun.units import Unreadable, shown

CANDIDATES_MAX = 20
REGIONS_OF = tuple(path.removesuffix(".regions") for path in keys_of(RunSpec) if path.endswith(".regions"))
"""The clouds for which a job can name several `regions`."""
ELSEWHERE = ("k8s", "kubernetes", "ssh")
"""
Names that SkyPilot accepts where the name of a cloud usually stands, as in `k8s/CONTEXT`. The text after the first
slash is not a region, and can contain more slashes.
"""
OWN = ("infra", "cloud", "region", "zone", "accelerators", "instance_type", "use_spot")
"""Keys that can have a different value in each candidate. All other keys belong next to the list of candidates."""
PARTS = ("cloud", "region", "zone")
_ANY = "*"
_Item = TypeVar("_Item", bound=Hashable)
At = tuple[str | int, ...]


@dataclass(frozen=True)
class CandidatePlace:
    """The place that a candidate names. None means that any cloud, region or zone will do."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None

    def given(self) -> dict[str, str]:
        return {name: text for name in PARTS if (text := getattr(self, name)) is not None}


def read_place(value: object) -> CandidatePlace:
    """
    Read a place: `aws`, `aws/us-east-1` or `aws/us-east-1/us-east-1a`, with * for any region or zone.

    Raises:
        Unreadable: `value` is not a place.
    """
    form = "write it like aws, aws/us-east-1 or aws/us-east-1/us-east-1a"
    if not isinstance(value, str) or not value.strip():
        raise Unreadable(f"must be text, not {kind_of(value)}" if value else "is empty", form)
    first, *after = [part.strip() for part in value.strip().strip("/").split("/")]
    cloud = first.lower()
    if cloud in ELSEWHERE:
        return CandidatePlace(cloud)
    if "" in (first, *after) or len(after) > 2:
        raise Unreadable(f"{shown(value)!r} is not a place", form)
    region, zone = (None if part == _ANY else part for part in (*after, _ANY, _ANY)[:2])
    if cloud == _ANY:
        if region or zone:
            raise Unreadable("names a place without a cloud", f"write it like aws/{shown(region or _ANY)}")
        return CandidatePlace()
    return CandidatePlace(cloud, region, zone)


@dataclass(frozen=True)
class JobValue:
    """
    A value for one of spotrun's keys. If `value` is None, the key is removed.

    `spelled` lets messages name the keys that the user wrote. It has a pair for each part of the value: the part's key,
    relative to spotrun's key, and the user's key, relative to the list of candidates.
    """

    section: str
    name: str
    value: Any
    spelled: tuple[tuple[At, At], ...] = ()

    @property
    def shown(self) -> str:
        value = self.value[ANY_OF] if isinstance(self.value, dict) and ANY_OF in self.value else self.value
        if isinstance(value, list):
            return f"[{', '.join(map(shown, value))}]"
        return shown(str(value).lower() if isinstance(value, bool) else value)


@dataclass(frozen=True)
class Candidate:
    place: CandidatePlace
    kind: str | None
    spot: bool | None


@dataclass(frozen=True)
class Candidates:
    listed: Sequence[dict[str, Any]]
    each: Sequence[Candidate]
    in_order: bool

    @classmethod
    def read(cls, value: object, above: dict[str, Any], *, in_order: bool) -> Candidates:
        """
        Read the candidates. `above` holds the keys next to the list. They apply to each candidate that does not have
        the same key itself.

        Raises:
            Unreadable: a candidate is invalid. The error's `at` is the key that causes it, relative to the list.
        """
        if not isinstance(value, list) or not value:
            said = "is empty" if value == [] else f"must be a list, not {kind_of(value)}"
            raise Unreadable(said, "write a list like [{infra: aws/us-east-1}, {infra: aws/us-east-2}]")
        if len(value) > CANDIDATES_MAX:
            raise Unreadable(f"has {len(value)} candidates, and at most {CANDIDATES_MAX} are allowed", "remove some")
        for at, item in enumerate(value):
            if not isinstance(item, dict):
                raise Unreadable(f"must be a mapping, not {kind_of(item)}", "write it like {infra: aws}", at=(at,))
            for name in item:
                if name not in OWN:
                    advice = "write it above, next to the list, or remove it"
                    raise Unreadable("cannot differ between candidates", advice, at=(at, name))
        return cls(value, [_candidate(item, above, at) for at, item in enumerate(value)], in_order)

    def wishes(self) -> list[JobValue]:
        """
        Return the values of spotrun's keys that allow all of the listed candidates, and no other combination.

        Raises:
            Unreadable: there are no such values.
        """
        self._require_one_cloud()
        self._require_no_order()
        self._require_all_pairs()
        return [*self._of_places(), *self._of_kinds(), *self._of_spot()]

    def _require_one_cloud(self) -> None:
        for at, each in enumerate(self.each):
            first, other = self.each[0].place.cloud or "any", each.place.cloud or "any"
            if other != first:
                reason = f"a run stays on one cloud, but the candidates name {shown(first)} and {shown(other)}"
                raise Unreadable(
                    reason, "keep one cloud, or write a job for each cloud", at=self._key(at, "infra", "cloud")
                )

    def _require_no_order(self) -> None:
        """
        Refuse a list in order of preference, because spotrun always rents the cheapest instance. One order is accepted:
        spot before on demand, which is the order of `spot_policy: auto`.
        """
        rest = {(each.place, each.kind) for each in self.each}
        if self.in_order and len(self.each) > 1 and (len(rest) > 1 or self._spots != [True, False]):
            raise Unreadable("spotrun rents what costs least, in no other order", "write any_of in place of ordered")

    def _require_all_pairs(self) -> None:
        """
        Refuse a list that lacks a combination of its values, because spotrun might rent an instance of that
        combination.
        """
        allowed = {(each.place, each.kind, bool(each.spot)) for each in self.each}
        places, kinds = _distinct(each.place for each in self.each), _distinct(each.kind for each in self.each)
        for place, kind, spot in itertools.product(places, kinds, self._spots):
            if (place, kind, spot) not in allowed:
                told = [*place.given().values(), kind, "spot" if spot else "on demand"]
                reason = f"spotrun would also rent {shown(' '.join(filter(None, told)))}, which no candidate allows"
                raise Unreadable(reason, "add that candidate, or keep candidates that differ in only one value")

    def _of_places(self) -> list[JobValue]:
        places = _distinct(each.place for each in self.each)
        if len(places) == 1:
            return [self._of_one_place(name, getattr(places[0], name)) for name in PARTS]
        cloud, regions = places[0].cloud, _distinct(place.region for place in places)
        if any(place.zone for place in places):
            raise Unreadable("names different zones in different candidates", "name one zone, or only the regions")
        if None in regions:
            raise Unreadable("names regions only for some candidates", "name all regions, or none")
        if cloud is None:
            raise Unreadable("names regions without a cloud", "name the cloud, like infra: aws/us-east-1")
        if cloud not in REGIONS_OF:
            raise Unreadable(f"cloud {shown(cloud)} has no choice of regions", "keep one region")
        at = [next(i for i, each in enumerate(self.each) if each.place.region == region) for region in regions]
        spelled = tuple(((index,), self._key(one, "infra", "region")) for index, one in enumerate(at))
        elsewhere = [JobValue("resources", name, None) for name in ("region", "zone")]
        return [self._of_one_place("cloud", cloud), *elsewhere, JobValue(cloud, "regions", regions, spelled)]

    def _of_one_place(self, name: str, value: str | None) -> JobValue:
        named = {"infra", name} & self.listed[0].keys()
        return JobValue("resources", name, value, (((), self._key(0, "infra", name)),) if named else ())

    def _key(self, at: int, *names: str) -> At:
        """
        Return the key of the first of `names` that the candidate contains. If the candidate contains none of them,
        return the key of the whole candidate.
        """
        return (at, *[name for name in names if name in self.listed[at]][:1])

    def _of_kinds(self) -> list[JobValue]:
        kinds = _distinct(each.kind for each in self.each)
        if kinds == [None]:
            return []
        if None in kinds:
            raise Unreadable(
                "names accelerators only for some candidates", "name them for each candidate, or above the list"
            )
        at = [next(i for i, each in enumerate(self.each) if each.kind == kind) for kind in kinds]
        keys: list[At] = [(one, name) if (name := self._name_of_kind(one)) else () for one in at]
        if len(kinds) > 1:
            spelled = tuple(((ANY_OF, index), key) for index, key in enumerate(keys))
            choice = JobValue("resources", "accelerators", {ANY_OF: kinds}, spelled)
            return [JobValue("resources", "instance_type", None), choice]
        name = self._name_of_kind(at[0])
        return [] if name is None else [JobValue("resources", name, self.listed[at[0]][name], (((), keys[0]),))]

    def _name_of_kind(self, at: int) -> str | None:
        """
        Return the key under which the candidate itself names a kind of instance; None if the candidate has no such key.
        In that case, a key above the list may name a kind.
        """
        return next((name for name in ("instance_type", "accelerators") if name in self.listed[at]), None)

    @property
    def _spots(self) -> list[bool]:
        return _distinct(bool(each.spot) for each in self.each)

    def _of_spot(self) -> list[JobValue]:
        if all(each.spot is None for each in self.each):
            return []
        if len(self._spots) > 1:
            return [
                JobValue("resources", "use_spot", None),
                JobValue("resources", "spot_policy", "auto", (((), (0,)),)),
            ]
        return [JobValue("resources", "use_spot", self._spots[0], (((), (0,)),))]


def _candidate(item: dict[str, Any], above: dict[str, Any], at: int) -> Candidate:
    spot = item.get("use_spot", above.get("use_spot"))
    if spot is not None and not isinstance(spot, bool):
        raise Unreadable(f"must be true or false, not {kind_of(spot)}", "write true or false", at=(at, "use_spot"))
    return Candidate(_place(item, above, at), _own_kind(item, at) or _kind_above(above), spot)


def _place(item: dict[str, Any], above: dict[str, Any], at: int) -> CandidatePlace:
    if "infra" not in item:
        inherited = {} if {"region", "zone"} & item.keys() else above
        cloud = _text(item.get("cloud", above.get("cloud")))
        region, zone = (_text(item.get(name, inherited.get(name))) for name in ("region", "zone"))
        return CandidatePlace(cloud and cloud.lower(), region, zone)
    if twice := next((name for name in PARTS if name in item), None):
        raise Unreadable("cannot be combined with infra", "remove it", at=(at, twice))
    try:
        return read_place(item["infra"])
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(at, "infra")) from error


def _own_kind(item: dict[str, Any], at: int) -> str | None:
    """
    Return the kind of instance that the candidate names; None if it names none. If it names an instance type and
    accelerators, return the type, because it determines the accelerators too.
    """
    if "instance_type" in item:
        return _text(item["instance_type"])
    if "accelerators" not in item:
        return None
    try:
        return str(read_accelerators(item["accelerators"]))
    except Unreadable as error:
        raise Unreadable(error.message, error.suggestion, at=(at, "accelerators", *error.at)) from error


def _kind_above(above: dict[str, Any]) -> str | None:
    """
    Return the kind of instance that the keys above the list name, as unchecked text. It is checked later, by code whose
    error names the right key.
    """
    return _text(above.get("instance_type", above.get("accelerators")))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _distinct(items: Iterable[_Item]) -> list[_Item]:
    return [*dict.fromkeys(items)]
