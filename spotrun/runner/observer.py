"""Observes a run: reads its ledger, then asks the cloud."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import timedelta

from spotrun.clock import Clock
from spotrun.clouds.charged import spot_prices
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.tolerant_driver import TolerantDriver
from spotrun.errors import CloudError, StoreUnavailable
from spotrun.folder.agent_statuses import AgentStatuses
from spotrun.folder.heartbeat_monitor import GangHeartbeatMonitor
from spotrun.folder.heartbeats import Heartbeats
from spotrun.folder.ledger import Ledger
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.pace import PollIntervals
from spotrun.folder.poll_throttle import PollThrottle
from spotrun.folder.status_objects import Blindness
from spotrun.folder.store_capacity import StoreCapacity
from spotrun.instance import Instance, PriceSegment
from spotrun.market.wishes import suitable
from spotrun.market.world import World
from spotrun.policy.idle_polling import is_still
from spotrun.run import events as ev
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

LOOKS_LEFT_OUT = 4
"""
Number of requests for a list of instances that the runner skips after one such request has failed. The failed request
was already retried several times, so the cloud may be refusing the account's requests because there are too many. Fewer
requests then help.
"""


class Observer:
    """
    Collects the facts that a decision needs. It keeps only facts that another observer can collect too, so nothing is
    lost if the runner dies.

    `message` is written into the runner's status object with each heartbeat. `has_seen_cloud` is True once the cloud
    has answered a call. `listed` are the instances in the cloud's newest list.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        driver: CloudDriver,
        forgiving: TolerantDriver,
        clock: Clock,
        spec: RunSpec,
        market: MarketRecord | None,
        pace: PollIntervals,
        erased: Callable[[], None],
    ) -> None:
        """
        `erased` is called when the run's folder seems to have been deleted. It checks whether the folder still exists,
        and raises an error if it does not.
        """
        self.message = ""
        self.has_seen_cloud = False
        self.statuses = AgentStatuses(store)
        self._ledger = ledger
        self._driver = driver
        self._forgiving = forgiving
        self._clock = clock
        self._spec = spec
        self._market = market
        self._heartbeats = Heartbeats(store, clock, erased=erased, pace=pace)
        self._room = StoreCapacity(store, clock)
        self._pulses = GangHeartbeatMonitor(clock)
        self._lists = PollThrottle(clock)
        self.listed: tuple[Instance, ...] = ()
        self._unlisted = ""
        self._blind: Blindness | None = None

    def show_signs_of_life(self) -> None:
        """
        Write a heartbeat even though nothing could be observed. Without it, another runner would assume that this one
        is dead, and replace it.
        """
        with contextlib.suppress(CloudError, StoreUnavailable):
            self._heartbeats.silent(self.message, self._blind)

    @property
    def remarks(self) -> list[str]:
        """
        The problems that do not stop the run, such as an unreadable market record. The list always has one string for
        each kind of problem, "" if there is no such problem now.
        """
        market = "" if self._market is None else self._market.trouble or ""
        return [self._heartbeats.refused, market, self._unlisted]

    def observe(self) -> World:
        """
        Read the ledger, then the cloud. If the cloud lists an instance that the ledger does not know, read the ledger a
        second time.

        Another runner may have launched that instance between the two readings. Without the second reading of the
        ledger, the instance would look like an orphan, and be terminated.

        If a region does not answer and the run may have an instance there, the observation fails. If the run has none
        there, the region is left out.
        """
        state = self._ledger.refresh()
        occupied = [each.intent.offering for each in state.launches.values() if not each.settled]
        instances = self._instances(state, {offering.zone for offering in occupied})
        promised = state.created.deadline_at is not None or state.created.budget_usd is not None
        reckons = promised or self._spec.resources.is_choice or self._spec.home is not None
        if any(instance.launch not in state.launches for instance in instances):
            state = self._ledger.refresh()
        offerings = tuple(
            suitable(self._driver.offerings(must_see={offering.region for offering in occupied}), self._spec)
        )
        unlisted = _unlisted(state, instances)
        return World(
            offerings=offerings,
            instances=instances,
            ready=self.statuses.ready(state),
            silent=self._heartbeats.silent(self.message, self._blind),
            open_for=self._heartbeats.open_for,
            heard=self.statuses.heard(unlisted),
            spot_prices={name: prices for name in unlisted if (prices := self._spot_prices(state, name))},
            no_room=self._heartbeats.refused or self._room.refused(state),
            step_seen=self.statuses.step_seen(state) if reckons else None,
            steps_total=self.statuses.steps_total(state) if reckons else None,
            epochs_total=self.statuses.epochs_total(state),
            unread=self._forgiving.unread,
            observations=() if self._market is None else self._market.exchange(state, offerings, self._clock.now()),
        )

    def _spot_prices(self, state: RunState, name: MemberName) -> tuple[PriceSegment, ...]:
        """Return the spot prices of an instance that the cloud no longer lists; () if they are unknown."""
        intent, recorded = state.launches[name.launch].intent, state.shown(name)
        assert recorded is not None
        since = recorded.billed_from
        return spot_prices(self._driver, intent.offering, since, since + timedelta(seconds=intent.time_to_live_s))

    def _instances(self, state: RunState, zones: set[str]) -> tuple[Instance, ...]:
        """
        Return the instances that the cloud lists.

        If the cloud limits the number of calls, a new list is requested less often while nothing changes: no instance
        is being launched or ended, and all agents keep writing their status objects. Between two requests, return the
        previous list. If an instance ends in that time, the runner notices it at the latest with the next list.

        If a request fails while nothing changes, return the previous list, and wait some time before the next request.
        """
        goes_on = self._pulses.beat(self.statuses.all_current(state))
        may_wait = self.has_seen_cloud and self._driver.rations_calls and goes_on and is_still(state, self.listed)
        if may_wait and not self._lists.due():
            return self.listed
        try:
            self.listed = tuple(self._driver.instances(state.created.uid, must_see=zones))
        except CloudError as error:
            since = self._clock.now() if self._blind is None else self._blind.since
            self._blind = Blindness(since=since, why=error.one_line)
            if not may_wait:
                raise
            self._unlisted = f"using the last known list of instances: {error.one_line}"
            self._lists.taken(lasts=LOOKS_LEFT_OUT)
        else:
            self.has_seen_cloud, self._unlisted, self._blind = True, "", None
            self._lists.taken()
        return self.listed


def _unlisted(state: RunState, instances: Iterable[Instance]) -> list[MemberName]:
    """Return the members that the cloud does not list, and whose end is not in the ledger yet."""
    listed = {instance.instance_id for instance in instances}
    alive = (state.shown(name) for name in state.names() if state.member(name).gone is None)
    return [ev.name_of(each) for each in alive if each is not None and each.instance_id not in listed]
