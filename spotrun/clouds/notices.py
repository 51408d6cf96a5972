"""The port to the sources that announce an instance's loss to its cloud. The agent imports this: it stays light."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple, Protocol


class Notice(NamedTuple):
    """
    `termination`: the instance ends at `deadline_at`, which is `deadline_s` in monotonic run time. `rebalance`: it may.
    """

    kind: Literal["termination", "rebalance"]
    deadline_at: datetime | None = None
    deadline_s: float | None = None


class Blind(Exception):
    """The source gave no meaningful answer. The agent asks again, and training goes on."""


class NoticeSource(Protocol):
    """
    One of an instance's sources of notices. The agent asks it every few seconds, in a thread of its own. A source that
    holds its answer back until there is news gets the next request at once.
    """

    def notices(self) -> Iterator[Notice]:
        """
        Yield all notices that hold now, also those that were announced before.

        Raises:
            Blind: also after some notices, which count.
        """
