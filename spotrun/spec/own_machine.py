"""Computes the price of an hour on a machine that the user owns."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, StrictInt, WithJsonSchema

from spotrun.spec import fields
from spotrun.spec.strict import Model
from spotrun.spec.values import kind_of
from spotrun.units import Unreadable, plain_usd, shown

LARGEST = Decimal(10) ** 15
ABOVE_ZERO = "write a number above 0"
FIGURES = "{purchase_usd: 6500, months: 30, days_per_month: 10}"
"""An example for messages: the values that the description of a machine must have, as a user would write them."""
PLACES = Decimal("1e-6")
"""Unit to which an hourly price is rounded, in dollars."""
_NUMBER = re.compile(r"\$?(\d[\d,_]{0,30}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?)([kKMG%]?)", re.ASCII)
_TIMES = {
    name: Decimal(times) for name, times in (("", 1), ("%", "0.01"), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("B", 1e9))
}


def this_host() -> str:
    """Return the name of this machine, in the form that the key `host` allows."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip(".-") or "localhost"


def read_amount(value: object, otherwise: str = "write 0 or more") -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Unreadable(f"must be a number, not {kind_of(value)}", _number_in(value))
    number = Decimal(str(value))
    if not 0 <= number <= LARGEST:
        raise Unreadable(f"{shown(value)} is not allowed here", otherwise)
    return number


def read_positive(value: object) -> Decimal:
    number = read_amount(value, ABOVE_ZERO)
    if number == 0:
        raise Unreadable("must be more than 0", ABOVE_ZERO)
    return number


def _number_in(value: object) -> str:
    """
    Return advice on how to write the number that the user probably meant, for a value that YAML reads as text. Examples
    are `1e9`, `1M`, `$3` and a value in quotes.
    """
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return "write it like 3 or 0.5"
    number = Decimal(match[1].replace(",", "").replace("_", "")) * _TIMES[match[2].upper()]
    return f"write {number:f}"


_as_number = PlainSerializer(lambda value: None if value is None else float(value))
Positive = Annotated[
    Decimal, BeforeValidator(read_positive), _as_number, WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Amount = Annotated[Decimal, BeforeValidator(read_amount), _as_number, WithJsonSchema({"type": "number", "minimum": 0})]


def _positive_up_to(most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": most})


_DaysOfMonth = Annotated[Decimal, BeforeValidator(read_positive), Field(le=31), _as_number, _positive_up_to(31)]
_HoursOfDay = Annotated[Decimal, BeforeValidator(read_positive), Field(le=24), _as_number, _positive_up_to(24)]


class Machine(Model):
    """
    A machine that the user owns. Its price is spread over `months` months, and it is in use on `days_per_month` days of
    each month. `maintenance_usd` is for all months together.
    """

    purchase_usd: Amount = Field(description="The price of the machine, in US dollars: 6500.")
    months: Positive = Field(description="The number of months over which the price is spread: 30.")
    maintenance_usd: Amount = Field(
        default=Decimal(0), description="The cost of upkeep in all of these months, in US dollars."
    )
    days_per_month: _DaysOfMonth = Field(
        description="On how many days of a month the machine computes: 10. With fewer days, an hour costs more."
    )
    hours_per_day: _HoursOfDay = Field(
        default=Decimal(24), description="How many hours the machine computes on such a day."
    )
    watts: Amount | None = Field(default=None, description="The machine's power while it computes, in watts: 1000.")
    usd_per_kwh: Amount | None = Field(default=None, description="The price of a kilowatt-hour, in US dollars: 0.20.")

    def _power_is_whole(self) -> Iterator[Unreadable]:
        if (self.watts is None) != (self.usd_per_kwh is None):
            yield Unreadable("watts and usd_per_kwh belong together", "write both, or neither if its power is free")

    checks = (_power_is_whole,)

    @property
    def fixed_usd_per_month(self) -> Decimal:
        """Dollars per month that the user pays whether the machine is in use or not."""
        return (self.purchase_usd + self.maintenance_usd) / self.months

    @property
    def power_usd_per_hour(self) -> Decimal:
        """
        Dollars per hour for power while the machine is in use. Otherwise, it is assumed to be switched off.
        """
        return (self.watts or Decimal(0)) / 1000 * (self.usd_per_kwh or Decimal(0))

    def usd_per_hour(self, days_per_month: Decimal | None = None) -> Decimal:
        """
        Return the price of an hour in which the machine is in use:

            fixed dollars a month / (days a month * hours a day) + kW * dollars a kWh

        `days_per_month` overrides the machine's own value.
        """
        hours = (days_per_month or self.days_per_month) * self.hours_per_day
        return self.fixed_usd_per_month / hours + self.power_usd_per_hour


class HardwareSpec(Machine):
    """A machine that the user owns and on which runs can train, with its cost and its hardware."""

    accelerators: fields.AcceleratorCount | None = Field(
        default=None, description="The machine's GPUs, by name and number: RTX4090:1."
    )
    cpus: StrictInt | None = Field(default=None, ge=1, le=100_000, description="How many CPUs the machine has.")
    memory: StrictInt | None = Field(
        default=None, ge=1, le=1_000_000, description="How much memory the machine has, in GB."
    )
    speed: Positive = Field(
        default=Decimal(1),
        description="The training speed compared with the cloud's instance: at 0.5, training takes twice as long. "
        "spotrun measures the speed as soon as runs have trained on both. If this machine is too slow for the "
        "deadline, the cloud trains.",
    )
    host: fields.CloudName | None = Field(
        default=None,
        description="The name of the machine in its network, as `hostname` prints it. If the runner is on any other "
        "machine, the run trains in the cloud. Default: the machine on which the run was launched.",
    )

    @property
    def is_here(self) -> bool:
        return self.host in (None, this_host())

    @property
    def price_usd_per_hour(self) -> Decimal:
        """The price of an hour of training on this machine, in dollars. It covers the purchase, upkeep and power."""
        return self.usd_per_hour().quantize(PLACES)

    @property
    def price_in_words(self) -> str:
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        kept = f" and ${plain_usd(self.maintenance_usd)} of upkeep" if self.maintenance_usd else ""
        used = f"{self.days_per_month:f} days a month"
        hours = "" if self.hours_per_day == 24 else f" of {self.hours_per_day:f} h"
        yield f"${plain_usd(self.purchase_usd)}{kept} over {self.months:f} months of {used}{hours}"
        if self.watts is not None and self.usd_per_kwh is not None:
            yield f"{self.watts:f} W at ${plain_usd(self.usd_per_kwh)} a kWh"
