"""
The runner: observe, decide, act, record; again every few seconds.

It holds no state but what it can read again. A second one on the same run is harmless, and one that died is replaced by
any other: what was intended is in the ledger before it is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import Guard, Guards, NoGuards
from spotrun.clouds.identities import SETTLES_WITHIN, Identities, NoIdentities
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    LaunchTokenSpent,
    QuotaExceeded,
    StoreUnavailable,
)
from spotrun.folder.heartbeats import Heartbeats
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.status_objects import AgentHint, agent_key, read_hint
from spotrun.instance import Instance, LaunchRequest
from spotrun.market.world import StepSeen, World, suitable
from spotrun.policy import Action, Append, Execute, Terminate, Wait, decide, finished
from spotrun.policy.patience import tick_s
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

GUARD_AGAIN_AFTER = timedelta(minutes=10)
"""A guard that could not be made is asked for again so often: what is in the way may pass, or be mended."""
PASSES_MAX = 20
"""A decision may follow from the one before (intend, then execute); more in one look would be a fault."""


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one pass of the runner saw and did. `blind` says why nothing could be seen, and nothing was done; `remark` what
    goes wrong beside the run without stopping it; `wrote`, that the ledger has an entry from it.
    """

    state: RunState
    instances: tuple[Instance, ...] = ()
    actions: tuple[Action, ...] = ()
    hint: AgentHint | None = None
    blind: str | None = None
    done: bool = False
    remark: str | None = None
    wrote: bool = False

    @property
    def waiting_for(self) -> str | None:
        return self.blind or next((action.reason for action in self.actions if isinstance(action, Wait)), None)


