"""The types for the state of a run. `spotrun.run.fold` computes a `RunState` from a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pyrsistent import PMap, PVector, pmap, pvector

from spotrun.instance import EndedBy, PriceSegment
from spotrun.run import events as ev
from spotrun.run.billing import ZERO, Meter, hourly
from spotrun.run.events import Cause
from spotrun.run.gang import Gang, Meeting, MemberName
from spotrun.run.member import Member
from spotrun.run.versions import Table, position


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """
    The instances that one entry requested, and their records.

    In a run on one instance, each launch has one instance, and the launch's properties describe that instance. If the
    run trains on a gang, a member whose gang has ended can join the next gang, so the members of one launch can train
    in several attempts. `attempt` is the newest of these attempts.
    """

    number: int
    intent: ev.LaunchIntended
    intended_at: datetime
    members: tuple[Member, ...] = (Member(),)
    closed: ev.LaunchClosed | None = None
    closed_at: datetime | None = None
    attempt: int | None = None

    @property
    def recorded(self) -> ev.LaunchRecorded | None:
        """The record of the first instance of the launch that has a record; None if none has one."""
        return next((member.recorded for member in self.members if member.recorded is not None), None)

    @property
    def condemned(self) -> ev.InstanceCondemned | None:
        """The reason why all instances of the launch have to end; None unless all of them are condemned."""
        return self.members[0].condemned if all(member.condemned for member in self.members) else None

    @property
    def gone(self) -> ev.InstanceGone | None:
        """The end of whichever instance ended last; None until all instances of the launch are gone."""
        ends = [member.gone for member in self.members if member.gone is not None]
        return max(ends, key=lambda end: end.ended_at) if len(ends) == len(self.members) else None

    @property
    def names(self) -> tuple[MemberName, ...]:
        return tuple(MemberName(self.number, index) for index in range(len(self.members)))

    @property
    def open(self) -> bool:
        return self.closed is None and self.gone is None

    @property
    def pending(self) -> bool:
        """
        True while the launch may still provide an instance for training. A launch is no longer pending once it is
        closed, once all its instances are gone, or once its instance has started an attempt. If the run trains on a
        gang, the launch is also no longer pending once each of its members is ready, released or gone.
        """
        return self.open and self.attempt is None and any(map(_is_awaited, self.members))

    @property
    def came_up(self) -> bool:
        """True if an instance of the launch has ever been ready to train."""
        return self.attempt is not None or any(member.ready is not None for member in self.members)

    @property
    def may_be_closed(self) -> bool:
        """True if the launch may be closed. Closing a launch gives up all of its instances (protocol 12, 46)."""
        return self.open and not self.came_up

    @property
    def taken_before_it_ran(self) -> bool:
        """
        True if the cloud accepted the launch, but ended its instances before they were billed. The usual reason is that
        the cloud had no capacity for them.
        """
        return self._ended_before_it_ran(EndedBy.CLOUD)

    @property
    def over_quota(self) -> bool:
        """
        True if the account's quota left no room for the launch. Some clouds check the quota when the instance is
        requested, and others only when it starts.
        """
        asked = self.closed is not None and self.closed.cause is Cause.QUOTA
        return asked or self._ended_before_it_ran(EndedBy.QUOTA)

    @property
    def failed_to_start(self) -> bool:
        """True if the cloud accepted the launch, but a fault ended all its instances before they were billed."""
        return self.closed is None and self._ended_before_it_ran(EndedBy.FAULT)

    def _ended_before_it_ran(self, by: EndedBy) -> bool:
        ends = [member.gone for member in self.members]
        return all(gone is not None and gone.ended_by is by and gone.billed_from is None for gone in ends)

    @property
    def settled(self) -> bool:
        """
        True if the launch's bill is final. It is final once all instances of the launch are gone, or if the cloud
        refused the launch and therefore started no instance.
        """
        return self.gone is not None or self._refused

    @property
    def _refused(self) -> bool:
        return self.closed is not None and self.closed.refused and self.recorded is None

    @property
    def billed_from(self) -> datetime | None:
        """
        The time from which any instance of the launch has been billed, according to the newest records; None if none
        was ever billed.
        """
        return min((each.billed_from for each in self.members if each.billed_from is not None), default=None)

    @property
    def prices(self) -> tuple[PriceSegment, ...]:
        """The prices of an instance of the launch, according to the newest record; () if no record has prices."""
        return next((member.prices for member in self.members if member.prices), ())

    @property
    def newest_price_usd_per_hour(self) -> Decimal:
        """
        The newest price per hour. Before the first record, this is the price that the offering had at the request.
        """
        return self.prices[-1].usd_per_hour if self.prices else self.intent.offering.price_usd_per_hour

    def meters(self, rule: ev.BillingRule) -> list[Meter]:
        return [self.meter(rule, index) for index in range(len(self.members))]

    def meter(self, rule: ev.BillingRule, index: int = 0) -> Meter:
        return self.members[index].meter(rule, self.intent.offering)

    def cost_until(self, moment: datetime, rule: ev.BillingRule) -> Decimal:
        return sum((meter.cost_until(moment) for meter in self.meters(rule)), ZERO)

    def with_member(self, index: int, **changes: Any) -> Launch:
        changed = replace(self.members[index], **changes)
        return replace(self, members=(*self.members[:index], changed, *self.members[index + 1 :]))

    def with_end(self, ended_at: datetime, index: int = 0) -> Launch:
        """Return the launch with `ended_at` as the end of one instance, which must be gone."""
        member = self.members[index].with_end(ended_at)
        return self.with_member(index, gone=member.gone, missed_at=member.missed_at)

    @property
    def latest_end(self) -> datetime | None:
        """
        The latest time at which the instance can end: when its time-to-live, counted from the start of billing,
        expires. None if the instance was never billed.
        """
        return self.latest_end_of(0)

    def latest_end_of(self, index: int) -> datetime | None:
        """Return `latest_end` for one instance of the launch."""
        began = self.members[index].billed_from
        return None if began is None else began + timedelta(seconds=self.intent.time_to_live_s)

    def reserved_usd(self, rule: ev.BillingRule) -> Decimal:
        """
        Return the maximum cost of this launch. This is 0 if the cloud refused the launch. Otherwise it is the sum of
        two amounts: the final bills of the instances that are gone, and what the remaining instances would cost if each
        of them lived for its whole time-to-live.
        """
        if self._refused:
            return ZERO
        final = [
            self.meter(rule, index).cost_until(member.gone.ended_at)
            for index, member in enumerate(self.members)
            if member.gone is not None
        ]
        living = len(self.members) - len(final)
        return sum(final, ZERO) + (life_usd(self.intent, rule) * living + self.intent.egress_usd if living else ZERO)


def _is_awaited(member: Member) -> bool:
    return member.gone is None and member.released is None and member.ready is None


class Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """
    One trainer process of an attempt.

    `started_at` is the time at which the trainer's first step was done. A command that reports no steps has its start
    time in `began_at` instead. `in_place` is True if the trainer is a command that continued in the work folder of the
    previous trainer, without restoring any files. `steps_redone` is the number of steps that the previous trainer had
    completed and that this trainer repeats.

    `unprotected` is True if no checkpoint can be made, because the command runs Python and no training in it has
    connected to the agent. `unprotected` becomes False when a training reports its first step.
    """

    incarnation: int
    resumed_at: datetime
    commit: int | None
    step: int
    started_at: datetime | None = None
    began_at: datetime | None = None
    unprotected: bool = False
    in_place: bool = False
    steps_redone: int = 0
    meet: Meeting | None = None
    exited: ev.TrainerExited | None = None
    exited_at: datetime | None = None


WORTH_ANOTHER_TRY = frozenset({Cause.INTERRUPTED, Cause.STOPPED, Cause.REPLACED, Cause.STORE_FULL})
"""
Causes for which the training is not to blame. If an agent ends its attempt for one of these causes, another attempt
follows.
"""


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """
    The end of an attempt. Training stopped at `stopped_at`, and the end was entered in the ledger at `known_at`.
    `gave_up` is True if the agent expects that another attempt would fail too. `missing` are the members of a gang that
    could not be reached.
    """

    cause: Cause
    stopped_at: datetime
    known_at: datetime
    last_step: int | None
    detail: str = ""
    gave_up: bool = False
    missing: tuple[MemberName, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """
    One stretch of training on one instance, or on the instances of a `gang`. For a gang, `launch`, `instance_id` and
    `setup` describe the lead, and `booted_at` is the time at which the last member booted.
    """

    number: int
    launch: int
    instance_id: str
    booted_at: datetime
    started_at: datetime
    setup: ev.SetUp | None = None
    gang: Gang | None = None
    trainers: tuple[Trainer, ...] = ()
    notice: ev.NoticeSeen | None = None
    unseen: ev.NoticesUnseen | None = None
    notice_at: datetime | None = None
    rebalance_at: datetime | None = None
    drain: ev.DrainRequested | None = None
    end: AttemptEnd | None = None
    saves_failed_in_a_row: int = 0
    refused_bytes: int = 0
    """Size, in bytes, of the last snapshot for which the store had no room; 0 if there was no such snapshot."""
    refused_at: datetime | None = None
    """Time since which training waits for room in the store; None if it does not."""

    @property
    def names(self) -> tuple[MemberName, ...]:
        """The members that train in the attempt, in the order of their ranks."""
        return (MemberName(self.launch, 0),) if self.gang is None else self.gang.names

    @property
    def rebalance(self) -> bool:
        """True if the cloud has warned that it might take the instance (a recommendation)."""
        return self.rebalance_at is not None

    @property
    def leaving(self) -> bool:
        """True if the cloud has given notice, or a runner has requested a drain."""
        return self.notice is not None or self.drain is not None

    def lets_go(self, name: MemberName) -> bool:
        """
        Return True if the next attempt is not allowed to train on this member. After a drain request, that applies to
        all members of the gang, unless they regroup. After a notice, it applies only to the member that the cloud is
        taking.
        """
        if self.gang is None or (self.drain is not None and not self.regroups):
            return True
        return self.notice is not None and self.notice.member == name

    @property
    def regroups(self) -> bool:
        """True if the attempt hands over to a larger gang of which its own members are part."""
        return self.drain is not None and bool(self.drain.regroup)


class KnownSetUp(NamedTuple):
    """A report on how the job's `setup` went on an instance, the time of the report, and the launch of the instance."""

    launch: Launch
    at: datetime
    setup: ev.SetUp


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Stored files of the script, as one entry reported them."""

    number: int
    at: datetime
    event: ev.OutputsStored


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """
    An accepted checkpoint.

    `cut_off` is True once the training has resumed from an older commit. The training then repeats the steps of this
    commit, and the commit no longer belongs to the run's history.

    `step_reached` is the largest step of this commit and all earlier ones, except those that were already cut off when
    this commit was made.
    """

    number: int
    at: datetime
    event: ev.CheckpointCommitted
    step_reached: int = 0
    retired_at: datetime | None = None
    cut_off: bool = False

    @property
    def usable(self) -> bool:
        return self.retired_at is None and not self.cut_off and not self.event.suspect

    @property
    def outputs(self) -> Outputs | None:
        """
        The files that the commit contains, in the same form as files that the agent stored without a checkpoint; None
        if the commit has no files.
        """
        files, event = self.event.files, self.event
        if files is None:
            return None
        stored = ev.OutputsStored(
            attempt=event.attempt,
            key=files.key,
            blake3=files.blake3,
            commit=self.number,
            step=event.step,
            looked_at=event.taken_at,
            files=files.files,
            size_bytes=files.size_bytes,
            objects=files.objects,
            sent_bytes=files.sent_bytes,
            stored_bytes=files.stored_bytes,
            left_out=files.left_out,
        )
        return Outputs(number=self.number, at=self.at, event=stored)


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """
    A completed epoch. The epoch is dropped if the training resumes from a checkpoint that was made before the epoch's
    end. `step_reached` is the largest step of this epoch and all epochs before it.
    """

    number: int
    at: datetime
    event: ev.EpochCompleted
    step_reached: int = 0


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: `completed`, `stopped` or `failed`."""

    outcome: str
    number: int
    at: datetime
    cause: Cause
    detail: str = ""
    final_commit: int | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """
    The time between a run's end and the request that reopened the run. Neither the run's time nor its cost includes it.
    """

    since: datetime
    until: datetime


