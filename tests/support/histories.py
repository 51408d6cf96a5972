"""
Ledgers for tests: a `History` writes one entry after another and refuses what the fold would call void, and the
`histories()` strategy draws random valid ones. Nothing here reads a clock: time passes with `after`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.folder.ledger import key_of
from spotrun.instance import VOLUME_GIB, EndedBy, PriceSegment
from spotrun.offering import RENTED, CapacityType, Offering
from spotrun.run import entry_bytes, fold
from spotrun.run import events as ev
from spotrun.run.billing import LOCAL_RULE, aws_rule, switched_off_at
from spotrun.run.events import Cause, Entry
from spotrun.run.fold import apply
from spotrun.run.state import RunState
from spotrun.store.port import Store
from tests.support.checkpoint_entries import committed

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STORAGE = ev.StoragePrices(
    usd_per_gb_month=Decimal("0.023"),
    usd_per_1000_puts=Decimal("0.005"),
    usd_per_1000_gets=Decimal("0.0004"),
    egress_usd_per_gb=Decimal("0.09"),
    source="the price list of 2026-03-01",
)
FREE_STORAGE = ev.StoragePrices(
    usd_per_gb_month=Decimal(0),
    usd_per_1000_puts=Decimal(0),
    usd_per_1000_gets=Decimal(0),
    egress_usd_per_gb=Decimal(0),
    source="free",
)
AWS_RULE = aws_rule(VOLUME_GIB, ["us-east-1"])
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def offering(
    capacity_type: CapacityType = SPOT, price: str = "0.36", zone: str = "local-a", accelerators: str = ""
) -> Offering:
    return Offering(
        cloud="local",
        region="local",
        zone=zone,
        instance_type="sim-gpu",
        capacity_type=capacity_type,
        price_usd_per_hour=Decimal(price),
        accelerators=accelerators,
        simulated=True,
    )


def intended(offered: Offering | None = None, now: datetime = START, usd: str = "3.60", **fields: Any) -> Any:
    """A launch of that for `usd` an hour at most, which is also what it costs on demand."""
    others: dict[str, Any] = {
        "offering": offered or offering(),
        "time_to_live_s": 86_400,
        "price_ceiling_usd_per_hour": Decimal(usd),
        "on_demand_usd_per_hour": Decimal(usd),
        "not_after": now + timedelta(minutes=10),
        "reason": "test",
    }
    return ev.LaunchIntended(**(others | fields))


def gone(launch: int, ended_at: datetime, by: EndedBy = EndedBy.CLOUD, **fields: Any) -> ev.InstanceGone:
    """The end of an instance that was never billed, unless `fields` says otherwise."""
    others: dict[str, Any] = {"instance_id": f"i-{launch}", "billed_from": None, "prices": ()}
    others |= {"ended_at": ended_at, "ended_by": by, "evidence": "the cloud's record"}
    return ev.InstanceGone(launch=launch, **(others | fields))


class History:
    """
    A ledger in the making. `now` is the moment of the next entry; `state` the fold so far.

    Each method writes one entry, and those that open something return its number (a launch, an attempt, a commit). A
    trainer's `step` is kept here, so that commits and epochs say what a real one would.
    """

    def __init__(self, storage: ev.StoragePrices = STORAGE, **created: Any) -> None:
        self.now = START
        self.step = 0
        self.skew = timedelta(0)
        fields: dict[str, Any] = {
            "uid": "0123456789",
            "name": "demo",
            "ledger_version": ev.LEDGER_VERSION,
            "spec": {},
            "spec_sha256": "0" * 64,
            "workdir_sha256": "1" * 64,
            "clock_epoch": START,
            "time_scale": 1.0,
            "price_cap_usd_per_hour": None,
            "budget_usd": None,
            "storage": storage,
            "billing": LOCAL_RULE,
            "simulated": True,
            "epochs_end": ev.EpochsEnd.FINISHED,
        }
        self.uid: str = {**fields, **created}["uid"]
        event = ev.RunCreated(**{**fields, **created})
        self.entries = [Entry(number=0, run=self.uid, nonce="n0", at=self.now, writer="test", event=event)]
        self.state: RunState = fold.begin(self.entries[0])

    def after(self, seconds: float) -> History:
        self.now += timedelta(seconds=seconds)
        return self

    def entry(self, event: ev.AnyEvent) -> Entry:
        number = self.state.next_number
        return Entry(
            number=number, run=self.uid, nonce=f"n{number}", at=self.now + self.skew, writer="test", event=event
        )

    def write(self, event: ev.AnyEvent) -> int:
        entry = self.entry(event)
        reason = fold.refusal(self.state, entry)
        assert reason is None, f"{ev.kind(event)} would be void: {reason}"
        self.entries.append(entry)
        self.state = fold.apply(self.state, entry)
        return entry.number

    def put_into(self, store: Store) -> None:
        """Write the entries that are not there yet."""
        for entry in self.entries:
            store.put_if_absent(key_of(entry.number), entry_bytes.encode_entry(entry))

    # -- launches and their instances

    def launch(
        self,
        capacity_type: CapacityType = SPOT,
        price: str = "0.36",
        on_demand: str = "3.60",
        image: str = "",
        zone: str = "local-a",
        **offered: Any,
    ) -> int:
        """Ask for an instance: a standby where an attempt is current."""
        asked = replace(offering(capacity_type, price, zone), image=image, **offered)
        more = {"reason": "cheapest", "standby_for": self.state.current_attempt}
        return self.write(intended(asked, self.now, on_demand, **more))

    def record(self, launch: int) -> None:
        """The instance exists and is billed from now on, at the price of its offering."""
        self.write(
            ev.LaunchRecorded(
                launch=launch,
                instance_id=f"i-{launch}",
                billed_from=self.now,
                prices=(PriceSegment(since=self.now, usd_per_hour=self._price(launch)),),
            )
        )

    def _price(self, launch: int) -> Decimal:
        return self.state.launches[launch].intent.offering.price_usd_per_hour

    def stopped(self, launch: int) -> None:
        """Its machine is off, and its disk is there."""
        self.write(ev.InstanceStopped(launch=launch, stopped_at=self.now))

    def close(self, launch: int, cause: Cause = Cause.CAPACITY, answered: bool = True) -> None:
        """`answered`: the cloud said that there is no instance, unless the cause lies elsewhere."""
        by_cloud = cause in (Cause.CAPACITY, Cause.QUOTA, Cause.ACCESS)
        self.write(ev.LaunchClosed(launch=launch, cause=cause, refused=answered and by_cloud))

    def gone(
        self,
        launch: int,
        by: EndedBy = EndedBy.CLOUD,
        ended_at: datetime | None = None,
        dearer_since: tuple[datetime, str] | None = None,
        last_step: int | None = None,
        never_ran: bool = False,
        bounded_by: str = "",
    ) -> None:
        """
        `never_ran`: so EC2 tells it where a fault of its own ended the instance, and then it knows no price.
        `bounded_by`: nobody saw the end.
        """
        recorded = self.state.launches[launch].recorded
        prices = () if recorded is None or never_ran else recorded.prices
        if dearer_since is not None:
            prices = (*prices, PriceSegment(since=dearer_since[0], usd_per_hour=Decimal(dearer_since[1])))
        billed_from = None if recorded is None else recorded.billed_from
        more = {"billed_from": billed_from, "prices": prices, "last_step_seen": last_step, "bounded_by": bounded_by}
        self.write(gone(launch, self.now if ended_at is None else ended_at, by, **more))

    def corrected(self, launch: int, ended_at: datetime) -> None:
        """The cloud's bill knows another end."""
        self.write(ev.EndCorrected(launch=launch, ended_at=ended_at, by="a test", evidence="the bill"))

    # -- attempts and their trainers

    def failed_standbys(self, count: int) -> int:
        """Standbys that end before they take over, a minute each; the number of the last launch."""
        for _ in range(count):
            launch = self.after(60).launch()
            self.record(launch)
            self.after(60).gone(launch, EndedBy.ITSELF)
        return launch

    def start(self, launch: int, booted_at: datetime | None = None, setup: ev.SetUp | None = None) -> int:
        booted_at = self.now if booted_at is None else booted_at
        return self.write(ev.AttemptStarted(launch=launch, instance_id=f"i-{launch}", booted_at=booted_at, setup=setup))

    @property
    def attempt(self) -> int:
        assert self.state.current_attempt is not None
        return self.state.current_attempt

    @property
    def incarnation(self) -> int:
        return len(self.state.attempts[self.attempt].trainers) - 1

    def resume(self, walk_back: int = 0) -> None:
        """A trainer begins at the newest checkpoint, or so many before it; at zero where there is none."""
        candidates = self.state.restore_candidates()
        chosen = candidates[walk_back] if candidates else None
        self.step = 0 if chosen is None else chosen.event.step
        self.write(
            ev.ResumedFrom(
                attempt=self.attempt,
                incarnation=self.incarnation + 1,
                commit=None if chosen is None else chosen.number,
                epoch=0 if chosen is None else chosen.event.epoch,
                step=self.step,
                skipped=tuple(commit.number for commit in candidates[:walk_back]),
            )
        )

    def training(self) -> None:
        self.write(ev.TrainingStarted(attempt=self.attempt, incarnation=self.incarnation, step=self.step + 1))

    def commit(
        self,
        taken_s_ago: float = 0,
        stall_s: float = 0,
        size_bytes: int = 10**9,
        final: bool = False,
        suspect: bool = False,
        step: int | None = None,
        **fields: Any,
    ) -> int:
        return self.write(
            committed(
                self.attempt,
                f"checkpoints/{self.state.next_number}",
                self.step if step is None else step,
                self.now - timedelta(seconds=taken_s_ago),
                incarnation=self.incarnation,
                size_bytes=size_bytes,
                objects=3,
                stall_s=stall_s,
                durable_s=taken_s_ago,
                final=final,
                suspect=suspect,
                **fields,
            )
        )

    def stored(self, size_bytes: int = 10**6) -> int:
        """Files of the script, all of them new."""
        newest = self.state.latest_commit()
        return self.write(
            ev.OutputsStored(
                attempt=self.attempt,
                key=f"outputs/{self.attempt}/list-{self.state.next_number}.json",
                blake3="0" * 64,
                commit=None if newest is None else newest.number,
                step=self.step,
                looked_at=self.now,
                files=1,
                size_bytes=size_bytes,
                objects=2,
                sent_bytes=size_bytes,
                stored_bytes=size_bytes,
            )
        )

    def not_carried(self, *places: str, what: str = "socket.socket") -> int:
        named = tuple(ev.Uncarried(place=place, what=what) for place in places)
        return self.write(ev.StateNotCarried(attempt=self.attempt, step=self.step, places=named))

    def epoch(self, epoch: int) -> None:
        self.write(ev.EpochCompleted(attempt=self.attempt, epoch=epoch, step=self.step, ended_at=self.now))

    def notice(self, kind: str = "termination") -> None:
        self.write(ev.NoticeSeen(attempt=self.attempt, kind=kind, deadline_at=self.now + timedelta(seconds=120)))

    def exited(self, cause: Cause = Cause.USER_ERROR) -> None:
        self.write(
            ev.TrainerExited(
                attempt=self.attempt, incarnation=self.incarnation, cause=cause, exit_code=1, step=self.step
            )
        )

    def drained(self, final_commit: int | None, stopped_s_ago: float = 0) -> None:
        stopped_at = self.now - timedelta(seconds=stopped_s_ago)
        self.write(
            ev.AttemptDrained(attempt=self.attempt, final_commit=final_commit, stopped_at=stopped_at, reason="notice")
        )

    def ended(self, cause: Cause = Cause.USER_ERROR) -> None:
        self.write(ev.AttemptEnded(attempt=self.attempt, cause=cause, last_step=self.step))

    def completed(self, final_commit: int | None) -> None:
        self.write(ev.RunCompleted(attempt=self.attempt, final_commit=final_commit, step=self.step))

    def running(
        self,
        capacity_type: CapacityType = SPOT,
        price: str = "0.36",
        walk_back: int = 0,
        setup: ev.SetUp | None = None,
        **offered: Any,
    ) -> int:
        """From nothing to the first step in 100 s: 10 s until it is billed, 50 s boot, 25 s setup, 15 s restore."""
        launch = self.launch(capacity_type, price, **offered)
        self.after(10).record(launch)
        booted_at = self.after(50).now
        self.after(25).start(launch, booted_at, setup)
        self.resume(walk_back)
        self.after(15).training()
        return launch


