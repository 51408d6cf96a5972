"""
The members of a gang, which Slurm runs as one job.

When a member has ended, its node stays with the job, and Slurm accounts for the node until the job is over. `scontrol
update` cannot take the first node from a job, and on a cluster without accounting it can take other nodes only once. So
the member that ends last is billed for all nodes that the other members have left in the job. A lost node leaves its
job without a command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.clouds.slurm.ids import instance_id_of
from spotrun.clouds.slurm.member_files import MemberEnd, Seat
from spotrun.clouds.slurm.queue import Job, instance_of
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment


class GangJob(NamedTuple):
    """
    A job with its members' records: their seats (nodes), if known, and the ends of members that ended before the job.
    """

    job: Job
    seats: Sequence[Seat]
    ended: Sequence[MemberEnd | None]

    @property
    def is_deserted(self) -> bool:
        """True if the job still runs although all its members have ended."""
        return not self.job.has_ended and all(each is not None for each in self.ended)

    def instances(self) -> list[Instance]:
        return [self._member(index) for index in range(len(self.ended))]

    def _member(self, index: int) -> Instance:
        whole, ended, is_last = instance_of(self.job), self.ended[index], index == self._last
        member = replace(
            whole,
            instance_id=instance_id_of(self.job.number, index),
            member=index,
            address=self.seats[index].address if self.seats else "",
        )
        if self.job.has_ended and is_last:
            member = replace(member, prices=self._prices_of_last(index))
        if ended is None:
            return member
        if is_last and not self.job.has_ended:
            return replace(member, state=InstanceState.STOPPING)
        return replace(
            member,
            state=InstanceState.TERMINATED,
            ended_at=whole.ended_at if is_last else self._billed_until(index),
            ended_by=ended.by,
            end_reason=ended.reason,
        )

    @property
    def _last(self) -> int | None:
        """The index of the member that ended last, or of the first of several that did; None while a member runs."""
        if not self.job.has_ended and not self.is_deserted:
            return None
        ends = [(self._ended_at(index), -index) for index in range(len(self.ended))]
        return -max(ends)[1]

    def _ended_at(self, index: int) -> datetime:
        """Return when a member ended, limited to the time of its job because the clock of its node may be wrong."""
        job, ended = self.job, self.ended[index]
        began_at, over_at = job.began_at or job.submitted_at, job.ends_at if job.has_ended else None
        at = (over_at or began_at) if ended is None else ended.at
        return max(began_at, at if over_at is None else min(at, over_at))

    def _billed_until(self, index: int) -> datetime:
        """
        Return until when a member is billed, rounded down to a whole second. Slurm counts whole seconds, and the job
        may be over in the same second in which the member ends. If the job continues, the last member pays for that
        second.
        """
        return self._ended_at(index).replace(microsecond=0)

    def _prices_of_last(self, last: int) -> tuple[PriceSegment, ...]:
        """
        Return the prices of all nodes that the last member pays for, with one segment for each change of their number.
        """
        began = instance_of(self.job).prices
        if not began:
            return ()
        since, price = began[0].since, began[0].usd_per_hour
        moments = sorted({since, *(at for at, _ in self._changes(last))})
        counts = [1 + sum(by for at, by in self._changes(last) if at <= moment) for moment in moments]
        return tuple(
            PriceSegment(since=moment, usd_per_hour=price * count)
            for moment, count, before in zip(moments, counts, [None, *counts], strict=False)
            if count != before
        )

    def _changes(self, last: int) -> Iterator[tuple[datetime, int]]:
        """Yield each time at which the last member takes over a node (1) or loses its own node (-1)."""
        for index, ended in enumerate(self.ended):
            lost = ended is not None and ended.by is EndedBy.FAULT
            if index == last and lost:
                yield self._billed_until(index), -1
            elif index != last and not lost:
                yield self._billed_until(index), 1
