"""The port to whom a run's instances are in their cloud: an identity that reaches that run's folder and no other's."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

SETTLES_WITHIN = timedelta(minutes=2)
"""
A new identity is known everywhere in its cloud after some seconds; EC2 has taken up to two minutes, say its users:
https://github.com/hashicorp/terraform/issues/15341. What it does not know by then is not there.
"""


class Identities(Protocol):
    """
    Makes an identity for each run, and takes it away again.

    Every failure of the cloud is a CloudError as of CloudDriver; QuotaExceeded: the account has as many as it may.
    """

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        """
        Have the identity of a run there, whole; repeating it is harmless, also after a call that was cut off anywhere.

        Returns:
            Since when it is, for a cloud takes a while to know it everywhere; None where there is nothing to make.

        Raises:
            CloudError: something else goes by its name, or it may not be made.
            CloudUnavailable: ask again; it may be made in part.
        """

    def remove(self, run_uid: str) -> None:
        """
        Take the identity of a run away, or what is left of it; harmless where there is none.

        An instance that still is it could do nothing any more from then on.

        Raises:
            CloudError: it is still there, at least in part.
        """

    def runs(self) -> list[str]:
        """The uids of all runs that have one, whole or in part."""


class NoIdentities:
    """For clouds whose instances are whoever launches them, and for runs whose instances are all the same somebody."""

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        return None

    def remove(self, run_uid: str) -> None:
        pass

    def runs(self) -> list[str]:
        return []