# -- random ones -------------------------------------------------------------------------------------------------------

STEPS_PER_EPOCH = 7
Draw = Callable[[st.SearchStrategy[Any]], Any]
_CAUSES = st.sampled_from([Cause.USER_ERROR, Cause.HANG, Cause.OUT_OF_MEMORY])
_PRICES = st.sampled_from(["0.1234567", "0.36", "3"])


@st.composite
def histories(draw: Draw, moves_max: int = 50, skewed: bool = False) -> list[Entry]:
    """
    A valid ledger of a run that may be at any point of its life: launches, standbys, attempts, trainers that crash,
    checkpoints (suspect and retired ones too), epochs, notices, drains, losses, walks back, stops and resumes.

    With `skewed`, the clocks of the writers disagree by up to a minute. Some entries may be void.
    """
    return draw(random_runs(moves_max, skewed)).entries


@st.composite
def random_runs(draw: Draw, moves_max: int = 50, skewed: bool = False) -> History:
    """The same, as the `History` that was written; its `now` is not before any entry, but for skew."""
    history = History(storage=draw(st.sampled_from([STORAGE, FREE_STORAGE])))
    if draw(st.integers(0, 3)):
        history.running(draw(st.sampled_from(RENTED)), draw(_PRICES))
    for _ in range(draw(st.integers(0, moves_max))):
        history.after(draw(st.integers(0, 6000)) / 10)
        if skewed:
            history.skew = timedelta(seconds=draw(st.integers(-60, 60)))
        draw(st.sampled_from(_moves(history)))(history, draw)
    return history


