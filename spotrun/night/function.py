"""
The function that takes care of the nights of one installed job. It is a runner that does not run continuously: the
cloud calls it, each time with one of these events.

    {"kind": "begin", "due": "2026-11-27T21:00:00Z"}     a night is due: start its run, or continue an unfinished one
    {"kind": "again", "due": "2026-11-27T22:15:00Z"}     the same, every 15 minutes for an hour; if a night cannot
                                                         begin, notify the receivers that the job names
    {"kind": "begin", "by_hand": "2026-11-27T10:15:00"}  the user starts a night by hand
    {"kind": "tick"}                                     take care of the newest run: do one tick
    {"kind": "look"}                                     the same, and set the alarm even if it seems to be set already
    an event from EC2                                    if it is about one of the run's instances, tick for up to
                                                         WATCH_S seconds

The *alarm* is the cloud's timer that calls the function once a minute.

The function follows the rules for runners (protocol 6 and 8): it may be killed at any moment, and several copies of it
may run at the same time. It keeps some objects in memory from call to call, but only to send fewer requests to the
store.

The function trusts the store only as far as the pin in its environment allows (folder/night.py): it starts only the job
that was installed, and takes care only of runs that it has created itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from spotrun.account.outcome import status_word
from spotrun.account.summary import summarise
from spotrun.clock import Clock, system_clock
from spotrun.clouds.nights import Alarm
from spotrun.clouds.registry import nights_of
from spotrun.errors import CloudError, LedgerDamaged, NightUnderWay, RunNotFound, SpecInvalid, SpotrunError, StoreError
from spotrun.folder.keys import KeyMissing
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.folder.night import Pin, require_pin
from spotrun.folder.night_record import BY_HAND, BegunNight, NightRecord, NumberedNight
from spotrun.folder.pace import BY_THE_MINUTE
from spotrun.night.counts import CallCounter, since_start_s
from spotrun.night.news import Addresses, NightNews
from spotrun.notify.news import News, late_night, night, uncalled_night
from spotrun.run.entry_bytes import parted
from spotrun.run.events import NoticeSeen
from spotrun.run.state import RunState
from spotrun.runner.creation import new_uid, prepare_run
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from spotrun.runs.open_run import OpenRun, open_each, writer
from spotrun.secrets.reference import Reference
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist

CREATED_WITHIN = timedelta(hours=12)
"""
If a night has a record but no run, the run is created now, unless the record is older than this. The run can be missing
for two reasons. The record is written first, so the run of a young record may not have been created yet. The run of an
older record was deleted, and must not be created again.
"""
WATCH_S = 20.0
"""
System time to wait for an entry that the run's agent is about to write. EC2 sends a recommendation both to this
function and to the agent, and the agent may receive it a few seconds later.
"""
NOTICE = timedelta(minutes=2)
"""
Time from an interruption notice to the end of the instance:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""
RACES_MAX = 5
PASSED_OVER_MAX = 3
"""Maximum number of false records (written by another process) that an answer names."""

Answer = dict[str, Any]
_attendants: dict[str, Attendant] = {}
_counters: dict[str, CallCounter] = {}
_LOG_BYTES = 100
"""Bytes that AWS adds to a line of the log."""


def handler(event: Mapping[str, Any], context: object = None) -> Answer:
    """Handle an event and return the answer. AWS Lambda calls this function."""
    name, store = os.environ["SPOTRUN_NIGHT"], os.environ["SPOTRUN_STORE"]
    if name not in _counters:
        _counters[name] = CallCounter(store, _memory_mb(), _STARTING_S)
    began_s, answer, said = time.perf_counter(), Answer(), ""
    try:
        answer = _answered(store, name, event)
        if answer.get("wrote") or answer.get("trouble") or answer.get("unheard"):
            said = str(answer)
            print(said, flush=True)
    finally:
        seconds = time.perf_counter() - began_s
        _counters[name].count(event, answer, seconds, len(said) + _LOG_BYTES if said else 0)
    return answer


