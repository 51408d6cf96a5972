"""
Describes the members of a gang, which Slurm runs as one job.

When a member has ended, its node stays with the job, and Slurm charges for the node until the job is over. The node
cannot be given back earlier: `scontrol update` cannot remove the first node from a job, and on a cluster without
accounting it can remove other nodes only once. So whatever a node costs after its member has ended is added to the bill
of the member that ends last.

A lost node is different: Slurm itself removes it from the job, so it is no longer billed.
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
    A job and the records of its members. `seats` are the members' nodes; empty if they are not known yet. `ended` has
    one item for each member: when and why it ended; None if it runs until the job ends.
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
        """
        The index of the member that ended last; None while any member runs. If several members ended last at the same
        time, this is the lowest of their indices.
        """
        if not self.job.has_ended and not self.is_deserted:
            return None
        ends = [(self._ended_at(index), -index) for index in range(len(self.ended))]
        return -max(ends)[1]

    def _ended_at(self, index: int) -> datetime:
        """
        Return the time at which a member ended. The clock of the member's node may be wrong, so a time before the job's
        start or after its end is replaced by that start or end.
        """
        job, ended = self.job, self.ended[index]
        began_at, over_at = job.began_at or job.submitted_at, job.ends_at if job.has_ended else None
        at = (over_at or began_at) if ended is None else ended.at
        return max(began_at, at if over_at is None else min(at, over_at))

    def _billed_until(self, index: int) -> datetime:
        """
        Return the time until which a member is billed. It is rounded down to a whole second, because Slurm rounds the
        job's end in the same way, and no member may be billed longer than the job. If the job continues, the member
        that ends last pays for the rest of that second.
        """
        return self._ended_at(index).replace(microsecond=0)

    def _prices_of_last(self, last: int) -> tuple[PriceSegment, ...]:
        """
        Return the prices per hour of the last member, which is billed for its own node and for the nodes of the members
        that ended before it. A new segment begins each time the number of these nodes changes.
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
        """
        Yield each change in the number of nodes that are billed to the last member: the time of the change, and 1 or
        -1. The number grows by 1 when another member ends, and shrinks by 1 when the last member's own node is lost.
        """
        for index, ended in enumerate(self.ended):
            lost = ended is not None and ended.by is EndedBy.FAULT
            if index == last and lost:
                yield self._billed_until(index), -1
            elif index != last and not lost:
                yield self._billed_until(index), 1
