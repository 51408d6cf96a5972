"""
The interface of a cloud's driver. Every driver has to pass the same contract tests
(tests/contract/test_driver_contract.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from spotrun.errors import CloudError
from spotrun.instance import Instance, LaunchRequest, PriceSegment
from spotrun.offering import Offering


class CloudDriver(Protocol):
    """
    Rents and returns instances on one cloud.

    Drivers hold no run state: a new driver object must be able to terminate what an old driver object launched. A
    driver reports every failure of the cloud as a SpotrunError:

        InsufficientCapacity   this offering has no capacity   -> try another offering
        QuotaExceeded          a quota of the account is full  -> try another quota; tell the user; retry seldom
        CloudError itself      the cloud rejects the request   -> try another; tell the user; retry ever less often
        CloudUnavailable       throttled, 5xx, network         -> try again later
        AccessDenied           credentials or permissions      -> tell the user, who has to fix them
        IdentityUnknown        the identity is not found       -> wait if the identity is new
        LaunchTokenSpent       the token's instance is gone    -> the launch is over; use a new token
    """

    name: str
    rations_calls: bool
    """True if the cloud limits the rate of an account's calls. A runner then calls less often while nothing happens."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes for the user about missing or unexpected data in the cloud's last answers. They never stop a run."""

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        """
        Return all offerings of this cloud with their current prices, in no particular order. `must_see` has the same
        meaning as in `instances`.

        An offering may have no capacity although it is listed; only `launch` shows this.
        """

    def launch(self, request: LaunchRequest) -> Instance:
        """
        Start one instance and return as soon as the cloud has accepted it.

        Idempotent on `request.token`: if an answer was lost, a repeated call returns the instance that the first call
        started, even while that instance is stopping.

        If `request.count` is given, start this many members of a gang, and return the first. Either all members start
        or none, even if the caller dies during the call. If there is capacity for only some of them, raise
        InsufficientCapacity. `instances` lists each member with its index and, once the member runs, its address. A
        driver that cannot start gangs calls `require_one`, which raises CloudError.

        Raises:
            LaunchTokenSpent: the token's instance, or all of its members, existed and are terminated.
            CloudError: see the class docstring for this error and its subclasses.
        """

    def describe(self, instance_id: str) -> Instance | None:
        """
        Return the instance as the cloud sees it now, or None if the cloud has no record of it.

        Immediately after a launch, None means "not known yet", never "dead".
        """

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        """
        Return the instances of one run or of all runs, found by spotrun's tags. Terminated instances are included while
        the cloud still lists them.

        `must_see` names regions and zones; None means all. If one of them does not answer, raise an error. If any other
        region or zone does not answer, leave it out and add a remark. The name of a zone begins with that of its
        region.
        """

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        """
        Return the spot prices of an offering's pool, oldest first, from the price in effect at `since` on. Return () if
        the cloud has no price history or refuses to show it. Earlier prices may come first.
        """

    def terminate(self, instance_id: str) -> None:
        """
        End an instance and everything on it. It is harmless to repeat the call, or to name an instance that is gone.
        """


def require_one(request: LaunchRequest, cloud: str) -> None:
    """Raise CloudError if the request is for a gang. Drivers that start only single instances call this function."""
    if request.count is not None:
        raise CloudError(
            f"{cloud}: this driver starts single instances, not a gang of {request.count}",
            hint="remove num_nodes from resources, or train on another cloud",
        )


class WrappedDriver:
    """Passes every call to another driver. Subclasses add behaviour."""

    def __init__(self, driver: CloudDriver) -> None:
        self.name = driver.name
        self.rations_calls = driver.rations_calls
        self._driver = driver

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._driver.remarks

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return self._driver.offerings(must_see)

    def launch(self, request: LaunchRequest) -> Instance:
        return self._driver.launch(request)

    def describe(self, instance_id: str) -> Instance | None:
        return self._driver.describe(instance_id)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        return self._driver.instances(run_uid, must_see)

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return self._driver.spot_history(offering, since)

    def terminate(self, instance_id: str) -> None:
        self._driver.terminate(instance_id)
