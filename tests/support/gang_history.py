"""A ledger of a gang in the making: a `History` whose launches have members."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from spotrun.instance import EndedBy
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import Layout, MemberName
from tests.support import gang_events as gang
from tests.support.histories import STORAGE, History, gone


class GangHistory(History):
    """
    Of a job that asks for `size` instances. Members say that they are ready on behalf of nobody: tests do. With
    `least`, so many are enough to train.
    """

    def __init__(
        self, size: int = 2, storage: ev.StoragePrices = STORAGE, least: int | None = None, **created: Any
    ) -> None:
        spec = {"num_nodes": size} | ({} if least is None else {"elastic": {"min_nodes": least, "virtual_ranks": size}})
        version = ev.version_for(2, elastic=least is not None)
        super().__init__(storage, ledger_version=version, spec=spec, **created)

    def ask(self, count: int, for_gang: int | None = None, **fields: Any) -> list[MemberName]:
        """A launch of so many members, by their names."""
        launch = self.write(gang.intended(count, for_gang, **fields))
        return [MemberName(launch, at) for at in range(count)]

    def exist(self, *names: MemberName, price: str = "0.36") -> None:
        """They are there, and billed from now on."""
        for name in names:
            self.write(gang.recorded(name, self.now, price))

    def ready(self, *names: MemberName, **fields: Any) -> None:
        for name in names:
            self.write(gang.ready(self.state, name, **{"booted_at": self.now, **fields}))

    def start_gang(self, names: Sequence[MemberName], ranks_each: int = 1) -> int:
        return self.write(gang.started(names, ranks_each))

    def meet(self, port: int | None = None) -> None:
        """A trainer of each rank begins at the newest checkpoint."""
        event = gang.resumed(self.state, port)
        self.step = event.step
        self.write(event)

    def commit_shards(self, snapshot: int = 0, layout: Layout = Layout.SHARDED, **fields: Any) -> int:
        return self.write(self.shards(snapshot, layout, **fields))

    def shards(self, snapshot: int = 0, layout: Layout = Layout.SHARDED, **fields: Any) -> ev.CheckpointCommitted:
        """What the lead commits of a snapshot that was taken now."""
        attempt = self.state.attempts[self.attempt]
        assert attempt.gang is not None
        ranks = range(1 if layout is Layout.REPLICATED else attempt.gang.world)
        found = [
            gang.shard(
                attempt.number, rank, self.step, attempt.gang.world, incarnation=self.incarnation, snapshot=snapshot
            )
            for rank in ranks
        ]
        return gang.committed_by(attempt.number, found, layout, **{"taken_at": self.now, **fields})

    def lost(self, name: MemberName, by: EndedBy = EndedBy.CLOUD, ended_at: datetime | None = None) -> None:
        """The instance of a member is over."""
        self.write(self.end_of(name, by, ended_at))

    def end_of(
        self, name: MemberName, by: EndedBy = EndedBy.CLOUD, ended_at: datetime | None = None, bounded_by: str = ""
    ) -> ev.InstanceGone:
        recorded = self.state.member(name).recorded
        seen = {} if recorded is None else {"billed_from": recorded.billed_from, "prices": recorded.prices}
        named = {"member": name.member, "instance_id": f"i-{name}", "bounded_by": bounded_by}
        return gone(name.launch, self.now if ended_at is None else ended_at, by, **seen, **named)

    def end_without(self, *missing: MemberName, cause: Cause = Cause.INTERRUPTED) -> None:
        self.write(ev.AttemptEnded(attempt=self.attempt, cause=cause, last_step=self.step, missing=missing))

    def released(self, name: MemberName) -> None:
        self.write(ev.MemberReleased(launch=name.launch, member=name.member, reason="too late"))

    def training_gang(self, size: int = 2, price: str = "0.36") -> list[MemberName]:
        """From nothing to the first step in 100 s: 10 s until they are billed, 75 s until ready, 15 s restore."""
        names = self.ask(size, price=price)
        self.after(10).exist(*names, price=price)
        booted_at = self.after(50).now
        self.after(25).ready(*names, booted_at=booted_at)
        self.start_gang(names)
        self.meet()
        self.after(15).training()
        return names