class Runner:
    """Attends to one run, on one cloud."""

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
    ) -> None:
        """
        `market` is what runs tell one another of the market; without it a run knows only what it saw itself. `guards`
        end instances of clouds that do not do so themselves. `identities` are for clouds where each run has its own.
        """
        self._ledger = ledger
        self._store = store
        self._driver = driver
        self._clock = clock
        self._spec = spec
        self._uri = uri
        self._heartbeats = Heartbeats(store, clock)
        self._message = ""
        self._hints: dict[int, AgentHint | None] = {}
        self._market = market
        self._guards = guards or NoGuards()
        self._guard_asked_at: dict[int, datetime] = {}
        self._identities = identities or NoIdentities()
        self._identified = False
        self._identity_since: datetime | None = None
        self._known_total: float | None = None

    def run(self, watch: Callable[[Pass], None]) -> Pass:
        """Attend until the run has ended and nothing of it is left running. `watch` sees each pass."""
        while True:
            for seen in self.look():
                watch(seen)
                if seen.done:
                    return seen
            self._clock.sleep(tick_s(self._clock.scale))

    def look(self) -> Iterator[Pass]:
        """
        A pass, and the next at once while they write: what was intended is asked for now, and where that is refused,
        the next offering. In a notice each tick that is waited for is downtime.
        """
        for _ in range(PASSES_MAX):
            seen = self.tick()
            yield seen
            if not seen.wrote:
                return

    def tick(self) -> Pass:
        """
        One pass. A cloud or store that cannot be seen just now is no reason to act (promise I6).

        Raises:
            LedgerDamaged: nobody may go on.
            AccessDenied: the cloud knows us no longer; instances and agents go on without a runner.
        """
        self._hints = {}
        try:
            world = self._observe()
            read = self._ledger.state.next_number
            actions = decide(self._ledger.state, self._spec, world, self._clock.now())
            self._act(actions)
            self._guard_again()
        except (CloudUnavailable, StoreUnavailable) as error:
            seen = Pass(state=self._ledger.state, blind=error.message)
        else:
            seen = self._seen(world, actions, wrote=self._ledger.state.next_number > read)
            if seen.done:
                self._remove_identity()
        self._message = seen.waiting_for or seen.remark or ""
        return seen

    def _seen(self, world: World, actions: list[Action], *, wrote: bool) -> Pass:
        state = self._ledger.state
        hint = None if state.current is None else self._hint(state.current.launch)
        done = finished(state, world) and not actions
        return Pass(
            state=state,
            instances=world.instances,
            actions=tuple(actions),
            hint=hint,
            done=done,
            remark=None if self._market is None else self._market.trouble,
            wrote=wrote,
        )

    # -- observe -----------------------------------------------------------------------------------------------------

    def _observe(self) -> World:
        """
        The ledger first, the cloud second; and the ledger again when the cloud has an instance we do not know.

        Without the second look, a launch that another runner intended and executed between our two reads would be
        taken for an orphan and terminated.
        """
        state = self._ledger.refresh()
        assert state.created is not None
        instances = tuple(self._driver.instances(state.created.uid))
        reckons = state.created.deadline_at is not None or state.created.budget_usd is not None
        if any(instance.launch not in state.launches for instance in instances):
            state = self._ledger.refresh()
        offerings = tuple(suitable(self._driver.offerings(), self._spec))
        return World(
            offerings=offerings,
            instances=instances,
            ready=self._ready(state),
            silent=self._heartbeats.silent(self._message),
            step_seen=self._step_seen(state) if reckons else None,
            steps_total=self._steps_total(state) if reckons else None,
            epochs_total=self._epochs_total(state),
            sightings=() if self._market is None else self._market.exchange(state, offerings, self._clock.now()),
        )

    def _ready(self, state: RunState) -> frozenset[int]:
        pending = state.pending_launch
        hint = None if pending is None else self._hint(pending.number)
        return frozenset({hint.launch}) if hint is not None and hint.phase == "standby" else frozenset()

    def _step_seen(self, state: RunState) -> StepSeen | None:
        hint = None if state.current is None else self._hint(state.current.launch)
        if hint is None or hint.attempt is None:
            return None
        return StepSeen(attempt=hint.attempt, step=hint.step, at=hint.at)

    def _steps_total(self, state: RunState) -> float | None:
        """What the newest agent that knew it said; what was known once is not forgotten for a hint that is missing."""
        for attempt in reversed(list(state.attempts.values())):
            hint = self._hint(attempt.launch)
            if hint is not None and (total := hint.steps_total) is not None:
                self._known_total = total
                break
            if self._known_total is not None:
                break
        return self._known_total

    def _epochs_total(self, state: RunState) -> int | None:
        """What the current attempt says; asked for only as long as a warning of the budget may need it."""
        assert state.created is not None
        if state.current is None or state.created.budget_usd is None or state.budget_warning is not None:
            return None
        hint = self._hint(state.current.launch)
        return None if hint is None else hint.epochs or None

    def _hint(self, launch: int) -> AgentHint | None:
        """Read once a pass, whoever asks."""
        if launch not in self._hints:
            self._hints[launch] = read_hint(self._store, agent_key(launch), AgentHint)
        return self._hints[launch]

    # -- act ---------------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Append):
                if not self._append(action.event):
                    return  # the run has moved on: decide anew
            elif isinstance(action, Execute):
                self._execute(action.launch)
            elif isinstance(action, Terminate):
                self._driver.terminate(action.instance_id)

    def _append(self, event: ev.AnyEvent) -> bool:
        """Write an event unless the run has changed since it was decided on."""
        decided_at = self._ledger.state.next_number
        if isinstance(event, ev.InstanceGone):
            event = self._with_last_step(event)
        if isinstance(event, ev.LaunchRecorded):
            event = self._guarded(event)
        try:
            entry = self._ledger.append(lambda state: event if state.next_number == decided_at else None)
        except EntryRefused:
            return False
        if entry is not None and isinstance(event, ev.InstanceGone):
            self._disarm(event.launch)
        return entry is not None

    def _guarded(self, found: ev.LaunchRecorded) -> ev.LaunchRecorded:
        """
        The guard comes before the entry: a runner that dies after its launch leaves an instance without one, and
        whoever finds that has no entry to tell it that there is nothing left to do.
        """
        return replace(found, unguarded=self._arm(found.launch, found.instance_id, found.billed_from))

    def _arm(self, number: int, instance_id: str, since: datetime) -> str | None:
        """Why it has no guard. The instance's own timer stands all the same, so that the run goes on."""
        self._guard_asked_at[number] = self._clock.now()
        request = self._request(number)
        ends_at = since + request.time_to_live
        region = request.offering.region
        try:
            self._guards.arm(Guard(token=request.token, region=region, instance_id=instance_id, ends_at=ends_at))
        except CloudError as error:
            return error.message
        return None

    def _guard_again(self) -> None:
        for found in self._ledger.state.unguarded:
            asked_at, now = self._guard_asked_at.get(found.launch), self._clock.now()
            if asked_at is not None and now - asked_at < GUARD_AGAIN_AFTER:
                continue
            if self._arm(found.launch, found.instance_id, found.billed_from) is None:
                self._append(ev.GuardArmed(launch=found.launch))

    def _disarm(self, number: int) -> None:
        request = self._request(number)
        with contextlib.suppress(CloudError):  # it goes by itself when its time comes
            self._guards.disarm(request.token, request.offering.region)

    def _with_last_step(self, gone: ev.InstanceGone) -> ev.InstanceGone:
        hint = self._hint(gone.launch)
        return gone if hint is None or hint.attempt is None else replace(gone, last_step_seen=hint.step)

    def _execute(self, number: int) -> None:
        if self._clock.now() >= self._ledger.state.launches[number].intent.not_after:
            return  # this process slept between the decision and here (protocol 8)
        try:
            instance = self._launched(number)
        except InsufficientCapacity as error:
            self._close(number, Cause.CAPACITY, error.message)
        except QuotaExceeded as error:
            self._close(number, Cause.QUOTA, str(error))
        except AccessDenied as error:
            self._close(number, Cause.ACCESS, str(error))
        except LaunchTokenSpent as error:
            self._close(number, Cause.EXTERNAL, error.message, refused=False)
        except CloudUnavailable:
            raise  # nobody knows whether it was launched: the next pass asks again with the same token
        except CloudError as error:
            self._close(number, Cause.EXTERNAL, str(error))
        else:
            self._arm(number, instance.instance_id, instance.launched_at)

    def _launched(self, number: int) -> Instance:
        self._identify()
        try:
            return self._driver.launch(self._request(number))
        except IdentityUnknown as error:
            self._identified = False  # a runner that took the run for ended may have removed it
            self._identify()
            if self._identity_since is None or self._clock.now() - self._identity_since >= SETTLES_WITHIN:
                raise
            raise CloudUnavailable(error.message) from error

    def _identify(self) -> None:
        """Asked for once; another runner asks again, and that is harmless."""
        if self._identified:
            return
        assert self._ledger.state.created is not None
        since = self._identities.make(self._ledger.state.created.uid, self._uri)
        if since is not None:
            self._identity_since = max(since, self._identity_since or since)
        self._identified = True

    def _remove_identity(self) -> None:
        """The next launch, where the run is resumed, makes it again."""
        assert self._ledger.state.created is not None
        self._identified = False
        with contextlib.suppress(CloudError):  # `spotrun reap` removes what is left
            self._identities.remove(self._ledger.state.created.uid)

    def _close(self, number: int, cause: Cause, detail: str, *, refused: bool = True) -> None:
        self._append(ev.LaunchClosed(launch=number, cause=cause, detail=detail, refused=refused))

    def _request(self, number: int) -> LaunchRequest:
        state = self._ledger.state
        assert state.created is not None
        intent = state.launches[number].intent
        return LaunchRequest(
            token=f"{state.created.uid}-{number}",
            run_uid=state.created.uid,
            run_uri=self._uri,
            launch=number,
            offering=intent.offering,
            time_to_live=timedelta(seconds=intent.time_to_live_s),
            price_cap_usd_per_hour=state.created.price_cap_usd_per_hour,
        )
