"""
Matches offerings with a job's requirements. If no offering meets a requirement, names that requirement and suggests
alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import NamedTuple

from spotrun.market.accelerators import PEAK_TFLOPS
from spotrun.offering import CapacityType, Offering
from spotrun.spec.kinds import ANY_OF, AnyOf, Kind, NamedType
from spotrun.spec.model import ResourcesSpec, RunSpec
from spotrun.units import Amount, Unreadable, plain_usd

LIKE = 0.8
"""
Minimum similarity (difflib ratio) at which a name counts as a misspelling of another name. V101:1 and V100:1 are
similar enough; no two names of regions are.
"""
NAMED_MAX = 12
"""Maximum number of alternatives that a suggestion lists."""
SEVERAL = 2
"""
If a cloud offers an accelerator in at least this many different numbers (such as L4:1 and L4:4), a suggestion lists all
of them, because it is unclear which number the user meant.
"""


class Requirement(NamedTuple):
    """
    One requirement of a job.

    `key` is the key in the job, or the flag, that sets the requirement. `words` is the requirement's wording in
    messages. `fits` tests whether an offering meets the requirement. `has` returns the property of an offering that
    `fits` tests, such as its region.
    """

    key: tuple[str | int, ...]
    words: str
    fits: Callable[[Offering], bool]
    has: Callable[[Offering], str]


def named(key: tuple[str | int, ...], wanted: Collection[str], has: Callable[[Offering], str]) -> Requirement:
    """
    Return a requirement: the value that `has` returns for an offering must be one of the names in `wanted`. The
    comparison ignores case.
    """
    names = {each.casefold() for each in wanted}
    word = next(str(part) for part in reversed(key) if isinstance(part, str))
    return Requirement(key, f"{word} {' or '.join(wanted)}", lambda found: has(found).casefold() in names, has)


def wishes_of(resources: ResourcesSpec) -> Iterator[Requirement]:
    """Yield the requirements of a job, except its capacity type and its price."""
    names = {
        "region": (resources.region, lambda found: found.region),
        "zone": (resources.zone, lambda found: found.zone),
        "instance_type": (resources.instance_type, lambda found: found.instance_type),
    }
    for key, (wanted, has) in names.items():
        if wanted is not None:
            yield named(("resources", key), (str(wanted),), has)
    if isinstance(resources.accelerators, AnyOf):
        yield _any_of(resources.accelerators)
    elif resources.accelerators is not None:
        yield _of_kind_named(("resources", "accelerators"), resources.accelerators)
    if resources.cpus is not None:
        yield _sized("cpus", resources.cpus, lambda found: found.cpus)
    if resources.memory is not None:
        yield _sized("memory", resources.memory, lambda found: found.memory_gib)


def suitable(offerings: Iterable[Offering], spec: RunSpec) -> list[Offering]:
    """
    Return the offerings of any capacity type that meet the requirements in the run's `resources`, cheapest first. The
    user's own machine is always among them, because the requirements apply only to cloud instances.
    """
    cloud, wishes = spec.resources.cloud, [*wishes_of(spec.resources)]
    found = (
        each
        for each in offerings
        if each.capacity_type is CapacityType.OWN or (each.cloud == cloud and all(wish.fits(each) for wish in wishes))
    )
    return sorted(found, key=_by_price)


def _by_price(offering: Offering) -> tuple[Decimal, str, str]:
    return offering.price_usd_per_hour, offering.zone, offering.instance_type


def suits(offering: Offering, wanted: ResourcesSpec) -> bool:
    """
    Return True if an offering meets the requirements in `wanted`. Its capacity type and its price are not checked.
    """
    return offering.cloud == wanted.cloud and all(wish.fits(offering) for wish in wishes_of(wanted))


def is_of(offering: Offering, kind: Kind) -> bool:
    """
    Return True if an offering has the accelerators, or the instance type, that `kind` names. Case is ignored.
    """
    has = offering.instance_type if isinstance(kind, NamedType) else offering.accelerators
    return has.casefold() == str(kind).casefold()


def kind_among(offering: Offering, kinds: Sequence[Kind]) -> Kind | None:
    """Return the first of `kinds` that `offering` matches; None if it matches none of them."""
    return next((kind for kind in kinds if is_of(offering, kind)), None)


def _any_of(choice: AnyOf) -> Requirement:
    key, words = ("resources", "accelerators"), f"accelerators {choice}"
    return Requirement(
        key, words, lambda found: kind_among(found, choice.kinds) is not None, lambda found: found.accelerators
    )


def _of_kind_named(key: tuple[str | int, ...], kind: Kind) -> Requirement:
    word = "instance_type" if isinstance(kind, NamedType) else "accelerators"
    return Requirement(key, f"{word} {kind}", lambda found: is_of(found, kind), lambda found: getattr(found, word))


def not_named(offered: Sequence[Offering], resources: ResourcesSpec, types: Sequence[str]) -> Unreadable | None:
    """
    Check whether each instance type and each kind that a job lists is offered. If not, return a problem that names the
    first one that is not offered; otherwise, return None.

    `types` is the list `instance_types` in the cloud's section of the job. It is ignored if `resources` names an
    instance type. The kinds come from `any_of` in `resources`, if the job has that list.
    """
    listed = types if resources.instance_type is None else ()
    kinds = resources.accelerators.kinds if isinstance(resources.accelerators, AnyOf) else ()
    wishes = [
        *(
            named((resources.cloud, "instance_types", index), (name,), lambda found: found.instance_type)
            for index, name in enumerate(listed)
        ),
        *(_of_kind_named(("resources", "accelerators", ANY_OF, index), kind) for index, kind in enumerate(kinds)),
    ]
    return next(filter(None, (unmet(offered, (wish,)) for wish in wishes)), None)


def wishes_by_flags(
    regions: Collection[str] = (), instance_types: Collection[str] = (), accelerators: Collection[str] = ()
) -> Iterator[Requirement]:
    """
    Yield the requirements that the flags of the command line set. A flag that lists several names requires any one of
    them.
    """
    if regions:
        yield named(("--region",), regions, lambda found: found.region)
    if instance_types:
        yield named(("--instance-type",), instance_types, lambda found: found.instance_type)
    if accelerators:
        yield named(("--accelerators",), accelerators, lambda found: found.accelerators)


def _sized(key: str, wanted: Amount, has: Callable[[Offering], int]) -> Requirement:
    def enough(found: Offering) -> bool:
        return has(found) >= wanted.number if wanted.at_least else has(found) == wanted.number

    return Requirement(("resources", key), f"{key} {wanted}", enough, lambda found: f"{has(found):5}")


def unmet(offered: Sequence[Offering], wishes: Iterable[Requirement]) -> Unreadable | None:
    """
    Return a problem that names a requirement in `wishes` which cannot be met. Return None if at least one offering
    meets all requirements.

    The problem names a requirement that no offering meets. If each requirement alone is met by some offering, they are
    applied one after another, and the problem names the first one that leaves no offering. The problem's `at` is the
    key of the named requirement. Its suggestion lists alternatives that, if possible, also meet all other requirements.
    """
    asked = list(wishes)

    def instead_of(wish: Requirement, left: Sequence[Offering]) -> Sequence[Offering]:
        return [found for found in left if all(each.fits(found) for each in asked if each is not wish)] or left

    for wish in asked:
        if not any(map(wish.fits, offered)):
            return _refusal(wish, f"nothing is offered with {wish.words}", instead_of(wish, offered))
    left = list(offered)
    for place, wish in enumerate(asked):
        rest = [found for found in left if wish.fits(found)]
        if not rest:
            others = ", ".join(each.words for each in asked[:place])
            return _refusal(wish, f"nothing with {others} is offered with {wish.words}", instead_of(wish, left))
        left = rest
    return None


def _refusal(wish: Requirement, reason: str, offered: Sequence[Offering]) -> Unreadable:
    cheapest: dict[str, Decimal] = {}
    for found in offered:
        if value := wish.has(found):
            cheapest[value] = min(found.price_usd_per_hour, cheapest.get(value, found.price_usd_per_hour))
    if not cheapest:
        return Unreadable(reason, "leave it out", at=wish.key)
    wanted = wish.words.partition(" ")[2]
    meant = [] if wanted.partition(":")[0].upper() in PEAK_TFLOPS else _like(wanted, [*cheapest])
    same = [each for each in cheapest if each.partition(":")[0].casefold() == wanted.partition(":")[0].casefold()]
    meant = meant or same
    if meant and len(same) < SEVERAL:
        return Unreadable(reason, f"did you mean {_priced(meant[0], cheapest, ',')}?", at=wish.key)
    names = sorted(same or cheapest, key=_by_count)
    listed = ", ".join(_priced(name, cheapest) for name in names[:NAMED_MAX])
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    number = float(wanted) if re.fullmatch(r"\d+(\.\d+)?", wanted, re.ASCII) else None
    least = f"write {wish.words.replace(' ', ': ')}+ for at least that; "
    or_more = "" if number is None or number > max(map(float, cheapest)) else least
    return Unreadable(reason, f"{or_more}there is {listed}{more}", at=wish.key)


def _by_count(name: str) -> tuple[str, int, str]:
    """Return a sort key that orders by name and then by count: `L4:2` comes before `L4:10`."""
    kind, _, count = name.partition(":")
    return kind, int(count) if count.isdecimal() else 0, name


def _like(wanted: str, known: list[str]) -> list[str]:
    by_folded = {each.casefold(): each for each in known}
    return [by_folded[found] for found in get_close_matches(wanted.casefold(), by_folded, 1, LIKE)]


def too_dear(offered: Sequence[Offering], resources: ResourcesSpec) -> Unreadable:
    """
    Return the reason why no suitable offering can be used: spot_policy allows none of them, or all those that it allows
    cost more than max_price.
    """
    wanted = [found for found in offered if _of_kind(found, resources)]
    said = "" if resources.spot_policy == "auto" else f"{resources.spot_policy} "
    if not wanted:
        return Unreadable(f"no {said}offering suits", "write spot_policy: auto", at=("resources", "spot_policy"))
    cheapest = min(wanted, key=lambda found: found.price_usd_per_hour)
    advice = f"write {plain_usd(cheapest.price_usd_per_hour)} or more, the current price of {cheapest}, or leave it out"
    return Unreadable(f"no suitable {said}offering is within max_price", advice, at=("resources", "max_price"))


def may_be_asked(offering: Offering, resources: ResourcesSpec) -> bool:
    """
    Return True if the job allows the offering's capacity type, and its price is within the job's max_price. Other
    requirements are not checked.
    """
    if offering.capacity_type is CapacityType.OWN:
        return True
    within = resources.max_price is None or offering.price_usd_per_hour <= resources.max_price
    return within and _of_kind(offering, resources)


def _of_kind(offering: Offering, resources: ResourcesSpec) -> bool:
    kind = {"spot": CapacityType.SPOT, "on-demand": CapacityType.ON_DEMAND}.get(resources.spot_policy)
    return kind in (None, offering.capacity_type)


def _priced(name: str, cheapest: Mapping[str, Decimal], comma: str = "") -> str:
    """Return the name with its lowest price, or without a price if the offerings have none."""
    price = cheapest[name]
    return f"{name.strip()}{comma} from ${plain_usd(price)}/h" if price else name.strip()