class Prune(msgspec.Struct, frozen=True, kw_only=True):
    """A request to keep at most `keep` of the commits before entry `number`."""

    number: int
    keep: int


class NotCarried(msgspec.Struct, frozen=True):
    """
    A part of the training's state that no checkpoint contains, although the training has changed it. Entry `number`
    reports that it had changed by `step`.
    """

    number: int
    place: str
    what: str
    step: int


class Void(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    kind: str
    reason: str


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of a run, folded from its entries. `next_number` is the number of the next entry.

    `opened_at` is the time at which the run was created or last resumed. `pending` is the launch whose instance has not
    begun an attempt yet. `last_end` is the entry that ended the newest attempt. `unsettled` lists the launches whose
    bill can still grow, and `settled_usd` is the total cost of all other launches.

    `borrowers` maps the prefix of a commit to the numbers of the later commits that borrow its objects and so still
    need them. When the commit with the last number in a list is retired, the number is removed, so the last number
    always belongs to a commit that is not retired.

    `packs_before_training` are the stored set-ups that instances reported before the first attempt had started.
    """

    next_number: int = 1
    created: ev.RunCreated
    created_at: datetime
    opened_at: datetime
    launches: Table[Launch] = Table()
    attempts: Table[Attempt] = Table()
    commits: PVector[Commit] = pvector()
    outputs: PVector[Outputs] = pvector()
    epochs: PVector[Epoch] = pvector()
    pending: int | None = None
    unsettled: tuple[int, ...] = ()
    settled_usd: Decimal = ZERO
    borrowers: PMap[str, PVector[int]] = pmap()
    packs_before_training: tuple[ev.PackDigest, ...] = ()
    current_attempt: int | None = None
    last_end: int | None = None
    stop_requested_at: datetime | None = None
    restarts_used: int = 0
    deadline_lost: ev.DeadlineOutOfReach | None = None
    budget_warning: ev.BudgetNearlySpent | None = None
    terminal: Terminal | None = None
    prune: Prune | None = None
    pauses: PVector[Pause] = pvector()
    not_carried: tuple[NotCarried, ...] = ()
    restores: PVector[tuple[datetime, int]] = pvector()
    entry_times: PVector[datetime] = pvector()
    voids: PVector[Void] = pvector()

    @property
    def stop_requested(self) -> bool:
        return self.stop_requested_at is not None

    @property
    def current(self) -> Attempt | None:
        """The newest accepted attempt that has not ended."""
        return None if self.current_attempt is None else self.attempts[self.current_attempt]

    def may_commit(self, attempt: int) -> bool:
        """
        Return True if a commit of that attempt counts.

        In a run on one instance, only the current attempt is allowed to commit. If the run trains on a gang, the newest
        attempt is also allowed to commit between its end and the start of another attempt, because its lead may still
        be running, and have a snapshot with steps that would otherwise be lost (protocol 43).
        """
        if self.terminal is not None:
            return False
        if not self.of_gangs or self.current_attempt is not None:
            return attempt == self.current_attempt
        return bool(self.attempts) and attempt == self.attempts.values()[-1].number

    @property
    def pending_launch(self) -> Launch | None:
        return None if self.pending is None else self.launches[self.pending]

    def ordinals(self) -> dict[int, int]:
        """
        Return the numbers that users see for the attempts: 1, 2, 3 and so on, in the order in which the attempts
        started. Each key of the result is the number of the entry that started the attempt.
        """
        return {number: ordinal for ordinal, number in enumerate(self.attempts, 1)}

    def launch_of(self, attempt: Attempt) -> Launch:
        return self.launches[attempt.launch]

    def asked_last(self, attempt: Attempt) -> Launch:
        """Return the newest of the launches to which the members of this attempt belong."""
        return self.launches[max(name.launch for name in attempt.names)]

    @property
    def of_gangs(self) -> bool:
        """True if several instances can train together in this run."""
        return self.created.ledger_version in (ev.GANG_LEDGER_VERSION, ev.ELASTIC_LEDGER_VERSION)

    @property
    def is_elastic(self) -> bool:
        """True if a gang of this run may have fewer members than the job requests."""
        return self.created.ledger_version == ev.ELASTIC_LEDGER_VERSION

    def members(self) -> Iterator[Member]:
        """Yield each instance that was ever requested."""
        return (member for launch in self.launches.values() for member in launch.members)

    def has_asked_for(self, name: MemberName) -> bool:
        launch = self.launches.get(name.launch)
        return launch is not None and name.member < len(launch.members)

    def is_wanted(self, name: MemberName) -> bool:
        """
        Return True if the instance is still allowed to train: its launch is not closed, and the instance is not
        condemned, released or gone.
        """
        return self.launches[name.launch].closed is None and self.member(name).wanted

    def can_train(self, name: MemberName) -> bool:
        """Return True if the next attempt is allowed to train on this member, once it is ready."""
        return self.is_wanted(name) and not self.has_to_leave(name)

    def member(self, name: MemberName) -> Member:
        return self.launches[name.launch].members[name.member]

    def names(self) -> Iterator[MemberName]:
        """Yield the names of all instances that were ever requested, earliest first."""
        return (name for launch in self.launches.values() for name in launch.names)

    def told(self, name: MemberName) -> int | UnsetType:
        """
        Return the value for the field `member` of an event about this instance. In a gang, this is the instance's index
        in its launch. In a run on one instance, events lack the field, so the value is UNSET.
        """
        return name.member if self.of_gangs else UNSET

    def attempt_of(self, name: MemberName) -> Attempt | None:
        """Return the newest attempt that names this member; None if there is none."""
        launch = self.launches[name.launch]
        if launch.attempt is None:
            return None
        newest_first = reversed(self.attempts.values())
        named = (attempt for attempt in newest_first if name in attempt.names)
        return next(named, None) if self.of_gangs else self.attempts[launch.attempt]

    def booted_at(self, name: MemberName) -> datetime | None:
        """Return the time at which the member began to run spotrun's code, as its agent reports it; None if unknown."""
        ready = self.member(name).ready
        if ready is not None or self.of_gangs:
            return None if ready is None else ready.booted_at
        attempt = self.attempt_of(name)
        return None if attempt is None else attempt.booted_at

    def shown(self, name: MemberName) -> ev.LaunchRecorded | None:
        """
        Return the member's record or, if no list has shown its instance so far, what the report of its agent proves:
        the instance exists, and was billed from its boot on at the latest. Return None if there is neither.
        """
        member, booted_at = self.member(name), self.booted_at(name)
        if member.recorded is not None or booted_at is None:
            return member.recorded
        launch, attempt = self.launches[name.launch], self.attempt_of(name)
        billed_from = max(launch.intended_at, booted_at)
        asked_at = PriceSegment(since=billed_from, usd_per_hour=launch.intent.offering.price_usd_per_hour)
        reported = member.ready or attempt
        assert reported is not None
        return ev.LaunchRecorded(
            launch=name.launch,
            member=self.told(name),
            instance_id=reported.instance_id,
            billed_from=billed_from,
            prices=(asked_at,),
        )

    def has_to_leave(self, name: MemberName) -> bool:
        """
        Return True if the next attempt is not allowed to train on this member.

        The member's newest attempt must have ended, or have a notice or a drain request; and `Attempt.lets_go` must
        return True for the member.
        """
        attempt = self.attempt_of(name)
        return attempt is not None and attempt.lets_go(name) and (attempt.end is not None or attempt.leaving)

    def members_of(self, attempt: Attempt) -> list[Member]:
        """Return the members of an attempt, in the order of their ranks."""
        return [self.member(name) for name in attempt.names]

    def still_from(self, attempt: Attempt) -> datetime | None:
        """
        Return the earliest time at which a machine of the attempt stopped running; None if all its machines still run.
        """
        ends = (member.still_from for member in self.members_of(attempt))
        return min((end for end in ends if end is not None), default=None)

    def ended_by_hand(self, event: ev.InstanceGone) -> bool:
        """
        Return True if a person, or a program other than spotrun, ended this instance in the cloud. `self` is the state
        just before `event` takes effect.

        The cloud's own answer is not enough. A cloud says that the user ended an instance even if spotrun ended it, or
        if the guard ended it after its time-to-live. So this method makes two further checks: spotrun had no reason to
        end the instance, and the instance's time-to-live had not expired.
        """
        launch, name = self.launches[event.launch], ev.name_of(event)
        asked = launch.closed is not None or not self.member(name).wanted or self.stop_requested
        latest_end = launch.latest_end_of(name.member)
        in_time = latest_end is None or event.ended_at < latest_end
        return event.ended_by is EndedBy.USER and in_time and not asked and self.terminal is None

    @property
    def unguarded(self) -> list[ev.LaunchRecorded]:
        """The instances for which the cloud has no guard that would end them if their timers failed (protocol 11)."""
        found = [member.recorded for member in self.members() if member.gone is None]
        return [recorded for recorded in found if recorded is not None and recorded.unguarded]

    def setups(self) -> list[KnownSetUp]:
        """
        Return the reports on how the job's `setup` went, one for each instance that reported it, earliest first. In a
        gang, each member reports this in `MemberReady`. In a run on one instance, the report is part of
        `AttemptStarted`.
        """
        if self.of_gangs:
            return sorted(self._setups_of_members(), key=lambda one: one.at)
        attempts = self.attempts.values()
        return [KnownSetUp(self.launch_of(one), one.started_at, one.setup) for one in attempts if one.setup is not None]

    def _setups_of_members(self) -> Iterator[KnownSetUp]:
        for launch in self.launches.values():
            for member in launch.members:
                if member.setup is not None and member.set_up_at is not None:
                    yield KnownSetUp(launch, member.set_up_at, member.setup)

    @property
    def packed(self) -> list[KnownSetUp]:
        """
        The set-ups whose files later instances can unpack. Each belongs to an instance that ran the job's `setup` and
        stored the files that it made. For each kind of accelerator, only the first such instance counts.
        """
        first: dict[str, KnownSetUp] = {}
        for one in self.setups():
            if one.setup.how == "run" and one.setup.packed_bytes:
                first.setdefault(one.launch.intent.offering.accelerators, one)
        return list(first.values())

    @property
    def vouched_packs(self) -> tuple[ev.PackDigest, ...]:
        """
        The stored set-ups that no training can have made or changed, because the ledger had their digests before any
        training began (protocol 31).
        """
        return (*self.created.copied_packs, *self.packs_before_training)

    def restore_candidates(self) -> list[Commit]:
        """Return the commits from which a trainer is allowed to resume, newest first (protocol 22)."""
        return list(self.usable_commits())

    def usable_commits(self) -> Iterator[Commit]:
        """
        Yield the commits from which a trainer is allowed to resume, newest first. This is a generator, because some
        callers need only the newest.
        """
        return (commit for commit in reversed(self.commits) if commit.usable)

    def latest_commit(self) -> Commit | None:
        return next(self.usable_commits(), None)

    @property
    def has_trained(self) -> bool:
        """True if any checkpoint has weights. The checkpoint of a command has only files."""
        return any(commit.event.has_image for commit in self.commits)

    @property
    def has_weights(self) -> bool:
        """True if the newest checkpoint has weights. The checkpoint of a command has only files."""
        newest = self.latest_commit()
        return newest is not None and newest.event.has_image

    def ends_before(self, commit: Commit) -> list[Commit]:
        """
        Return the last checkpoint of each fit() call before the one in which `commit` was made, the earliest call
        first. Checkpoints that are cut off or retired do not count.
        """
        before = (each for each in self.commits if each.event.fit < commit.event.fit)
        last = {each.event.fit: each for each in before if not each.cut_off and each.retired_at is None}
        return [last[fit] for fit in sorted(last)]

    def commit(self, number: int) -> Commit | None:
        at = position(self.commits, number)
        return None if at is None else self.commits[at]

    def commit_at(self, prefix: str) -> Commit | None:
        """Return the newest commit with this prefix, or None."""
        return next((commit for commit in reversed(self.commits) if commit.event.prefix == prefix), None)

    def is_retired(self, number: int) -> bool:
        commit = self.commit(number)
        return commit is not None and commit.retired_at is not None

    def outputs_of(self, number: int) -> Outputs | None:
        """
        Return the files that belong to checkpoint `number`. If the checkpoint itself contains files, return these.
        Otherwise return the last files that the agent stored before the next checkpoint; they may even be older than
        checkpoint `number`. Return None if the agent had stored no files by then.
        """
        commit = self.commit(number)
        if commit is not None and commit.outputs is not None:
            return commit.outputs
        before = (found for found in reversed(self.outputs) if found.event.commit is not None)
        return next((found for found in before if (found.event.commit or 0) <= number), None)

    def newest_outputs(self) -> Outputs | None:
        """
        Return the newest stored files; None if there are none.

        The agent stores files with each checkpoint of a training, and after scans of the work folder. Once a checkpoint
        with files exists, the files of earlier scans may be deleted from the store. So they no longer count, even if
        the checkpoint is later cut off or retired.

        A command's checkpoint contains only the command's state, which every scan includes too. So such a checkpoint
        counts only if there was no scan.
        """
        looked = self.outputs[-1] if self.outputs else None
        for commit in reversed(self.commits):
            if looked is not None and commit.number < looked.number:
                break
            if commit.event.files is not None and commit.event.has_image:
                return next((each.outputs for each in self.usable_commits() if each.outputs is not None), None)
        return looked or self._newest_state()

    def _newest_state(self) -> Outputs | None:
        """
        Return the files of the newest checkpoint of a command, for a run in which the agent has stored no files after a
        scan.
        """
        return next((each.outputs for each in self.usable_commits() if not each.event.has_image), None)

    @property
    def stored_files(self) -> int:
        """The number of files that the user can fetch."""
        newest = self.newest_outputs()
        return 0 if newest is None else newest.event.files

    def all_outputs(self) -> list[Outputs]:
        """Return all files that were ever stored, in the order of their entries."""
        found = [*self.outputs, *(commit.outputs for commit in self.commits if commit.event.files is not None)]
        return sorted((each for each in found if each is not None), key=lambda each: each.number)

    @property
    def is_unprotected(self) -> bool:
        """
        True if the run has not ended and makes no checkpoints, because its newest trainer is a Python command in which
        no training has connected to the agent.
        """
        trainers = next(reversed(self.attempts.values())).trainers if self.attempts else ()
        return bool(trainers) and trainers[-1].unprotected and self.terminal is None

    def resumes_without(self, one: NotCarried) -> int:
        """
        Return the number of trainers that have resumed from a checkpoint made after the change `one`, which no
        checkpoint contains.
        """
        begun = (trainer.commit for attempt in self.attempts.values() for trainer in attempt.trainers)
        return sum(commit is not None and commit > one.number for commit in begun)

    def reserved_usd(self) -> Decimal:
        """
        Return the maximum cost of the run's launches so far (protocol 11): the final bills of the launches whose
        instances have ended, and the reservations of all others.
        """
        rule = self.created.billing
        return sum((self.launches[number].reserved_usd(rule) for number in self.unsettled), self.settled_usd)


def reservation_usd(intent: ev.LaunchIntended, rule: ev.BillingRule) -> Decimal:
    """
    Return the maximum cost of this launch: that of its instances for their whole time-to-live, plus that of the traffic
    between regions.
    """
    return life_usd(intent, rule) * intent.instances + intent.egress_usd


def life_usd(intent: ev.LaunchIntended, rule: ev.BillingRule) -> Decimal:
    """
    Return the maximum cost of one instance with its disk and address: its whole time-to-live at the highest price that
    the launch accepts.
    """
    attached = rule.attached_to(intent.offering).attached_usd_per_hour
    return hourly(intent.price_ceiling_usd_per_hour + attached, timedelta(seconds=intent.time_to_live_s))