Move = Callable[[History, Draw], object]


def _moves(history: History) -> list[Move]:
    """What can happen next. What happens more often in life is named more often."""
    state = history.state
    moves: list[Move] = [_end_an_instance] if _instances_to_end(state) else []
    moves += [_stop_an_instance] if _instances_to_stop(state) else []
    moves += [_correct_an_end] if _bounded_ends(state) else []
    if state.terminal is not None:
        return moves + ([_write_a_void_entry] if state.terminal.outcome == "completed" else [_request_resume])
    if state.pending_launch is not None:
        moves += [_move_the_launch] * (2 if state.current is not None else 8)
    elif not state.stop_requested:
        moves += [_launch] if state.current is not None else [_launch] * 8
    if state.current is None:
        moves += [_stop_the_run] if state.stop_requested else [_fail_the_run, _request_stop]
        return moves
    moves += [lambda h, d: h.stored(d(st.integers(0, 10**9)))]
    moves += [
        _name_what_is_not_carried,
        _interrupt,
        _notice,
        _drain,
        _end_the_attempt,
        _request_stop,
        _request_prune,
        _write_a_void_entry,
    ]
    newest = state.current.trainers[-1] if state.current.trainers else None
    if newest is None or newest.exited is not None:
        return moves + [_resume] * 8
    if newest.started_at is None:
        return [*moves, _crash, *[lambda h, _: h.training()] * 8]
    return [*moves, _crash, _complete, _retire, *[_train] * 16, *[_commit] * 10]


