"""
The process that starts and ends one local instance as a cloud would, even after the instance's launcher is gone.

    launcher ── starts ──> (first process: exits immediately, so that the launcher has no child)
                             └── guardian         enforces the time-to-live; ends the instance if its supervisor dies
                                   └── supervisor     boots, serves metadata, follows the market, gives notice
                                         └── init         and all its descendants

Guardian and supervisor are both subreapers: all processes of the instance stay below them until they are dead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec

from spotrun.clock import ScaledClock
from spotrun.clouds.local import processes
from spotrun.clouds.local.market import Loss, Market
from spotrun.clouds.local.members import CUT_OFF_NET, MEMBERS_NET, given_up, has_all
from spotrun.clouds.local.metadata import MetadataService
from spotrun.clouds.local.records import RECORD_VARIABLE, CloudLog, CloudPaths, Record, RecordFolder
from spotrun.clouds.local.script import Observer, Script, StatusFile
from spotrun.clouds.local.settling import bury, bury_dead
from spotrun.errors import unless_no_room
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment
from spotrun.offering import CapacityType
from spotrun.spec.market_script import Action

TICK_S = 0.02
FAST_TICK_S = 0.003
"""
Seconds of system time between two iterations of the main loop while the market's script waits for an upload to reach
some size. A whole upload takes only tens of milliseconds.
"""
GUARDIAN_GRACE_S = 2.0
"""
Seconds of system time that the supervisor has to end its instance at the end of the time-to-live. After that, the
guardian kills the supervisor and ends the instance.
"""


class SteadyClock:
    """A clock of run time that starts at the time of `clock` and ticks evenly, even if a user sets the system clock."""

    def __init__(self, clock: ScaledClock, not_before: datetime) -> None:
        self.scale = clock.scale
        self.ahead = timedelta()
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep
        self.wait = clock.wait
        self._anchor = max(clock.now(), not_before)
        self._anchor_s = clock.monotonic()

    def now(self) -> datetime:
        return self._anchor + timedelta(seconds=self.monotonic() - self._anchor_s) - self.ahead

    def put_back(self, by: timedelta) -> None:
        self.ahead += by


class Supervisor:
    """
    Runs one instance from boot to end. Each iteration of its main loop checks for orders, the script's steps, losses,
    price changes and reasons to end.
    """

    def __init__(self, places: CloudPaths, folder: RecordFolder, record: Record) -> None:
        self._places = places
        self._folder = folder
        self._log = CloudLog(places.log)
        self._clock = SteadyClock(record.clock, record.instance.launched_at)
        self._dies_at = self._clock.now() + timedelta(seconds=record.time_to_live_s)
        self._boots_at = self._clock.now() + timedelta(seconds=record.market.boot_s)
        self._market = Market(record.market, record.clock_epoch)
        self._loss = self._market.next_loss(record.instance.offering.pool, self._clock.now())
        self._recommended_at = self._market.next_recommendation(record.instance.offering.pool, self._clock.now())
        market_path = places.market(record.instance.run_uid)
        self._script = Script(market_path, record.market.script, record.clock_epoch)
        self._script_seen = record.script_seen
        self._has_all = record.count is None
        self._status = StatusFile(places.disk(record.instance.instance_id) / "status.json")
        self._taken_at: datetime | None = None
        self._metadata = MetadataService(record.instance, self._clock)
        self._init: subprocess.Popen[bytes] | None = None
        self._init_exit_code: int | None = None
        self._record = msgspec.structs.replace(
            record,
            supervisor=processes.mark(os.getpid()),
            guardian=processes.mark(os.getppid()),
            metadata_endpoint=self._metadata.endpoint,
        )

    def start(self) -> None:
        self._folder.beat()
        self._folder.write(self._record)

    def run(self) -> None:
        while (by := self._turn_if_room()) is None:
            time.sleep(self._pause_s())
        self._end(by)

    def _turn_if_room(self) -> EndedBy | None:
        """
        Run one iteration of the main loop. If the disk is full, the instance keeps running, and a later iteration
        writes what this iteration could not write.
        """
        by: EndedBy | None = None
        with unless_no_room():
            by = self._turn()
        return by or self._why_end()

    def _turn(self) -> EndedBy | None:
        self._follow_script()
        if by := self._why_end():
            return by
        self._folder.beat()
        self._obey_orders()
        self._announce_loss()
        self._boot()
        self._follow_price()
        return self._why_end()

    def _pause_s(self) -> float:
        """Return how long the main loop pauses before its next iteration, in seconds of system time."""
        tick_s = FAST_TICK_S if self._script.waits_for_upload() and self._observer().can_be_taken else TICK_S
        announced_at = self._loss and _announced_at(self._loss)
        known = [self._dies_at, self._boots_at, self._taken_at, announced_at, self._recommended_at]
        due_s = [self._until(at).total_seconds() / self._clock.scale for at in known if at is not None]
        return min([tick_s, *(seconds for seconds in due_s if seconds > 0)])

    def _until(self, at: datetime) -> timedelta:
        return at - self._clock.now()

    # -- ending the instance ---------------------------------------------------------------------------------

    def _why_end(self) -> EndedBy | None:
        now = self._clock.now()
        if self._taken_at is not None and now >= self._taken_at:
            return EndedBy.CLOUD
        if "terminate" in self._folder.orders():
            return EndedBy.USER
        if now >= self._dies_at:
            return EndedBy.TIME_TO_LIVE
        if not self._all_are_there() and given_up(self._folder, self._record):
            return EndedBy.FAULT
        return EndedBy.ITSELF if self._init_has_exited() else None

    def _all_are_there(self) -> bool:
        """Return True if a supervisor has started for each member of this launch."""
        self._has_all = self._has_all or has_all(self._folder, self._record)
        return self._has_all

    def _end(self, by: EndedBy) -> None:
        at = self._clock.now()
        if not processes.kill_all(partial(processes.descendants, os.getpid())):
            print("some processes did not end", file=sys.stderr)
        processes.kill_all(partial(processes.carrying, RECORD_VARIABLE, str(self._folder.path)))
        bury(self._folder, self._log, self._record, at, by, self._init_exit_code)

    def _init_has_exited(self) -> bool:
        exit_codes = processes.reap()
        if self._init is not None and self._init.pid in exit_codes:
            self._init.returncode = self._init_exit_code = exit_codes[self._init.pid]
        return self._init_exit_code is not None

    # -- notices and interruptions ---------------------------------------------------------------------------

    def _follow_script(self) -> None:
        self._script.advance(self._clock.now(), self._observer(), self._others_that_train)
        happened = self._script.happened()
        for step, fact in happened[self._script_seen :]:
            if step.then.meets_one and not fact.met(self._folder.instance_id):
                continue
            if step.then is Action.REBALANCE:
                self._recommend(fact.at)
            elif step.then is Action.CUT_OFF:
                self._cut_off()
            elif step.then.takes_any and self._is_spot():
                self._give_notice(fact.at, step.notice)
        self._script_seen = len(happened)

    def _others_that_train(self) -> list[str]:
        """Return the sorted ids of the run's other spot instances that train and have no notice."""
        known = ((folder.instance_id, folder.read()) for folder in self._places.record_folders())
        return [
            instance_id
            for instance_id, record in known
            if record is not None and instance_id != self._folder.instance_id
            if record.instance.run_uid == self._record.instance.run_uid and not record.ended
            if observer_of(record.instance, StatusFile(self._places.disk(instance_id) / "status.json")).can_be_taken
        ]

    def _cut_off(self) -> None:
        """Move the instance to a new address, so that the other members cannot reach it. It still reaches the store."""
        address = self._record.instance.address.replace(f"{MEMBERS_NET}.", f"{CUT_OFF_NET}.", 1)
        self._metadata.move_to(address)
        self._change(address=address)
        self._tell("cut-off", address=address)

    def _announce_loss(self) -> None:
        """
        Send the recommendation to rebalance and the notice, at the times that the generated market has set for this
        instance's next loss. (If the market follows a script, `_follow_script` announces the losses.)
        """
        if self._loss is not None and self._clock.now() >= _announced_at(self._loss):
            self._give_notice(_announced_at(self._loss), self._loss.notice)
            self._loss = None
        if self._recommended_at is not None and self._clock.now() >= self._recommended_at:
            self._recommend(self._recommended_at)
            self._recommended_at = None

    def _recommend(self, at: datetime) -> None:
        self._metadata.recommend_rebalance(at)
        self._tell("rebalance")

    def _give_notice(self, at: datetime, notice: timedelta | None) -> None:
        """
        Announce that the instance will end at `at` plus `notice`, and schedule this end. If `notice` is None, the
        instance ends at `at` without an announcement. If an earlier end is already scheduled, do nothing.
        """
        taken_at = at + (notice or timedelta())
        if self._taken_at is not None and self._taken_at <= taken_at:
            return
        self._taken_at = taken_at
        if notice is not None:
            self._change(notice_deadline=taken_at)  # first: who has read the notice also finds it in the record
            self._metadata.give_notice(taken_at)
            self._tell("notice", deadline=taken_at)

    def _follow_price(self) -> None:
        prices = self._record.instance.prices
        if not prices:
            return
        pool, now = self._record.instance.offering.pool, self._clock.now()
        steps = self._market.price_changes(pool, prices[-1].since, now)
        if changes := [PriceSegment(since=step.since, usd_per_hour=step.usd_per_hour) for step in steps]:
            self._change(prices=(*prices, *changes))
            self._log.prices(self._record.instance, after=len(prices))

    def _obey_orders(self) -> None:
        orders = self._folder.orders()
        if "interrupt" in orders:
            notice_s = self._folder.take_order("interrupt")["notice_s"]
            assert notice_s is None or isinstance(notice_s, int | float)
            self._give_notice(self._clock.now(), None if notice_s is None else timedelta(seconds=notice_s))
        if "rebalance" in orders:
            self._folder.take_order("rebalance")
            self._recommend(self._clock.now())

    # -- the machine -----------------------------------------------------------------------------------------

    def _boot(self) -> None:
        """
        Start the init process and begin billing, if the boot delay is over and all members of the launch have
        supervisors.
        """
        if self._init is not None or self._clock.now() < self._boots_at or not self._all_are_there():
            return
        now = self._clock.now()
        price = self._market.price(self._record.instance.offering.pool, now)
        self._change(
            state=InstanceState.RUNNING,
            billed_from=now,
            prices=(PriceSegment(since=now, usd_per_hour=price),),
        )
        self._log.metered(self._record.instance)
        self._log.prices(self._record.instance)
        self._init = self._start_init()
        self._metadata.start()  # only now, because a fork is safe only without threads; clients were queued

    def _start_init(self) -> subprocess.Popen[bytes]:
        disk = self._places.disk(self._folder.instance_id)
        with open(disk / "console.log", "ab") as console:
            return subprocess.Popen(
                self._record.init,
                cwd=disk,
                env=self._environment(disk),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(processes.die_with, os.getpid()),
            )

    def _environment(self, disk: Path) -> dict[str, str]:
        instance = self._record.instance
        return {
            **os.environ,
            **self._record.clock.environment(),
            "SPOTRUN_RUN": self._record.run_uri,
            "SPOTRUN_RUN_UID": instance.run_uid,
            "SPOTRUN_LAUNCH": str(instance.launch),
            "SPOTRUN_INSTANCE_ID": instance.instance_id,
            RECORD_VARIABLE: str(self._folder.path),
            "SPOTRUN_INSTANCE_DIR": str(disk),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._metadata.endpoint,
            **({} if self._record.count is None else self._of_member(instance)),
        }

    @staticmethod
    def _of_member(instance: Instance) -> dict[str, str]:
        return {"SPOTRUN_MEMBER": str(instance.member), "SPOTRUN_MEMBER_ADDRESS": instance.address}

    def _observer(self) -> Observer:
        seen = observer_of(self._record.instance, self._status)
        return msgspec.structs.replace(seen, under_notice=self._taken_at is not None)

    def _is_spot(self) -> bool:
        return self._record.instance.offering.capacity_type is CapacityType.SPOT

    def _change(self, **changes: object) -> None:
        self._record = self._record.with_instance(**changes)
        self._folder.write(self._record)

    def _tell(self, event: str, **facts: object) -> None:
        self._log.write(event, self._clock.now(), instance_id=self._folder.instance_id, **facts)


