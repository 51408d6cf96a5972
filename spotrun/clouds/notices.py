"""The port to what announces, on an instance, that its cloud will take it. The agent imports this: it stays light."""

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
    """The source gave no answer that means anything. It is asked again, and training goes on."""


class NoticeSource(Protocol):
    """
    One of an instance's sources of notices. It is asked every few seconds, in a thread of its own. One that holds its
    answer back until there is something to say is asked again at once.
    """

    def notices(self) -> Iterator[Notice]:
        """
        Everything that is announced now, also if it was announced before.

        Raises:
            Blind: also after some notices, which count.
        """