def _instances_to_end(state: RunState) -> list[int]:
    """Recorded instances that are still there and no longer needed."""
    needed = {state.current.launch if state.current is not None else None}
    return [n for n, launch in state.launches.items() if launch.recorded and launch.gone is None and n not in needed]


def _instances_to_stop(state: RunState) -> list[int]:
    return [n for n in _instances_to_end(state) if switched_off_at(state.launches[n].prices) is None]


def _stop_an_instance(history: History, draw: Draw) -> None:
    history.stopped(draw(st.sampled_from(_instances_to_stop(history.state))))


def _end_an_instance(history: History, draw: Draw) -> None:
    launch = draw(st.sampled_from(_instances_to_end(history.state)))
    recorded = history.state.launches[launch].recorded
    dearer = None
    runs = recorded is not None and switched_off_at(recorded.prices) is None
    if recorded is not None and runs and history.now > recorded.billed_from and draw(st.booleans()):
        dearer = (recorded.billed_from + (history.now - recorded.billed_from) / 2, draw(_PRICES))
    bounded_by = draw(st.sampled_from(["", "its last heartbeat"]))
    history.gone(launch, draw(st.sampled_from(EndedBy)), dearer_since=dearer, bounded_by=bounded_by)


def _bounded_ends(state: RunState) -> list[int]:
    bounded = ((number, launch.gone) for number, launch in state.launches.items() if launch.billed_from is not None)
    return [number for number, gone in bounded if gone is not None and gone.bounded_by]


def _correct_an_end(history: History, draw: Draw) -> None:
    launch = history.state.launches[draw(st.sampled_from(_bounded_ends(history.state)))]
    assert launch.gone is not None
    assert launch.billed_from is not None
    lived = launch.gone.ended_at - launch.billed_from
    ended_at = launch.billed_from + lived * draw(st.sampled_from([0.5, 0.75]))
    if ended_at != launch.gone.ended_at:
        history.corrected(launch.number, ended_at)


def _launch(history: History, draw: Draw) -> None:
    history.launch(draw(st.sampled_from(RENTED)), draw(_PRICES))


def _move_the_launch(history: History, draw: Draw) -> None:
    launch = history.state.pending_launch
    assert launch is not None
    if draw(st.integers(0, 9)) == 0:
        history.close(launch.number)
    elif launch.recorded is None:
        history.record(launch.number)
    else:
        booted_at = launch.recorded.billed_from + timedelta(seconds=draw(st.integers(0, 60)))
        history.start(launch.number, booted_at)


