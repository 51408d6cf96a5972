"""
Defines a cost study: prices and speeds of several providers or machines, from which spotrun computes the costs of
trainings on them.

`spotrun.estimate.cost_study_file.load_study` reads a study; `spotrun.estimate` computes its figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from spotrun.spec import fields
from spotrun.spec.own_machine import Amount, Machine, Positive, read_positive
from spotrun.spec.problems import Key, Problem
from spotrun.spec.strict import Model
from spotrun.spec.values import clean_text
from spotrun.units import Unreadable, shown

NAMES_MAX = 200
YEAR_DAYS = Decimal("365.25")
Quantity = Literal[
    "usd_per_hour",
    "usd_per_month",
    "spot_usd_per_hour",
    "spot_share",
    "price_ratio",
    "samples",
    "samples_per_second",
    "mean_of_times",
    "speed_ratio",
    "hours",
    "usd",
    "spot_usd",
    "samples_per_usd",
    "normalised_time",
    "normalised_cost",
    "break_even_days",
]
"""The figures of a study that can be compared with published figures."""
OF_A_TRAINING = frozenset(
    {
        *("samples", "samples_per_second", "mean_of_times", "speed_ratio", "hours", "usd", "spot_usd"),
        *("samples_per_usd", "normalised_time", "normalised_cost", "break_even_days"),
    }
)
OF_TWO_PLACES = frozenset({"price_ratio", "speed_ratio", "break_even_days", "normalised_time", "normalised_cost"})


def _remark(value: object) -> str:
    """Return a text or a number (such as a year) as text, without the line end that a YAML block adds."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)
    return clean_text(value.strip() if isinstance(value, str) else value)


