"""
Defines the steps of a scripted market on the local cloud. A step has a trigger, which defines when it happens, and an
action, which defines what happens.

Most triggers count the progress of the training, not wall time. So a demo or a test is interrupted at the same point on
fast and slow machines. The text of a trigger can be parsed again: `parse_trigger(str(trigger)) == trigger`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

from spotrun.units import Unreadable, format_duration, parse_duration, shown

FORMS = '"epoch 2 at 40%", "upload at 50%" or "after 10m"'
TRIGGER_PATTERN = r"^(epoch [1-9]\d* at \d+(\.\d+)? ?%|upload at \d+(\.\d+)? ?%|after \d\S*)$"

_PERCENT = r"(\d{1,3}(?:\.\d{1,6})?)\s?%"
_EPOCH = re.compile(rf"epoch (\d{{1,9}}) at {_PERCENT}", re.ASCII)
_UPLOAD = re.compile(rf"upload at {_PERCENT}", re.ASCII)
_AFTER = re.compile(r"after (.+)")


class Action(StrEnum):
    """The effect that a step has on the market."""

    INTERRUPT = "interrupt"
    """The cloud takes the spot instance; other spot instances are still available."""
    NO_SPOT = "no-spot"
    """The cloud takes the spot instance, and offers no spot anywhere until a later step `spot-returns`."""
    REBALANCE = "rebalance"
    """The cloud only recommends leaving the spot instance. EC2 sometimes does this before it takes an instance."""
    CUT_OFF = "cut-off"
    """One member of a gang can no longer reach the other members. It still reaches the store."""
    SPOT_RETURNS = "spot-returns"

    @property
    def meets_one(self) -> bool:
        """
        True if the action affects only the instance that trains, or some members of its gang. False if it affects the
        whole market.
        """
        return self in (Action.INTERRUPT, Action.REBALANCE, Action.CUT_OFF)

    @property
    def takes_any(self) -> bool:
        """True if the action makes the cloud take an instance."""
        return self in (Action.INTERRUPT, Action.NO_SPOT)


@dataclass(frozen=True)
class EpochAt:
    """
    A trigger that fires once `fraction` (0 to 1) of the batches of epoch `epoch` have been trained on. The first epoch
    is number 1.
    """

    epoch: int
    fraction: float

    def __str__(self) -> str:
        return f"epoch {self.epoch} at {_percent(self.fraction)}"


@dataclass(frozen=True)
class UploadAt:
    """A trigger that fires once `fraction` (0 to 1) of the bytes of a checkpoint have been uploaded."""

    fraction: float

    def __str__(self) -> str:
        return f"upload at {_percent(self.fraction)}"


@dataclass(frozen=True)
class After:
    """
    A trigger that fires once `duration` of run time has passed since the previous step of the market script. For the
    first step, the time counts from the run's start.
    """

    duration: timedelta

    def __str__(self) -> str:
        return f"after {format_duration(self.duration)}"


Trigger = EpochAt | UploadAt | After


def parse_trigger(text: object) -> Trigger:
    """
    Parse `epoch N at P%` (epochs count from 1), `upload at P%` or `after DURATION`.

    Raises:
        Unreadable: the text is not one of these; the suggestion shows the forms.
    """
    if isinstance(text, EpochAt | UploadAt | After):
        return text
    if not isinstance(text, str):
        raise Unreadable("must be a trigger", f"write {FORMS}")
    if match := _EPOCH.fullmatch(text):
        if int(match[1]) == 0:
            percent = match[2] if Decimal(match[2]) <= 100 else "100"
            raise Unreadable("epochs are counted from 1", f'write "epoch 1 at {percent}%"')
        return EpochAt(int(match[1]), _fraction(match[2]))
    if match := _UPLOAD.fullmatch(text):
        return UploadAt(_fraction(match[1]))
    if match := _AFTER.fullmatch(text):
        return After(parse_duration(match[1]))
    raise Unreadable(f"{shown(text)!r} is not a trigger", f"write {FORMS}")


def _fraction(percent: str) -> float:
    if Decimal(percent) > 100:
        raise Unreadable(f"{percent}% is more than 100%", "write 0% to 100%")
    return float(Decimal(percent) / 100)


def _percent(fraction: float) -> str:
    return f"{(Decimal(repr(fraction)) * 100).normalize():f}%"