def guard(supervisor_pid: int, places: CloudPaths, folder: RecordFolder, give_up_at: float) -> None:
    """
    Wait until the supervisor exits. At `give_up_at`, shortly after the end of the time-to-live, kill the supervisor.
    Then end the instance, if the supervisor has not done so.
    """
    overdue = not _wait_for_exit(supervisor_pid, give_up_at)
    if overdue:
        os.kill(supervisor_pid, signal.SIGKILL)  # our unreaped child, so no other process has this id
    processes.kill_all(partial(processes.descendants, os.getpid()))
    processes.reap()
    record = folder.read()
    if record is not None and not record.ended and record.supervisor is not None:
        by = EndedBy.TIME_TO_LIVE if overdue else EndedBy.FAULT
        bury_dead(folder, CloudLog(places.log), record, folder.last_beat(record.clock), by)


def _wait_for_exit(pid: int, give_up_at: float) -> bool:
    """
    Wait for a child process. Return whether it exited before `give_up_at`, a time on the system's monotonic clock.
    """
    poll = select.poll()
    poll.register(handle := os.pidfd_open(pid), select.POLLIN)
    while not (exited := bool(poll.poll(min(max(0.0, give_up_at - time.monotonic()), 3600.0) * 1000))):
        if time.monotonic() >= give_up_at:
            break
    os.close(handle)
    return exited


