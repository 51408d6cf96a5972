"""One instance of a launch: its record, its bill and its end."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec.structs import replace

from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType, Offering
from spotrun.run import events as ev
from spotrun.run.billing import Meter, switched_off_at


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """
    One instance that a launch requested. In a run on one instance, each launch has one member.

    `condemned_at` is the time of the entry that condemned it.

    `ready` is the member's newest report that it is ready to join an attempt. `ready_at` is the time of this report,
    and `ready_since` is the time of the member's first such report. `setup` is the report on how the job's `setup`
    went, and `set_up_at` is the time of that report.

    `missed_at` is the time at which a runner first missed the instance in the cloud's list. It is set if the end in
    `gone` is only an estimate, and no bill has corrected it.
    """

    recorded: ev.LaunchRecorded | None = None
    condemned: ev.InstanceCondemned | None = None
    condemned_at: datetime | None = None
    released: ev.MemberReleased | None = None
    gone: ev.InstanceGone | None = None
    ready: ev.MemberReady | None = None
    ready_at: datetime | None = None
    ready_since: datetime | None = None
    setup: ev.SetUp | None = None
    set_up_at: datetime | None = None
    missed_at: datetime | None = None

    @property
    def wanted(self) -> bool:
        """
        True if the member is still allowed to train, because it is not condemned, released or gone. Each of these
        states is irrevocable (protocol 35).
        """
        return self.condemned is None and self.released is None and self.gone is None

    @property
    def billed_from(self) -> datetime | None:
        """
        The time from which the member has been billed, according to the newest record; None if it was never billed.
        """
        return next((fact.billed_from for fact in self._facts if fact.billed_from is not None), None)

    @property
    def prices(self) -> tuple[PriceSegment, ...]:
        """
        The member's prices over time. The newest record with prices counts: the record of the instance's end if it has
        prices, otherwise the record of the launch.
        """
        return next((fact.prices for fact in self._facts if fact.prices), ())

    @property
    def _facts(self) -> list[ev.LaunchRecorded | ev.InstanceGone]:
        return [fact for fact in (self.gone, self.recorded) if fact is not None]

    @property
    def still_from(self) -> datetime | None:
        """
        The time at which the member's machine stopped running; None if the instance is not gone. Its disk may have been
        billed for longer than its machine.
        """
        if self.gone is None:
            return None
        return self.gone.stopped_at or switched_off_at(self.gone.prices) or self.gone.ended_at

    def meter(self, rule: ev.BillingRule, offering: Offering) -> Meter:
        gone, rule = self.gone, rule.attached_to(offering)
        if gone is None:
            return Meter(rule, self.prices, self.billed_from, None, None)
        ended_by = gone.ended_by if offering.capacity_type is CapacityType.SPOT else EndedBy.USER
        return Meter(rule, self.prices, self.billed_from, gone.ended_at, ended_by)

    def with_end(self, ended_at: datetime) -> Member:
        """Return the member with `ended_at` as the known end of its instance. The instance must be gone."""
        assert self.gone is not None
        return replace(self, gone=replace(self.gone, ended_at=ended_at), missed_at=None)
