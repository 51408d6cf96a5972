"""
The interface to the sources from which an agent learns that its cloud will take the instance back. Keep this module
small: every agent imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple, Protocol


class Notice(NamedTuple):
    """
    A warning about an instance. If the kind is `termination`, the instance will end at `deadline_at`; `deadline_s` is
    the same time in monotonic run time. If the kind is `rebalance`, the cloud only warns that it might take the
    instance.
    """

    kind: Literal["termination", "rebalance"]
    deadline_at: datetime | None = None
    deadline_s: float | None = None


class Blind(Exception):
    """Raised if the source gives no meaningful answer. The agent will query it again; training continues."""


class NoticeSource(Protocol):
    """
    A source of notices for an instance. The agent queries it every few seconds, in a separate thread. Some sources
    answer only when there is something to report; the agent queries these again immediately after each answer.
    """

    def notices(self) -> Iterator[Notice]:
        """
        Yield all notices that are in effect now, including notices announced before.

        Raises:
            Blind: the source did not answer. The notices that were yielded before this error remain valid.
        """