def observer_of(instance: Instance, status: StatusFile) -> Observer:
    """
    Describe the instance for the market script, using only facts that every process knows. The description does not
    mention a loss without notice, because only the instance's supervisor knows of it in advance.
    """
    return Observer(
        instance_id=instance.instance_id,
        capacity_type=instance.offering.capacity_type,
        under_notice=instance.notice_deadline is not None,
        status=status.read(),
    )


def _announced_at(loss: Loss) -> datetime:
    return loss.at - (loss.notice or timedelta())


def main(root: str, instance_id: str, ready: int) -> None:
    """
    Fork this process into the guardian and the supervisor of an instance. Both hold the lock on the instance's record.
    This process has inherited the lock from the launcher.
    """
    places = CloudPaths(Path(root))
    folder = places.record_folder(instance_id)
    assert folder is not None
    if os.fork() != 0:
        os._exit(0)
    record = folder.read()
    assert record is not None
    give_up_at = time.monotonic() + record.time_to_live_s / record.time_scale + GUARDIAN_GRACE_S
    processes.become_subreaper()
    if (supervisor_pid := os.fork()) != 0:
        os.close(ready)
        guard(supervisor_pid, places, folder, give_up_at)
    else:
        os.setsid()
        processes.become_subreaper()
        supervisor = Supervisor(places, folder, record)
        supervisor.start()
        with contextlib.suppress(BrokenPipeError):  # the launcher has died; the instance continues
            os.write(ready, b"1")
        os.close(ready)
        supervisor.run()


if __name__ == "__main__":
    status = 0
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except BaseException:  # noqa: BLE001  the last line of this process: write the reason into its log
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # without waiting for threads that still serve a metadata request
