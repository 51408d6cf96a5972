"""A watcher for notices that looks 20 times a second, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from spotrun.agent.inbox import Inbox, Letter
from spotrun.agent.notices import NoticeWatcher
from spotrun.clock import Clock, ScaledClock
from spotrun.clouds.notices import Notice, NoticeSource


class Hearing:
    """`looks` counts how often its sources were asked, those included that have not answered yet."""

    def __init__(self, sources: Callable[[Clock], Sequence[NoticeSource]], clock: ScaledClock | None = None) -> None:
        self.clock = clock or ScaledClock(datetime.now(UTC), 1000)
        self.inbox, self.notes = Inbox(), list[str]()
        self.looks = 0
        counted = [_Counted(self, source) for source in sources(self.clock)]
        self.watcher = NoticeWatcher(counted, self.clock, self.inbox, self.notes.append)
        self.watcher.start()

    def next(self) -> Letter:
        return self.inbox.get(timeout=60)


class _Counted:
    def __init__(self, hearing: Hearing, source: NoticeSource) -> None:
        self._hearing = hearing
        self._source = source

    def notices(self) -> Iterator[Notice]:
        self._hearing.looks += 1
        yield from self._source.notices()