def _several(value: object) -> tuple[Any, ...]:
    """Return a tuple of the values in a list, or of a single value."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Remark = Annotated[str, BeforeValidator(_remark)]
Numbers = Annotated[tuple[Positive, ...], BeforeValidator(_several), Field(min_length=1, max_length=100)]


class Training(Model):
    """
    A training and its length. The length is either a number of `samples`, or a number of `steps` with `batch` samples
    in each step. `step_s` maps the name of each part of a step, such as the forward pass, to its duration in seconds.
    The parts of a step run one after another.
    """

    samples: Positive | None = None
    batch: Positive | None = None
    steps: Positive | None = None
    step_s: Mapping[str, Positive] = Field(default={}, max_length=20)

    @model_validator(mode="after")
    def _says_how_much(self) -> Training:
        if (self.batch is None) != (self.steps is None):
            raise Unreadable("batch and steps belong together", "write both, or samples")
        if (self.samples is None) == (self.batch is None):
            raise Unreadable("needs exactly one length", "write either samples, or batch and steps")
        return self

    @property
    def samples_in_all(self) -> Decimal:
        return self.samples if self.samples is not None else (self.batch or Decimal(0)) * (self.steps or Decimal(0))


class Part(Model):
    """A component that is rented together with others, such as a GPU with its machine."""

    usd_per_hour: Amount
    count: Positive = Decimal(1)


class Interrupted(Model):
    """Capacity that is interrupted now and then. After each interruption, the time `restart` is lost."""

    interruptions_per_hour: Amount = Decimal(0)
    restart: fields.Duration = timedelta(0)

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.lost_share >= 1:
            raise Unreadable("takes all of the time, so no time is left for training", "shorten it", at=("restart",))
        return self

    @property
    def lost_share(self) -> Decimal:
        """The share of the time that restarts take."""
        return self.interruptions_per_hour * Decimal(self.restart.total_seconds()) / 3600


class Spot(Interrupted):
    """Spot capacity. `usd_per_hour` is a mean price; `low` and `high` are the extremes, None if unknown."""

    usd_per_hour: Positive
    low: Positive | None = None
    high: Positive | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Spot:
        if self.low is not None and self.low > self.usd_per_hour:
            raise Unreadable("is more than usd_per_hour, the mean price", "write the lowest price", at=("low",))
        if self.high is not None and self.high < self.usd_per_hour:
            raise Unreadable("is less than usd_per_hour, the mean price", "write the highest price", at=("high",))
        return self


class Subscription(Model):
    """A fixed price per month for at most `hours_per_month`. A training that needs more hours pays for more months."""

    usd_per_month: Amount
    hours_per_month: Annotated[Decimal, BeforeValidator(read_positive), Field(le=744)]


class Rented(Interrupted):
    """
    Prices that are fetched from a cloud when the study is read: the current on-demand price, and the spot prices of the
    last `days` days.
    """

    cloud: fields.CloudName
    instance_type: fields.CloudName
    region: fields.CloudName | None = None
    days: Annotated[Decimal, BeforeValidator(read_positive), Field(le=90)] = Decimal(90)


class Listed(Interrupted):
    """
    The price of `count` instances of a type, from one of spotrun's price lists. Without a `region`, this is the price
    in the list's first region.
    """

    table: fields.Text
    type: fields.Text
    region: fields.CloudName | None = None
    count: Positive = Decimal(1)


class Measured(Model):
    """
    A speed from a measurement: `count` times the speed that `spotrun bench` has measured for the job file `job` on one
    instance of `type`.
    """

    job: fields.Text
    type: fields.Text
    store: fields.Text | None = None
    count: Positive = Decimal(1)


class Like(Model):
    """
    A speed that is computed from the speed of another place, `place`. That speed is multiplied by `devices`, and by the
    mean of the ratios that `times` lists for the training. If only some parts of a step run faster than at `place`,
    `faster` maps the name of each such part to the factor by which it is faster.
    """

    place: fields.Text
    devices: Positive = Decimal(1)
    times: Mapping[str, Numbers] = Field(default={}, max_length=NAMES_MAX)
    faster: Mapping[str, Positive] = Field(default={}, max_length=20)


_PRICES = ("usd_per_hour", "parts", "own", "subscription", "rented", "listed")


class Place(Model):
    """
    A place to train, with prices and speeds.

    The first six fields, `usd_per_hour` to `listed`, are ways to state the ordinary price. A place has exactly one of
    these prices, or only a `spot` price, or `spot` together with `usd_per_hour` or `parts`. The speed at which each
    training runs there is a number (`samples_per_second`), a result of `spotrun bench` (`measured`), or relative to
    another place (`like`). `source` and `as_of` say where the prices come from, and when they were valid.
    """

    usd_per_hour: Amount | None = None
    parts: Mapping[str, Part] | None = Field(default=None, min_length=1, max_length=20)
    own: Machine | None = None
    subscription: Subscription | None = None
    rented: Rented | None = None
    listed: Listed | None = None
    spot: Spot | None = None
    samples_per_second: Mapping[str, Positive] = Field(default={}, max_length=NAMES_MAX)
    measured: Mapping[str, Measured] = Field(default={}, max_length=NAMES_MAX)
    like: Like | None = None
    source: Remark | None = None
    as_of: Remark | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Place:
        given = [name for name in _PRICES if getattr(self, name) is not None]
        if len(given) > 1 or not (given or self.spot):
            said = f"has {' and '.join(given)}" if given else "has no price"
            raise Unreadable(said, f"write one of {', '.join(_PRICES)}, or spot")
        if self.spot is not None and not {*given} <= {"usd_per_hour", "parts"}:
            raise Unreadable(
                f"can be combined with usd_per_hour or parts, but not with {given[0]}", "remove it", at=("spot",)
            )
        speeds = [name for name in ("samples_per_second", "measured", "like") if getattr(self, name)]
        if self.like is not None and len(speeds) > 1:
            raise Unreadable(f"has both {speeds[0]} and like", "keep one of them")
        if twice := self.samples_per_second.keys() & self.measured.keys():
            raise Unreadable(f"{min(twice)} is also in samples_per_second", "keep one of them", at=("measured",))
        return self


class Published(Model):
    """
    A published figure. It is compared with the figure that spotrun computes from the study. `differs` is the reason why
    the two differ; if it is None, they have to agree.
    """

    figure: Annotated[Quantity, BeforeValidator(lambda value: _known(value, get_args(Quantity)))]
    value: Positive
    place: fields.Text | None = None
    against: fields.Text | None = None
    training: fields.Text | None = None
    differs: Remark | None = None

    @model_validator(mode="after")
    def _complete(self) -> Published:
        needed = {
            "place": self.figure != "samples",
            "training": self.figure in OF_A_TRAINING,
            "against": self.figure in OF_TWO_PLACES,
        }
        for name, needs in needed.items():
            if needs and getattr(self, name) is None:
                raise Unreadable(f"{self.figure} needs a {name}", f"add {name}: NAME")
            if not needs and getattr(self, name) is not None:
                raise Unreadable(f"{self.figure} has no {name}", "remove it", at=(name,))
        return self


class CostStudy(Model):
    """
    A cost study. `within` is the share by which a figure may differ from a published one. Normalised times and costs
    are relative to the place `base`; None means the first place.
    """

    title: Remark
    source: Remark | None = None
    as_of: Remark | None = None
    month_days: Annotated[Decimal, BeforeValidator(read_positive), Field(le=31)] = YEAR_DAYS / 12
    base: fields.Text | None = None
    assumptions: tuple[Remark, ...] = Field(default=(), max_length=NAMES_MAX)
    trainings: Mapping[str, Training] = Field(min_length=1, max_length=NAMES_MAX)
    places: Mapping[str, Place] = Field(min_length=1, max_length=NAMES_MAX)
    published: tuple[Published, ...] = Field(default=(), max_length=1000)
    within: Annotated[Decimal, BeforeValidator(read_positive), Field(le=1)] = Decimal("0.02")

    def with_places(self, change: Callable[[str, Place], Place]) -> CostStudy:
        """Return the study with each place replaced by what `change` returns for the name and the place."""
        return self.model_copy(update={"places": {name: change(name, place) for name, place in self.places.items()}})


def loose_ends(study: CostStudy) -> Iterator[Problem]:
    """
    Yield the problems with a study's names: spaces around a name, unknown names, and places whose `like` leads back to
    the same place.
    """
    places, trainings = tuple(study.places), tuple(study.trainings)
    for section, names in (("places", places), ("trainings", trainings)):
        for name in names:
            if name != name.strip() or not name:
                yield Problem((section, name), "is a name with spaces around it", "remove the spaces")
    yield from _unknown(("base",), study.base, places)
    for name, place in study.places.items():
        at: Key = ("places", name)
        for training in place.samples_per_second:
            yield from _unknown((*at, "samples_per_second", training), training, trainings)
        for training in place.measured:
            yield from _unknown((*at, "measured", training), training, trainings)
        if place.like is not None:
            yield from _loose_like(study, name, place.like)
    for number, each in enumerate(study.published):
        for key, known in (("place", places), ("against", places), ("training", trainings)):
            yield from _unknown(("published", number, key), getattr(each, key), known)


def _loose_like(study: CostStudy, name: str, like: Like) -> Iterator[Problem]:
    at: Key = ("places", name, "like")
    yield from _unknown((*at, "place"), like.place, tuple(study.places))
    for training in like.times:
        yield from _unknown((*at, "times", training), training, tuple(study.trainings))
    parts = dict.fromkeys(part for training in study.trainings.values() for part in training.step_s)
    for part in like.faster:
        yield from _unknown((*at, "faster", part), part, tuple(parts))
    if name in _ancestors(study, name):
        yield Problem((*at, "place"), "leads back to this place", "give one of these places samples_per_second")


def _ancestors(study: CostStudy, name: str) -> list[str]:
    """
    Return the places on which the speed at `name` depends: the place that its `like` names, then the place that this
    place's `like` names, and so on. If these references form a cycle, each place is listed once.
    """
    met: list[str] = []
    while (place := study.places.get(name)) is not None and place.like is not None and place.like.place not in met:
        name = place.like.place
        met.append(name)
    return met


def _unknown(key: Key, name: str | None, known: tuple[str, ...]) -> Iterator[Problem]:
    if name is not None and name not in known:
        yield Problem(key, f"there is no {shown(name)!r} here", _meant(name, known))


def _meant(name: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(name[:100], known, 1, cutoff=0.5)
    listed = ", ".join(shown(each) for each in known[:10])
    return f"did you mean {shown(close[0])}?" if close else f"known here: {listed or 'none'}"


def _known(value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise Unreadable(f"{shown(value)!r} is no figure that spotrun computes", _meant(str(value), known))
    return value
