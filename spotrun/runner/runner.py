"""
The runner: observes, decides, acts and records, every few seconds.

All its state is in the store and the cloud. It writes each intention to the ledger before it acts on it. So a second
runner on the same run is harmless, and can replace a runner that died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from msgspec import UNSET
from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import GuardedDriver, Guards, NoGuards
from spotrun.clouds.identities import IdentifiedDriver, Identities, NoIdentities
from spotrun.clouds.last_words import LastWords
from spotrun.clouds.tolerant_driver import TolerantDriver
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityPending,
    InsufficientCapacity,
    LaunchTokenSpent,
    LedgerDamaged,
    QuotaExceeded,
    RunGone,
    StoreUnavailable,
)
from spotrun.folder.final_status import write_final_status
from spotrun.folder.ledger import EntryRefused, Ledger, forged
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.pace import ALL_THE_TIME, PollIntervals
from spotrun.instance import Instance, LaunchRequest
from spotrun.market.world import World
from spotrun.policy import Action, Append, Execute, Terminate, decide, finished
from spotrun.policy.facts import Facts
from spotrun.policy.housekeeping import strangers
from spotrun.policy.patience import look_s, tick_s, unanswered_for_too_long
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.owners import about_forged
from spotrun.run.state import RunState
from spotrun.runner.last_words import with_last_words
from spotrun.runner.observer import Observer
from spotrun.runner.tick import Tick, joined
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

TICKS_MAX = 20
"""
Maximum number of ticks in a row without a pause. For example, one tick records the intention to launch an instance, and
the next tick requests it.
"""
Decision = Callable[[RunState, RunSpec, World, datetime], list[Action]]


class Runner:
    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        driver: CloudDriver,
        clock: Clock,
        spec: RunSpec,
        uri: str,
        market: MarketRecord | None = None,
        guards: Guards | None = None,
        identities: Identities | None = None,
        decide: Decision = decide,
        pace: PollIntervals = ALL_THE_TIME,
        last_words: LastWords | None = None,
    ) -> None:
        """
        `market` is the record in which runs share their observations of the market. `guards` arms the timers that end
        instances on clouds that do not enforce a time-to-live. `identities` makes the roles, on clouds where each run
        has its own. `decide` returns the next actions. `pace` sets the intervals at which the runner reads and writes.
        `last_words` reads the last output of an instance whose agent never took over, for the entry about its end.
        """
        self._ledger = ledger
        self._store = store
        self._forgiving = TolerantDriver(driver, clock)
        self._identified = IdentifiedDriver(self._forgiving, identities or NoIdentities(), clock)
        self._driver = GuardedDriver(self._identified, guards or NoGuards(), clock)
        self._clock = clock
        self._spec = spec
        self._decide = decide
        self._last_words = last_words
        self._uri = uri
        self._observer = Observer(
            ledger, store, self._driver, self._forgiving, clock, spec, market, pace, self._refuse_gone
        )

    def run(self, watch: Callable[[Tick], None]) -> Tick:
        """Take care of the run until it has ended and has no instances left. Call `watch` with each tick."""
        while True:
            for tick in self.ticks():
                watch(tick)
                if tick.done:
                    return tick
            self._pause()

    def watch_for(self, seconds: float) -> Iterator[Tick]:
        """Tick for `seconds` of run time, at the usual interval and whenever another program has written an entry."""
        until_s = self._clock.monotonic() + seconds
        while True:
            for tick in self.ticks():
                yield tick
                if tick.done:
                    return
            if self._clock.monotonic() >= until_s:
                return
            self._pause()

    def _pause(self) -> None:
        """Wait until the next tick is due, or until an agent or another runner has written to the ledger."""
        due_s, read = self._clock.monotonic() + tick_s(self._clock.scale), self._ledger.state.next_number
        while (left_s := due_s - self._clock.monotonic()) > 0:
            self._clock.sleep(min(look_s(self._clock.scale), left_s))
            try:
                if self._ledger.refresh().next_number > read:
                    return
            except StoreUnavailable:
                return  # the next tick reports it

    def ticks(self) -> Iterator[Tick]:
        """
        Tick once, and again without a pause as long as each tick writes an entry, at most TICKS_MAX times in all. So
        the runner requests a launch as soon as it has recorded the intention, and tries the next offering as soon as
        one is refused.
        """
        for _ in range(TICKS_MAX):
            tick = self.tick()
            yield tick
            if not tick.wrote:
                return

    def tick(self) -> Tick:
        """
        Observe, decide, act and record once. If the cloud or the store cannot be read, do nothing (promise I6).

        Raises:
            LedgerDamaged, KeyMissing: no runner can take care of this run any more.
            RunGone: the run's folder was moved or deleted, and its instances were ended.
            AccessDenied: the cloud refuses the credentials, and has accepted no call of this runner so far. After the
                first accepted call, a refusal is not raised: it may be temporary, so the runner tries again.
        """
        self._observer.statuses.forget()
        try:
            world, actions, wrote = self._see_and_act()
        except (CloudError, StoreUnavailable) as error:
            if isinstance(error, AccessDenied) and not self._observer.has_seen_cloud:
                raise
            tick = Tick(state=self._ledger.state, blind=error.one_line)
            self._observer.message = error.one_line
            self._observer.show_signs_of_life()
        else:
            tick = self._told(world, actions, wrote=wrote)
            if tick.done:
                write_final_status(self._store, self._ledger)
                if left := self._identified.remove_identity(self._ledger.state.created.uid):
                    tick = replace(tick, remark=joined([tick.remark or "", left]))
        self._observer.message = tick.waiting_for or tick.remark or ""
        return tick

    def _see_and_act(self) -> tuple[World, list[Action], bool]:
        """Observe and act. Return the observation, the actions, and True if this tick wrote an entry."""
        try:
            world = self._observer.observe()
            read = self._ledger.state.next_number
            actions = self._decide(self._ledger.state, self._spec, world, self._clock.now())
            self._act(actions)
            self._arm_missing_guards(world.instances)
        except RunGone:
            raise
        except LedgerDamaged:
            self._refuse_gone()
            raise
        return world, actions, self._ledger.state.next_number > read

    def _told(self, world: World, actions: list[Action], *, wrote: bool) -> Tick:
        state = self._ledger.state
        return Tick(
            state=state,
            instances=world.instances,
            actions=tuple(actions),
            status=self._observer.statuses.current(state),
            epochs_total=world.epochs_total,
            done=finished(state, world) and not actions,
            remark=self._remark(world),
            wrote=wrote,
        )

    def _remark(self, world: World) -> str | None:
        unsigned = about_forged(forged(self._ledger.state), self._uri)
        foreign = strangers(Facts(self._ledger.state, self._spec, world, self._clock.now()))
        return joined([*self._observer.remarks, unsigned, *foreign, *self._driver.remarks])

    def _refuse_gone(self) -> None:
        """
        End the run's instances if the run's folder was moved or deleted, because their training can no longer be stored
        (protocol 4).

        Raises:
            RunGone: the folder was moved or deleted.
            StoreUnavailable: it is unknown whether the folder is gone. A later tick tries again.
            CloudUnavailable: an instance may still run. A later tick tries again.
        """
        if not self._ledger.is_gone():
            return
        uid = self._ledger.state.created.uid
        living = [found.instance_id for found in self._driver.instances(uid) if found.alive]
        for instance_id in living:
            self._driver.terminate(instance_id)
        raise RunGone(self._uri, living)

    # -- act ---------------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Append):
                if not self._append(action.event):
                    return  # the run has changed: make a new decision
            elif isinstance(action, Execute):
                self._execute(action.launch)
            elif isinstance(action, Terminate):
                self._driver.terminate(action.instance_id)

    def _append(self, event: ev.AnyEvent) -> bool:
        """Append `event`, unless the ledger has changed since the decision. Return True if it was written."""
        decided_at = self._ledger.state.next_number
        if isinstance(event, ev.InstanceGone):
            step = self._observer.statuses.last_step(self._ledger.state, ev.name_of(event))
            event = event if step is None else replace(event, last_step_seen=step)
        if isinstance(event, ev.InstanceGone | ev.LaunchClosed):
            event = with_last_words(event, self._ledger.state, self._observer.listed, self._last_words)
        if isinstance(event, ev.LaunchRecorded):
            # Arm the guard before writing the entry. If this runner dies before that, the instance has no entry, so the
            # next runner finds the instance, arms its guard and writes the entry.
            event = replace(event, unguarded=self._driver.arm(*self._guarded(event)))
        try:
            entry = self._ledger.append(lambda state: event if state.next_number == decided_at else None)
        except EntryRefused:
            return False
        if entry is not None and isinstance(event, ev.InstanceGone):
            self._driver.disarm(self._request(event.launch), ev.name_of(event).member)
        return entry is not None

    def _arm_missing_guards(self, instances: Iterable[Instance]) -> None:
        shown = {(each.launch, each.instance_id) for each in instances}
        for found in self._ledger.state.unguarded:
            if (found.launch, found.instance_id) in shown and self._driver.arm_at_last(*self._guarded(found)):
                self._append(ev.GuardArmed(launch=found.launch, member=found.member))

    def _guarded(self, found: ev.LaunchRecorded) -> tuple[LaunchRequest, str, datetime, int]:
        return self._request(found.launch), found.instance_id, found.billed_from, ev.name_of(found).member

    def _execute(self, number: int) -> None:
        if self._clock.now() >= self._ledger.state.launches[number].intent.not_after:
            return  # this process slept after the decision (protocol 8)
        try:
            self._driver.launch(self._request(number))
        except InsufficientCapacity as error:
            self._close(number, Cause.CAPACITY, error.message)
        except QuotaExceeded as error:
            self._close(number, Cause.QUOTA, str(error))
        except AccessDenied as error:
            self._close(number, Cause.ACCESS, str(error))
        except LaunchTokenSpent as error:
            self._close(number, Cause.EXTERNAL, error.message, refused=False)
        except IdentityPending:
            raise  # nothing was requested, and another pool would not help; the identity will be ready within minutes
        except CloudUnavailable as error:
            if not unanswered_for_too_long(self._ledger.state, number, self._clock.now()):
                raise  # an instance may exist: the next tick repeats the request with the same token
            detail = f"the cloud did not answer the request, and lists no instance for it: {error.message}"
            self._close(number, Cause.CAPACITY, detail, refused=False)
        except CloudError as error:
            self._close(number, Cause.EXTERNAL, str(error))

    def _close(self, number: int, cause: Cause, detail: str, *, refused: bool = True) -> None:
        self._append(ev.LaunchClosed(launch=number, cause=cause, detail=detail, refused=refused))

    def _request(self, number: int) -> LaunchRequest:
        state = self._ledger.state
        intent = state.launches[number].intent
        return LaunchRequest(
            token=f"{state.created.uid}-{number}",
            run_uid=state.created.uid,
            run_uri=self._uri,
            launch=number,
            offering=intent.offering,
            time_to_live=timedelta(seconds=intent.time_to_live_s),
            price_cap_usd_per_hour=state.created.price_cap_usd_per_hour,
            count=None if intent.count is UNSET else intent.count,
        )