def _memory_mb() -> int:
    """
    Return the memory of this environment, in MB. It is read from an environment variable. Lambda itself sets this
    variable; on Cloud Run, the installation sets it.
    """
    return int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE") or os.environ["SPOTRUN_MEMORY_MB"])


def _answered(store: str, name: str, event: Mapping[str, Any]) -> Answer:
    if name not in _attendants:
        _attendants[name] = Attendant(store, name, require_pin(os.environ))
    try:
        return _attendants[name].answer(event)
    except BaseException:
        del _attendants[name]  # its memory may be in a half-finished state
        raise


class _Attended:
    """
    A run that the function takes care of, with the objects that stay in memory from call to call: the run's runner, and
    the notifications that were not sent yet.
    """

    def __init__(self, run: OpenRun, addresses: Addresses) -> None:
        self.run = run
        self.runner: Runner = run.runner_at(BY_THE_MINUTE)
        self.news = NightNews(run.spec, run.store, run.owner, addresses)


class Attendant:
    """
    Takes care of the newest run of one installed job's nights. `alarm` is for tests; by default, the cloud's alarm is
    used.
    """

    def __init__(self, store: str, name: str, pin: Pin, alarm: Alarm | None = None, clock: Clock | None = None) -> None:
        self._uri, self._name = store, name
        self._clock = clock or system_clock()
        self._troubles: list[str] = []
        self._pin, self._signer = pin, pin.signer
        self._record = NightRecord(store, name, pin)
        self._own_alarm = alarm
        self._newest: NumberedNight | None = None
        self._attended: _Attended | None = None

    def answer(self, event: Mapping[str, Any]) -> Answer:
        """
        Do what an event requests.

        Raises:
            SpotrunError: a night could not begin. The cloud then repeats the call. Calls that do not begin a night
                return their error in the answer instead, because the next call comes within a minute.
        """
        self._troubles = []
        if event.get("kind") in ("begin", "again"):
            try:
                return self._gets_under_way(event)
            except SpotrunError as error:
                if event["kind"] == "again":
                    self._tell_that_it_is_late(event, error)
                raise
        try:
            if "detail-type" in event:
                return self._hear(event)
            return self._attend(again=event.get("kind") == "look")
        except SpotrunError as error:
            self._attended = None
            if isinstance(error, LedgerDamaged | KeyMissing | RunStrange):  # retries do not help
                self._set(self._alarm.off)
            return {"trouble": "; ".join([error.one_line, *self._troubles])}

    # -- beginning a night -------------------------------------------------------------------------------------------

    def _gets_under_way(self, event: Mapping[str, Any]) -> Answer:
        due = self._begin(event)
        answer = {**self._attend(again=True), "night": due}
        if self._troubles:
            raise CloudError("; ".join(self._troubles), hint="the cloud will call the function again")
        if not event.get("by_hand") and (wrong := self._tell_what_does_not_call(event)):
            answer["trouble"] = "; ".join(filter(None, [answer.get("trouble"), *wrong]))
        return answer

    def _tell_that_it_is_late(self, event: Mapping[str, Any], error: SpotrunError) -> None:
        """
        Notify the job's receivers that the night could not begin. This notification belongs to no run, because the run
        may not exist.

        Raises:
            CloudError: a receiver could not be notified. The message also says why the night could not begin (`error`).
        """
        try:
            unheard = self._tell_of_the_night(late_night, event, error.one_line)
        except SpotrunError as failure:
            unheard = [failure.one_line]
        if unheard:
            hint = "the cloud will call the function again"
            raise CloudError("; ".join([error.one_line, *unheard]), hint=hint) from error

    def _tell_what_does_not_call(self, event: Mapping[str, Any]) -> list[str]:
        """
        Notify the job's receivers if a schedule that should call the function for a night will not. Return what is
        wrong. The night itself has begun, so a notification that fails is only part of that.
        """
        try:
            wrong = self._alarm.wrong()
            return [wrong, *self._tell_of_the_night(uncalled_night, event, wrong)] if wrong else []
        except SpotrunError as failure:
            return [failure.one_line]

    def _tell_of_the_night(
        self, news_of: Callable[[str, str, datetime, str], News], event: Mapping[str, Any], why: str
    ) -> list[str]:
        """Send a notification about the night that `event` begins. Return a sentence for each failed delivery."""
        now = self._clock.now()
        due = self._pin.night.due(_moment(event.get("due"), now))
        told = RunSpec.from_dict(self._pin.night.spec)
        news = NightNews(told, self._record.store, self._signer, self._addresses)
        return news.tell((), news_of(self._name, due, now, why))

    def _begin(self, event: Mapping[str, Any]) -> str:
        """
        Write a record of the night that `event` begins, unless the night already has a record. Return the night's due
        time, which serves as its name.
        """
        now, by_hand = self._clock.now(), event.get("by_hand")
        due = f"{BY_HAND}{by_hand}" if by_hand else self._pin.night.due(_moment(event.get("due"), now))
        for _ in range(RACES_MAX):
            known = self._record.newest()
            self._newest = known[-1] if known else None
            if any(each.begun.due == due for each in known):
                return due
            unfinished = self._unfinished(self._newest)
            if unfinished is None:
                # The record names the new run's folder before that folder exists, and everyone who can read the store
                # can read the record. If creating the run then failed, an attacker could put another run into this
                # folder. So check first that the job is valid.
                with self._job():
                    pass
            begun = BegunNight(due=due, run=unfinished or new_uid(), at=now, carried=unfinished is not None)
            numbered = NumberedNight(self._record.next_number, begun)
            if self._record.add(numbered):
                self._newest = numbered
                return due
        raise NightUnderWay(f"other calls began nights of {self._name} at the same time", hint="call it again")

    def _unfinished(self, newest: NumberedNight | None) -> str | None:
        """
        Return the uid of the unfinished run that this night has to continue. Return None if there is no such run; the
        night then starts a new one.

        Raises:
            NightUnderWay: a run with this name is not finished, and this night is not allowed to continue it.
        """
        runs = self._runs_of_the_name()
        there = {run.created.uid for run in runs}
        if newest is not None and newest.begun.run not in there and self._is_recent(newest):
            return newest.begun.run  # it was recorded, but its process was killed before creating it
        own = _last(run for run in runs if self._has_made(run))
        if own is not None:
            state = own.ledger.refresh()
            if _goes_on(state):
                return own.created.uid
            if _may_be_billed(state) and not own.runner_at(BY_THE_MINUTE).tick().done:
                what = f"{own.id} has ended, but its instances have not ended yet"
                raise NightUnderWay(what, hint="call it again in a few minutes")
        strange = _last(run for run in runs if not self._has_made(run))
        if strange is not None and _goes_on(strange.ledger.refresh()):
            typed = strange.typed
            hint = f"if the run is yours, `spotrun resume {typed}` continues it; `spotrun down {typed}` ends it"
            raise NightUnderWay(f"{strange.id} is not finished, and no night has begun it", hint=hint)
        return None

    def _has_made(self, run: OpenRun) -> bool:
        """
        Return True if this night's function has created `run`. The signature of the run's entry 0 shows this, because
        only this function has the night's key.
        """
        return self._signer.has_signed(*parted(run.first))

    def _runs_of_the_name(self) -> list[OpenRun]:
        store = open_store(self._uri)
        named = [folder for folder in persist(store.folders) if folder.rpartition("-")[0] == self._name]
        runs, _ = open_each(store, named)
        return runs

    def _create(self, uid: str) -> OpenRun:
        with self._job() as spec:
            new = prepare_run(spec, f"night:{self._name}", uid=uid, shared=True, signer=self._signer)
            uri = new.create()
        return OpenRun(uri, writer("night"))

    @contextlib.contextmanager
    def _job(self) -> Iterator[RunSpec]:
        """
        Yield the installed job. Within the `with` block, the job's work folder is on this machine.

        Raises:
            NightStrange: the job or the folder is not the one that was installed.
        """
        installed = self._record.read()
        with tempfile.TemporaryDirectory(prefix="work-") as folder:
            self._record.fetch(installed, Path(folder))
            yield RunSpec.from_dict(installed.spec).model_copy(update={"workdir": folder})

    # -- taking care of the run --------------------------------------------------------------------------------------

    def _attend(self, *, again: bool = False, watch_s: float = 0.0) -> Answer:
        """
        Take care of the newest run for at most `watch_s`. Stop earlier if a tick has written to the ledger and the next
        tick has found nothing to write.
        """
        if not self._goes_on() and not self._is_known():
            self._set(self._alarm.off)
            return self._told(None, None)
        # This process may be killed while it takes care of the run. So set the alarm first: it calls the function
        # again.
        self._set(lambda: self._alarm.on(again=again))
        attended = self._opened()
        if attended is None:
            self._set(self._alarm.off)
            return self._told(None, None)
        last, wrote = None, False
        for tick in attended.runner.watch_for(watch_s):
            last, wrote = tick, wrote or tick.wrote
            if wrote and not tick.wrote:
                break  # the awaited entry has come, and the runner has acted on it
        assert last is not None
        unheard = self._tell(attended, last)
        if last.done and not attended.news.waits:
            self._leave()
        elif last.blind is None:
            self._set(lambda: self._alarm.hear([each.instance_id for each in last.instances if each.alive]))
        answer = self._told(attended.run, last, wrote=wrote)
        return {**answer, "unheard": "; ".join(unheard)} if unheard else answer

    def _tell(self, attended: _Attended, last: Tick) -> list[str]:
        """
        Send the run's notifications after a tick. If a notification cannot be delivered, the call still counts as
        successful.
        """
        over = night(last.state, summarise(last.state, attended.run.clock.now())) if last.done else None
        return attended.news.tell(attended.run.ledger.entries, over)

    def _addresses(self, places: Mapping[str, Reference]) -> Mapping[str, str]:
        return nights_of(self._pin.night).addresses(places)

    def _set(self, act: Callable[[], None]) -> None:
        """
        Set the alarm with `act`. If that fails, note the trouble and continue: even without the alarm, the function
        takes care of the run whenever it is called.
        """
        try:
            act()
        except CloudError as error:
            self._troubles.append(error.one_line)

    def _hear(self, event: Mapping[str, Any]) -> Answer:
        """
        Take care of the run if EC2's event is about one of its instances. An event about another run's instance has no
        effect.
        """
        instance_id = str(event.get("detail", {}).get("instance-id", ""))
        attended = self._opened() if self._goes_on() or self._is_known() else None
        if attended is None:
            return self._told(None, None)
        state = attended.run.ledger.refresh()
        ours = {each.recorded.instance_id for each in state.members() if each.recorded is not None}
        if instance_id not in ours or state.terminal is not None:
            return {"run": attended.run.id, "not_ours": instance_id}
        if "instance-action" in event["detail"]:
            self._note_notice(attended.run.ledger, instance_id, _moment(event.get("time"), self._clock.now()) + NOTICE)
        return self._attend(watch_s=WATCH_S)

    def _note_notice(self, ledger: Ledger, instance_id: str, deadline_at: datetime) -> None:
        """
        Write the notice of the training instance into the ledger, unless its agent has already done so.

        The agent would see the notice up to two seconds later, because it polls. With this entry, the runner can
        request the replacement now. If the run has a gang, only its agents write the entry, because it needs the
        member's number.
        """

        def unless_known(state: RunState) -> NoticeSeen | None:
            current = state.current
            if current is None or current.instance_id != instance_id or current.notice or len(current.names) > 1:
                return None
            return NoticeSeen(attempt=current.number, kind="termination", deadline_at=deadline_at)

        if deadline_at > self._clock.now():  # an event that comes this late is about a loss that the ledger has
            with contextlib.suppress(EntryRefused):
                ledger.append(unless_known)

    def _goes_on(self) -> bool:
        """
        Return True if the run that this process takes care of is unfinished. Until it is finished, no night starts a
        newer run (see `_unfinished`).
        """
        if self._attended is None:
            return False
        return _goes_on(self._attended.run.ledger.state)

    def _is_known(self) -> bool:
        """
        Read the record of the newest night. The first call reads all records; later calls only check for a newer
        record. Return True if any night has begun.
        """
        if self._newest is None:
            known = self._record.newest()
            self._newest = known[-1] if known else None
        elif (later := self._record.later(self._newest)) is not None:
            self._newest = later
        return self._newest is not None

    def _leave(self) -> None:
        """
        Turn the alarm off, because the run is over.

        Another process may begin a night at the same time and set the alarm just before this method turns it off. So
        after turning the alarm off, this method checks for a newer night, and sets the alarm again if there is one.
        """
        before = self._newest
        self._attended = None
        self._set(self._alarm.off)
        if self._is_known() and self._newest != before:
            self._set(lambda: self._alarm.on(again=True))

    def _opened(self) -> _Attended | None:
        """
        Return the newest night's run. If the process that recorded the night was killed before it created the run,
        create the run now. Return None if the run was deleted.

        Raises:
            RunStrange: the run in that folder was not created by this night's function.
        """
        assert self._newest is not None
        uid = self._newest.begun.run
        if self._attended is not None and self._attended.run.created.uid == uid:
            return self._attended
        try:
            run = OpenRun(self._record.run_uri(uid), writer("night"))
        except RunNotFound:
            if not self._is_recent(self._newest):
                return None
            run = self._create(uid)
        if not self._has_made(run):
            raise RunStrange(
                f"{run.uri} is not the run that this night has begun: another process has put a run into this folder",
                hint="delete that folder, and check who can write to that store; the next night begins another run",
            )
        self._attended = _Attended(run, self._addresses)
        return self._attended

    def _told(self, run: OpenRun | None, last: Tick | None, *, wrote: bool = False) -> Answer:
        answer: Answer = {"run": None if run is None else run.id}
        troubles = [*self._troubles]
        if last is not None:
            answer |= {"state": status_word(last.state), "done": last.done}
            troubles += [each for each in (last.blind or last.remark,) if each]
        if self._record.passed_over:
            named = ", ".join(f"begun/{number:08d}.json" for number in self._record.passed_over[-PASSED_OVER_MAX:])
            troubles.append(f"{named} in {self._record.store.uri} is ignored: no night has written it")
        if wrote:
            answer["wrote"] = True
        if troubles:
            answer["trouble"] = "; ".join(troubles)
        return answer

    def _is_recent(self, numbered: NumberedNight) -> bool:
        return self._clock.now() - numbered.begun.at < CREATED_WITHIN

    @property
    def _alarm(self) -> Alarm:
        if self._own_alarm is None:
            self._own_alarm = nights_of(self._pin.night).alarm(self._name)
        return self._own_alarm


class RunStrange(StoreError):
    """The folder of a night's run contains a run that was created by another process."""


def _last(runs: Iterable[OpenRun]) -> OpenRun | None:
    return max(runs, key=lambda run: run.created.clock_epoch, default=None)


def _goes_on(state: RunState) -> bool:
    return state.terminal is None and not state.stop_requested


def _may_be_billed(state: RunState) -> bool:
    return not all(each.settled for each in state.launches.values())


def _moment(text: object, now: datetime) -> datetime:
    """
    Parse `text`, the time at which an event was due. If the event does not contain it, return `now`.

    Raises:
        SpecInvalid: the text is not a time.
    """
    if text is None:
        return now
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise SpecInvalid(
            f"the time in the scheduler's call is not valid: {text!r}", hint="install the night again"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)


_STARTING_S = since_start_s()
"""Seconds from the start of the process to the end of all imports. They are counted because AWS bills this time too."""