def _resume(history: History, draw: Draw) -> None:
    history.resume(walk_back=draw(st.integers(0, max(0, len(history.state.restore_candidates()) - 1))))


def _train(history: History, draw: Draw) -> None:
    """Some steps; an epoch that ends on the way is said so, and now and then that entry is lost with its writer."""
    target = history.step + draw(st.integers(1, STEPS_PER_EPOCH))
    while history.step < target:
        history.step += 1
        epoch, rest = divmod(history.step, STEPS_PER_EPOCH)
        known = history.state.epochs[-1].event.epoch if history.state.epochs else -1
        if rest == 0 and epoch - 1 > known:
            history.epoch(epoch - 1)
        history.after(draw(st.integers(0, 300)) / 10)


def _commit(history: History, draw: Draw) -> None:
    taken_s_ago, stall_s = draw(st.integers(0, 40)), draw(st.integers(0, 10)) / 10
    size = draw(st.sampled_from([1, 10**6, 10**11]))
    history.commit(taken_s_ago, stall_s, size, suspect=draw(st.integers(0, 9)) == 0)


def _retire(history: History, draw: Draw) -> None:
    older = history.state.restore_candidates()[1:]
    if older:
        commit = draw(st.sampled_from(older)).number
        history.write(ev.CheckpointRetired(attempt=history.attempt, commit=commit))


def _final_commit(history: History, draw: Draw) -> int | None:
    trainers = history.state.attempts[history.attempt].trainers
    if trainers and draw(st.integers(0, 4)):
        return history.commit(taken_s_ago=draw(st.integers(0, 20)), stall_s=0.5, final=True)
    return None


def _notice(history: History, draw: Draw) -> None:
    history.notice(draw(st.sampled_from(["termination", "rebalance"])))


def _drain(history: History, draw: Draw) -> None:
    history.drained(_final_commit(history, draw), stopped_s_ago=draw(st.integers(0, 20)))


def _interrupt(history: History, draw: Draw) -> None:
    attempt = history.state.attempts[history.attempt]
    if history.state.launches[attempt.launch].recorded is not None:
        ended_at = history.now
        history.after(draw(st.integers(0, 200)))
        by = draw(st.sampled_from([EndedBy.CLOUD, EndedBy.CLOUD, EndedBy.FAULT, EndedBy.TIME_TO_LIVE]))
        history.gone(attempt.launch, by, ended_at, last_step=draw(st.sampled_from([None, history.step])))


def _crash(history: History, draw: Draw) -> None:
    history.exited(draw(_CAUSES))


def _end_the_attempt(history: History, draw: Draw) -> None:
    history.ended(draw(_CAUSES))


def _complete(history: History, draw: Draw) -> None:
    if draw(st.booleans()):
        history.completed(_final_commit(history, draw))


def _request_stop(history: History, draw: Draw) -> None:
    if draw(st.integers(0, 2)) == 0:
        history.write(ev.StopRequested(by="a test"))


def _request_prune(history: History, draw: Draw) -> None:
    history.write(ev.PruneRequested(by="a test", keep=draw(st.integers(1, 3))))


def _name_what_is_not_carried(history: History, draw: Draw) -> None:
    history.not_carried(f"module.part_{len(history.state.not_carried)}")


def _stop_the_run(history: History, draw: Draw) -> None:
    history.write(ev.RunStopped(reason="as requested"))


def _fail_the_run(history: History, draw: Draw) -> None:
    if draw(st.booleans()):
        history.write(ev.RunFailed(cause=Cause.QUOTA, detail="none left"))


def _request_resume(history: History, draw: Draw) -> None:
    history.write(ev.ResumeRequested(by="a test"))


def _write_a_void_entry(history: History, draw: Draw) -> None:
    entry = history.entry(ev.InstanceCondemned(launch=10**6, cause=Cause.EXTERNAL))
    history.entries.append(entry)
    history.state = fold.apply(history.state, entry)


def refused(history: History, event: ev.AnyEvent, because: str) -> None:
    """The event is void now: named, and of no effect but on the number of the next entry."""
    entry, before = history.entry(event), history.state
    history.state = apply(before, entry)
    history.entries.append(entry)
    assert [void.number for void in history.state.voids[len(before.voids) :]] == [entry.number], ev.kind(event)
    assert because in history.state.voids[-1].reason
    expected = replace(
        before,
        next_number=entry.number + 1,
        entry_times=history.state.entry_times,
        voids=before.voids.append(history.state.voids[-1]),
    )
    assert history.state == expected
