"""
The port to sources that announce the loss of an instance to its cloud. The agent imports this module, so it stays
small.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple, Protocol


class Notice(NamedTuple):
    """
    `termination`: the instance will end at `deadline_at`; `deadline_s` is the same moment in monotonic run time.
    `rebalance`: the instance may end.
    """

    kind: Literal["termination", "rebalance"]
    deadline_at: datetime | None = None
    deadline_s: float | None = None


class Blind(Exception):
    """The source gave no meaningful answer. The agent asks again, and training continues."""


class NoticeSource(Protocol):
    """
    One source of notices for an instance. The agent queries it every few seconds, in a separate thread. A source that
    holds its answer back until there is news is queried again immediately.
    """

    def notices(self) -> Iterator[Notice]:
        """
        Yield all notices that are in effect now, including notices announced before.

        Raises:
            Blind: the source did not answer. Notices that were yielded before the error count.
        """
