"""The port to what announces, on an instance, that its cloud will take it. The agent imports this: it stays light."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple, Protocol


class Notice(NamedTuple):
    """
    `termination`: the instance ends at `deadline_at`, `left_s` seconds of run time after the source was asked.
    `rebalance`: it may.
    """

    kind: Literal["termination", "rebalance"]
    deadline_at: datetime | None = None
    left_s: float | None = None


class Blind(Exception):
    """The source gave no answer that means anything. It is asked again, and training goes on."""


class NoticeSource(Protocol):
    """One instance's source of notices. It is asked every few seconds, in a thread of its own."""

    def notices(self) -> Iterator[Notice]:
        """
        Everything that is announced now, also if it was announced before.

        Raises:
            Blind: also after some notices, which count.
        """
