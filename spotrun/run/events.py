"""
The events of a run: named in the past tense, immutable, and never rewritten. Everything else about a run is computed
from its events.

An *entry* is one event under its number, with its writer and its time. A *launch* is named by the number of its
`LaunchIntended`, an *attempt* by the number of its `AttemptStarted`, a commit by the number of its
`CheckpointCommitted`. Epochs count from 0 in events, and from 1 in texts for people. All times and durations are run
time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from typing import Any, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from spotrun.errors import LedgerDamaged
from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType, Offering, require_amount
from spotrun.run.bounds import SMALL_BYTES, Count, ExitCode, Moment, OutOfBounds, Scale, Seconds, decode, prepare
from spotrun.run.gang import Gang, Layout, Meeting, MemberName, Port, Shard

LEDGER_VERSION = 3
"""The ledger version of runs on one instance. Their entries have no fields for gangs."""
GANG_LEDGER_VERSION = 4
OLD_LEDGER_VERSION = 2
"""
The ledger version of runs without a key. In such a run, anyone who can write to the folder can pose as the runner
(protocol 31).
"""
READABLE_VERSIONS = (OLD_LEDGER_VERSION, LEDGER_VERSION, GANG_LEDGER_VERSION)


def version_for(instances: int) -> int:
    """Return the ledger version for a new run on this many instances: the lowest version that can describe the run."""
    return LEDGER_VERSION if instances == 1 else GANG_LEDGER_VERSION


ENTRY_SIZE_MAX = SMALL_BYTES
"""Maximum bytes of an entry. Larger content is stored as a separate object."""
HOURS_PER_VOLUME_MONTH = 30 * 24
"""
Hours of a month when the monthly price of a volume is converted, as in the examples of
https://aws.amazon.com/ebs/pricing/.
"""


class Cause(StrEnum):
    """The reason why an attempt ended (promise I7)."""

    INTERRUPTED = "interrupted"
    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    CAPACITY = "capacity"
    QUOTA = "quota"
    ACCESS = "access"
    EXTERNAL = "external"
    STOPPED = "stopped"
    REPLACED = "replaced"
    SAVES_FAILED = "saves_failed"
    STORE_FULL = "store_full"
    DONE = "done"


class EpochsEnd(StrEnum):
    """
    The time at which the account of an epoch ends (protocol 26). The default is the rule of earlier versions, so the
    figures of runs that those versions created stay the same.
    """

    FINISHED = "finished"
    DURABLE = "durable"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", forbid_unknown_fields=True):
    """
    The base of all events. The JSON field `type` contains the class name.

    A field with the value `UNSET` is not written. In a run on one instance, each field for gangs is `UNSET`, so a
    spotrun that does not support gangs can read the run's entries.
    """


# -- written by the command line -------------------------------------------------------------------------------------


BENCH = "bench"
SWEEP = "sweep "
"""Values of `RunCreated.part_of`: `BENCH`, or the prefix `SWEEP` followed by the name of a sweep."""


class RunCreated(Event, frozen=True, kw_only=True):
    """
    Entry 0: the job, and the limit on its cost. No later entry raises the limit.

    `clock_epoch` and `time_scale` define run time for every process of the run. `workdir_sha256` names the uploaded
    work folder. `start_sha256` names the uploaded Lightning checkpoint from which training begins; if it is None,
    training begins from scratch. `script_sha256` is the digest of the script alone. Bills with the same digest are for
    the same work. It is "" for a command, and in a run that an earlier version created. `revision` is the git commit of
    the work folder; None outside of git. `spotrun` is the version that created the run; "" before this field existed.

    `storage` are the prices of the object store. `deadline_at` is the run time by which the run must be completed; None
    without a deadline. `interruption_bands` are the cloud's published figures. Each gives the share of a type's spot
    instances that the cloud interrupts in a month, such as "5-10%"; the key is a region and a type
    (`us-east-1/g5.xlarge`). `epochs_end` is the time at which the account of an epoch ends. `benched` has the seconds
    per step for each kind of instance, if `spotrun bench` has measured this job.

    `public_key` is the Ed25519 key, in hex, that checks the signatures of the run's owner (protocol 31); "" in a run
    that an earlier version created. `part_of` names the command that created the run as a part of its work (`BENCH`, or
    `SWEEP` and a name). Only that command can continue the run.
    """

    uid: str
    name: str
    ledger_version: Count
    spec: dict[str, Any]
    spec_sha256: str
    workdir_sha256: str
    start_sha256: str | None = None
    clock_epoch: Moment
    time_scale: Scale
    price_cap_usd_per_hour: Decimal | None
    budget_usd: Decimal | None
    storage: StoragePrices
    billing: BillingRule
    simulated: bool
    deadline_at: Moment | None = None
    interruption_bands: dict[str, str] = {}
    epochs_end: EpochsEnd = EpochsEnd.DURABLE
    script_sha256: str = ""
    spotrun: str = ""
    revision: Revision | None = None
    public_key: str = ""
    benched: dict[str, Seconds] | UnsetType = UNSET
    part_of: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_amount(self.price_cap_usd_per_hour)
        require_amount(self.budget_usd)

    def job(self, section: str) -> dict[str, Any]:
        """
        Return a section of the job. Return {} if the section is not a mapping: the fold does not validate the job.
        """
        found = self.spec.get(section)
        return found if isinstance(found, dict) else {}

    @property
    def is_bench(self) -> bool:
        """True if the run only measures the job. Its results are not kept, and it is never continued."""
        return self.part_of == BENCH

    @property
    def sweep(self) -> str:
        """The name of the sweep to which this run belongs as a trial; "" if it belongs to no sweep."""
        return self.part_of.removeprefix(SWEEP) if self.part_of and self.part_of.startswith(SWEEP) else ""

    @property
    def size(self) -> int:
        """The number of instances that the job requests; 1 if the job's `num_nodes` is not a whole number."""
        found = self.spec.get("num_nodes")
        return found if isinstance(found, int) else 1


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """
    The git commit that a folder has checked out. `changed`: some files in the folder differ from the commit, or are not
    part of it; None if that is unknown.
    """

    commit: str
    changed: bool | None = None


class Passage(msgspec.Struct, frozen=True):
    """
    The price of traffic between a bucket and an instance. `is_home`: the instance is in the bucket's region, or in one
    of its regions.
    """

    read_usd_per_gb: Decimal
    write_usd_per_gb: Decimal
    is_home: bool = False

    def __post_init__(self) -> None:
        require_amount(self.read_usd_per_gb)
        require_amount(self.write_usd_per_gb)


class StoragePrices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The prices of an object store. `source` says where the prices were published, and on which day they were read.

    `region` is the bucket's region. It is "" for a folder, or if the region is unknown; in either case, no traffic
    counts as cross-region. The price per GB to another region depends on the sending region: it is in
    `egress_elsewhere`, and defaults to `egress_usd_per_gb`. If the price depends on both regions, it is in `between`,
    whose keys are the instances' regions, or the first word of a region's name, such as `europe`.
    """

    usd_per_gb_month: Decimal
    usd_per_1000_puts: Decimal
    usd_per_1000_gets: Decimal
    egress_usd_per_gb: Decimal
    source: str
    region: str = ""
    egress_elsewhere: dict[str, Decimal] = {}
    between: dict[str, Passage] = {}

    def __post_init__(self) -> None:
        for amount in (self.usd_per_gb_month, self.usd_per_1000_puts, self.usd_per_1000_gets, self.egress_usd_per_gb):
            require_amount(amount)
        for amount in self.egress_elsewhere.values():
            require_amount(amount)

    def crosses(self, region: str) -> bool:
        """Return True if the traffic of an instance in `region` crosses regions."""
        passage = self._passage(region)
        return self.region not in ("", region) if passage is None else not passage.is_home

    def charges(self, region: str) -> bool:
        """
        Return True if traffic with an instance in `region` is billed. A bucket with several regions copies written data
        between its regions, and that traffic is billed.
        """
        return bool(self.read_usd_per_gb(region) or self.write_usd_per_gb(region))

    def read_usd_per_gb(self, region: str) -> Decimal:
        if (passage := self._passage(region)) is not None:
            return passage.read_usd_per_gb
        return self._leaving(self.region) if self.crosses(region) else Decimal(0)

    def write_usd_per_gb(self, region: str) -> Decimal:
        if (passage := self._passage(region)) is not None:
            return passage.write_usd_per_gb
        return self._leaving(region) if self.crosses(region) else Decimal(0)

    def _passage(self, region: str) -> Passage | None:
        return self.between.get(region) or self.between.get(region.partition("-")[0])

    def _leaving(self, region: str) -> Decimal:
        return self.egress_elsewhere.get(region, self.egress_usd_per_gb)


class BillingRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rule that converts instance seconds to dollars. `source` says where the rule was published, and on which day it
    was read.

    Instances are billed per second, for at least `minimum_s`. A spot instance that the cloud takes back within
    `free_if_interrupted_within_s` of its start costs nothing; but its disk of `volume_gib` and its public address are
    billed.

    On some clouds, the disk remains after a machine has shut down. The last price of such an instance is 0, and its
    disk is billed until the disk is deleted.
    """

    minimum_s: Seconds
    free_if_interrupted_within_s: Seconds
    source: str
    volume_gib: Count = 0
    volume_usd_per_gib_month: Decimal = Decimal(0)
    address_usd_per_hour: Decimal = Decimal(0)
    spot_address_usd_per_hour: Decimal | None = None
    """If it is None, `address_usd_per_hour` applies to spot instances too."""

    def __post_init__(self) -> None:
        require_amount(self.volume_usd_per_gib_month)
        require_amount(self.address_usd_per_hour)
        require_amount(self.spot_address_usd_per_hour)

    @property
    def volume_usd_per_hour(self) -> Decimal:
        return self.volume_usd_per_gib_month * self.volume_gib / HOURS_PER_VOLUME_MONTH

    @property
    def attached_usd_per_hour(self) -> Decimal:
        """
        The hourly cost of an instance's disk and address, which is added to the instance's price. On spot this cost may
        be lower.
        """
        return self.volume_usd_per_hour + self.address_usd_per_hour

    def attached_to(self, capacity_type: CapacityType) -> BillingRule:
        """
        Return the rule with the address price for a capacity type. If the capacity is the user's own machine, seconds
        are charged without a minimum, a disk or an address.
        """
        if capacity_type is CapacityType.OWN:
            alone = replace(self, minimum_s=0, volume_gib=0, address_usd_per_hour=Decimal(0))
            return replace(alone, spot_address_usd_per_hour=None)
        if capacity_type is not CapacityType.SPOT or self.spot_address_usd_per_hour is None:
            return self
        return replace(self, address_usd_per_hour=self.spot_address_usd_per_hour, spot_address_usd_per_hour=None)


class StopRequested(Event, frozen=True, kw_only=True):
    by: str


class ResumeRequested(Event, frozen=True, kw_only=True):
    by: str


class PruneRequested(Event, frozen=True, kw_only=True):
    """A request to the current attempt: of the checkpoints before this entry, keep only the newest `keep`."""

    by: str
    keep: Count


class EndCorrected(Event, frozen=True, kw_only=True):
    """
    The cloud's bill, which `evidence` names, shows when an instance ended whose end no runner observed. This time
    replaces the bound in `InstanceGone`. `member` is as in `LaunchRecorded`.
    """

    launch: Count
    ended_at: Moment
    by: str
    evidence: str
    member: Count | UnsetType = UNSET


# -- written by any runner -------------------------------------------------------------------------------------------


class LaunchIntended(Event, frozen=True, kw_only=True):
    """
    The runner will request one instance, exactly as this event describes it. After `not_after`, the runner may only
    look the instance up. In the run of a gang, the runner requests `count` instances, and the cloud starts all or none
    of them.

    Each instance reserves `time_to_live_s` at `price_ceiling_usd_per_hour`. For traffic between regions, all instances
    together reserve `egress_usd`. `standby_for` is the attempt whose instance this instance will replace.
    `on_demand_usd_per_hour` is the on-demand price of the same type in the same place; the spot bill is compared with
    it. `for_gang` is the attempt whose missing members these instances replace; if it is None, the instances form a new
    gang.
    """

    offering: Offering
    time_to_live_s: Seconds
    price_ceiling_usd_per_hour: Decimal
    on_demand_usd_per_hour: Decimal
    not_after: Moment
    reason: str
    standby_for: Count | None = None
    egress_usd: Decimal = Decimal(0)
    count: Count | UnsetType = UNSET
    for_gang: Count | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        require_amount(self.egress_usd)
        require_amount(self.price_ceiling_usd_per_hour)
        require_amount(self.on_demand_usd_per_hour)

    @property
    def instances(self) -> int:
        return 1 if self.count is UNSET else self.count

    @property
    def beside(self) -> int | None:
        """
        The attempt whose instance, or whose missing members, this launch replaces; None if the launch replaces none.
        """
        return self.standby_for if self.for_gang is UNSET else self.for_gang


class LaunchRecorded(Event, frozen=True, kw_only=True):
    """
    The instance of a launch exists, and has been billed since `billed_from`.

    If the instance's timer fails, a guard in the cloud ends the instance (protocol 11). `unguarded` is the reason why
    there is no guard; None if there is one. `member` is the index of the instance in its launch, from 0. If an event
    has no `member`, it concerns the launch's only instance.
    """

    launch: Count
    instance_id: str
    billed_from: Moment
    prices: tuple[PriceSegment, ...]
    unguarded: str | None = None
    member: Count | UnsetType = UNSET


class GuardArmed(Event, frozen=True, kw_only=True):
    """A guard that was missing after the launch exists now: the cloud will end the instance even if no runner does."""

    launch: Count
    member: Count | UnsetType = UNSET


class LaunchClosed(Event, frozen=True, kw_only=True):
    """
    No attempt will start from this launch, and every runner terminates its instance. Irrevocable.

    `refused`: the cloud refused the request, so no instance exists. If `refused` is False, the cloud may never have
    answered, and an instance that no runner has observed may exist.
    """

    launch: Count
    cause: Cause
    detail: str = ""
    refused: bool = False


class DrainRequested(Event, frozen=True, kw_only=True):
    """The attempt has to commit once more, and then hand over."""

    attempt: Count
    reason: str


class InstanceCondemned(Event, frozen=True, kw_only=True):
    """Any runner that observes the instance of this launch has to terminate the instance. Irrevocable."""

    launch: Count
    cause: Cause
    detail: str = ""
    member: Count | UnsetType = UNSET


class MemberReleased(Event, frozen=True, kw_only=True):
    """
    The run does not need this member, and any runner has to terminate its instance. Irrevocable. The member is not at
    fault.
    """

    launch: Count
    member: Count
    reason: str


class InstanceGone(Event, frozen=True, kw_only=True):
    """
    The instance of a launch has ended, and `evidence` shows it. The event contains everything that is needed to compute
    the bill.

    `ended_at` is the time that the cloud reports; `bounded_by` is then "". If the cloud reports no time and no runner
    observed the end, `ended_at` is the earliest time by which the instance may have ended, and `bounded_by` names the
    source of this time. `last_step_seen` is the newest step in the agent's heartbeat, from which the lost steps are
    computed; None if no heartbeat was readable. `stopped_at` is the time of the agent's last heartbeat, if that is
    before the assumed end: between the two times, nothing trained.
    """

    launch: Count
    instance_id: str
    billed_from: Moment | None
    ended_at: Moment
    ended_by: EndedBy
    prices: tuple[PriceSegment, ...]
    evidence: str
    last_step_seen: Count | None = None
    bounded_by: str = ""
    stopped_at: Moment | None = None
    member: Count | UnsetType = UNSET


class DeadlineOutOfReach(Event, frozen=True, kw_only=True):
    """
    At the measured speed, the run will complete only at `expected_at`, even if it continues on demand. Written once.
    """

    deadline_at: Moment
    expected_at: Moment
    work_left_s: Seconds


class BudgetNearlySpent(Event, frozen=True, kw_only=True):
    """
    The run has spent the share of its budget at which the user wants a warning. If it continues to spend as it has so
    far, the rest of the budget will be spent at `passes_at`, in `epoch`. Both are None if that cannot be predicted.
    Written once.
    """

    spent_usd: Decimal
    passes_at: Moment | None = None
    epoch: Count | None = None

    def __post_init__(self) -> None:
        require_amount(self.spent_usd)


class RunStopped(Event, frozen=True, kw_only=True):
    reason: str


class RunFailed(Event, frozen=True, kw_only=True):
    cause: Cause
    detail: str


# -- written by an opened launch, then by the current attempt --------------------------------------------------------


class AttemptStarted(Event, frozen=True, kw_only=True):
    """
    The agent on a launch's instance takes over the run. `booted_at` is when the instance began to run spotrun's code.
    `setup` is None if the set-up failed.

    If the run has several instances, `gang` are the members that train, and the other fields describe the gang's lead.
    """

    launch: Count
    instance_id: str
    booted_at: Moment
    setup: SetUp | None = None
    gang: Gang | UnsetType = UNSET


PACK_PART_BYTES = 32 << 20
"""Bytes of each object of a stored set-up. The last object may be smaller."""


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """
    The set-up of an instance. It took `seconds`, including the time to fetch the work folder.

    `how` is "run" if the job's set-up command ran, "unpacked" if the command's result on an earlier instance was
    unpacked, or "none" if the job has no such command. `packed_bytes` is the size of the archive that was unpacked, or
    that was packed for the next instance.
    """

    seconds: Seconds
    how: str
    packed_bytes: Count = 0

    @property
    def objects(self) -> int:
        """The number of objects of a stored set-up, including the list of its parts; 0 if the set-up was not stored."""
        return -(-self.packed_bytes // PACK_PART_BYTES) + 1 if self.packed_bytes else 0


class MemberReady(Event, frozen=True, kw_only=True):
    """
    Nothing of an earlier attempt remains on this member of a launch, so the member may join the next attempt.

    The other members reach this member at `address`. They test the connection at its port `door`; None if it opens no
    such port. `accelerators` is the number of its accelerators. `after` is the entry that ended the newest attempt;
    None if no attempt has ended. When a later attempt ends, this event no longer counts. `holds` is the newest commit
    whose image the member still has in memory. `setup` is None if the set-up failed, or if an earlier event contains
    it.
    """

    launch: Count
    member: Count
    instance_id: str
    address: str
    accelerators: Count
    booted_at: Moment
    after: Count | None
    setup: SetUp | None = None
    holds: Count | None = None
    door: Port | None = None


class ResumedFrom(Event, frozen=True, kw_only=True):
    """
    A trainer of this attempt begins from `commit`, or from scratch if `commit` is None. All later commits are cut off.

    `incarnation` counts the trainers of the attempt from 0. `skipped` are newer commits that could not be read back, or
    with which a command failed repeatedly. `in_place`: a command continues with the files that the previous trainer
    left on this instance, which are newer than `commit`. `meet` is the address and port where the trainers of a gang
    find each other.
    """

    attempt: Count
    incarnation: Count
    commit: Count | None
    epoch: Count
    step: Count
    skipped: tuple[Count, ...] = ()
    in_place: bool = False
    meet: Meeting | UnsetType = UNSET


class TrainingStarted(Event, frozen=True, kw_only=True):
    """
    A trainer has completed its first new step: the time before is restore, the time after is training.

    For a command that reports no steps, `began_at` is when the command started; for a training whose first step is
    done, it is None. `unprotected`: the command runs Python and keeps no state, and for a minute or more, no training
    in it has found the agent.
    """

    attempt: Count
    incarnation: Count
    step: Count
    began_at: Moment | None = None
    unprotected: bool = False


class NoticeSeen(Event, frozen=True, kw_only=True):
    """
    The cloud announced that it will take the instance (`termination`), or that it might take the instance
    (`rebalance`). In a gang, `member` names the instance, and any member of the attempt may write this event.
    """

    attempt: Count
    kind: str
    deadline_at: Moment | None
    member: MemberName | UnsetType = UNSET


class NoticesUnseen(Event, frozen=True, kw_only=True):
    """
    The instance of this attempt cannot receive the cloud's notices, so it may be lost without notice. Written once.
    """

    attempt: Count
    detail: str
    member: MemberName | UnsetType = UNSET


class CommittedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """
    The files of the work folder at a checkpoint, between two steps. The list at `key` names each file by its content.

    The list has `files` files of `size_bytes` in total; `left_out` other files are not in it. `sent_bytes` in `objects`
    objects were new; both numbers include the list. All stored files of the run together now have `stored_bytes`.
    """

    key: str
    blake3: str
    files: Count
    size_bytes: Count
    objects: Count
    sent_bytes: Count
    stored_bytes: Count
    left_out: Count = 0


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """
    A checkpoint exists. Its bytes were read back and compared before this event was written.

    `taken_at` is when training paused for the snapshot. `stall_s` is the total time of such pauses since the previous
    commit. `durable_s` is the time from the snapshot to this entry. A `suspect` checkpoint has NaN or Inf, and no
    training resumes from it. `final`: no step follows the checkpoint in this attempt. `borrows` are the prefixes of
    other commits whose objects this checkpoint also needs. Of its `size_bytes`, only `sent_bytes` are in objects that
    belong to this checkpoint; if `sent_bytes` is None, all are. `files` is None if the checkpoint has no files, for
    example in a run that an earlier version created. `fit` counts the calls of fit() from 1; epochs and steps are
    counted over all calls.

    The checkpoint of a command's state has only files. It has no image and no epoch, and its step is 0.

    For a gang, `shards` describe the parts that the ranks stored, in the order of the ranks, and `layout` defines which
    ranks store a part. `manifest_blake3` is then the digest of rank 0's manifest, and sizes and objects are totals.
    """

    attempt: Count
    incarnation: Count
    prefix: str
    manifest_blake3: str
    size_bytes: Count
    objects: Count
    epoch: Count
    batch: Count
    step: Count
    taken_at: Moment
    stall_s: Seconds
    durable_s: Seconds
    why: str
    final: bool = False
    suspect: bool = False
    versions: dict[str, str] = {}
    metrics: dict[str, float] = {}
    borrows: tuple[str, ...] = ()
    sent_bytes: Count | None = None
    files: CommittedFiles | None = None
    fit: Count = 1
    shards: tuple[Shard, ...] | UnsetType = UNSET
    layout: Layout | UnsetType = UNSET

    @property
    def has_image(self) -> bool:
        """True for the checkpoint of a training. The checkpoint of a command has no image, only files."""
        return self.size_bytes > 0 or self.files is None

    @property
    def puts(self) -> int:
        """
        The number of the checkpoint's objects apart from its files: the parts of its image, and each rank's manifest.
        """
        return self.objects + (self.has_image if self.shards is UNSET else len(self.shards))

    @property
    def stored_bytes(self) -> int:
        """The bytes in objects that belong to this checkpoint; borrowed objects do not count."""
        return self.size_bytes if self.sent_bytes is None else self.sent_bytes


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """
    A snapshot did not become durable (promise I8). If the store refused the snapshot, `size_bytes` is the snapshot's
    size; otherwise 0.
    """

    attempt: Count
    step: Count
    detail: str
    size_bytes: Count = 0


class CheckpointRetired(Event, frozen=True, kw_only=True):
    """
    No trainer resumes from this commit from now on, so the objects of the commit may be deleted. Irrevocable. `attempt`
    is None if a runner retires the commit after the run's end.
    """

    attempt: Count | None
    commit: Count


class Uncarried(msgspec.Struct, frozen=True, kw_only=True):
    """State that no checkpoint contains: its name in the script, and its kind."""

    place: str
    what: str


class StateNotCarried(Event, frozen=True, kw_only=True):
    """
    State that no checkpoint contains has changed since fit() began, so a resumed training may differ from an
    uninterrupted one.

    The change was found in the snapshot of step `step`. Each such state is reported once per run.
    """

    attempt: Count
    step: Count
    places: tuple[Uncarried, ...]


class OutputsStored(Event, frozen=True, kw_only=True):
    """
    Files that the script has written are stored, and the list at `key` names each file by its content. The stored bytes
    were compared before this event was written.

    The agent scanned the files at `looked_at`. At that time, `commit` was the newest checkpoint (None if there was no
    checkpoint), and `step` was the trainer's step. The list has `files` files of `size_bytes` in total; it also gives
    reasons why the `left_out` files were not stored. `sent_bytes` in `objects` objects were new; both numbers include
    the list. All stored files of the run together now have `stored_bytes`. A `final` event covers all files that
    existed when the trainer ended.
    """

    attempt: Count
    key: str
    blake3: str
    commit: Count | None
    step: Count
    looked_at: Moment
    files: Count
    size_bytes: Count
    objects: Count
    sent_bytes: Count
    stored_bytes: Count
    left_out: Count = 0
    final: bool = False


class EpochCompleted(Event, frozen=True, kw_only=True):
    """
    The last step of an epoch is done, and the epoch's validation ended at `ended_at`. The event is provisional until a
    commit at or after `step` exists that is not cut off later (protocol 24).
    """

    attempt: Count
    epoch: Count
    step: Count
    ended_at: Moment
    metrics: dict[str, float] = {}


class TrainerExited(Event, frozen=True, kw_only=True):
    """
    A trainer ended before its work was done. The agent starts another trainer, unless the allowed number of restarts is
    used up.
    """

    attempt: Count
    incarnation: Count
    cause: Cause
    exit_code: ExitCode
    step: Count
    detail: str = ""


class AttemptDrained(Event, frozen=True, kw_only=True):
    """The attempt handed over: `final_commit` contains all its work, and no step was done after `stopped_at`."""

    attempt: Count
    final_commit: Count | None
    stopped_at: Moment
    reason: str


class AttemptEnded(Event, frozen=True, kw_only=True):
    """
    The attempt ended without a handover. `last_step` is the last step that its trainer did.

    `missing` are the members of a gang that could not be reached. If the lead is one of them, another member writes
    this event.
    """

    attempt: Count
    cause: Cause
    last_step: Count
    detail: str = ""
    missing: tuple[MemberName, ...] | UnsetType = UNSET


class RunCompleted(Event, frozen=True, kw_only=True):
    """The training is complete. `final_commit` contains the result; None for a command without checkpoints."""

    attempt: Count
    final_commit: Count | None
    step: Count


AnyEvent = (
    RunCreated
    | StopRequested
    | ResumeRequested
    | PruneRequested
    | EndCorrected
    | LaunchIntended
    | LaunchRecorded
    | GuardArmed
    | LaunchClosed
    | DrainRequested
    | InstanceCondemned
    | MemberReleased
    | InstanceGone
    | DeadlineOutOfReach
    | BudgetNearlySpent
    | RunStopped
    | RunFailed
    | AttemptStarted
    | MemberReady
    | ResumedFrom
    | TrainingStarted
    | NoticeSeen
    | NoticesUnseen
    | CheckpointCommitted
    | CheckpointFailed
    | CheckpointRetired
    | StateNotCarried
    | OutputsStored
    | EpochCompleted
    | TrainerExited
    | AttemptDrained
    | AttemptEnded
    | RunCompleted
)


OfMember = EndCorrected | LaunchRecorded | GuardArmed | InstanceCondemned | MemberReleased | InstanceGone | MemberReady
"""The events that concern one member of a launch."""


def name_of(event: OfMember) -> MemberName:
    """Return the member that an event concerns; in a run on one instance, the only member of its launch."""
    return MemberName(event.launch, 0 if event.member is UNSET else event.member)


_FIELDS_OF_GANGS = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.default is UNSET)
    for kind in get_args(AnyEvent)
}


def speaks_of_gangs(event: Event) -> bool:
    """
    Return True if the event has a field for gangs. A spotrun that does not support gangs could not read such an event.
    """
    for name in _FIELDS_OF_GANGS[type(event)]:
        if getattr(event, name) is not UNSET:
            return True
    return type(event) is MemberReady or type(event) is MemberReleased


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One numbered object of the ledger.

    `run` is the uid of the run. A writer recognises an entry that it wrote by the `nonce`. `at` is the run time on the
    writer's clock. Entries are ordered by `number`, never by `at`. The signature is in the stored object, but not in
    this struct.
    """

    number: Count
    run: str
    nonce: str
    at: Moment
    writer: str
    event: AnyEvent


Sign = Callable[[bytes], str]
"""A function that returns the signature, in hex, of an entry's JSON."""

_encoder = msgspec.json.Encoder(decimal_format="string")
prepare(Entry)
_SEAL, _AFTER_SEAL = b'{"sha256":"', b'",'
_SEAL_SIZE = len(_SEAL) + 64 + len(_AFTER_SEAL)


def encode_entry(entry: Entry, sign: Sign | None = None) -> bytes:
    """
    Return the object of an entry: the entry's JSON, signed by `sign`. The sha256 of all this becomes the JSON's first
    field.

    Without the sha256, a flipped bit could change a price or a step unnoticed. A flipped bit could also make an
    accepted entry void for new readers, although readers that read the intact entry still count it.
    """
    body = entry_json(entry)
    return seal(body if sign is None else signed(body, sign(body)))


def seal(body: bytes) -> bytes:
    """Return a JSON object with the object's sha256 added as its first field."""
    assert body.startswith(b"{")
    return _seal_of(body) + body[1:]


def _seal_of(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode() + _AFTER_SEAL


_SIGNATURE = b'{"signature":"'
_SIGNATURE_SIZE = len(_SIGNATURE) + 128 + len(_AFTER_SEAL)


def signed(body: bytes, signature: str) -> bytes:
    """Return a JSON object with its Ed25519 signature, in hex, added as its first field."""
    assert body.startswith(b"{")
    return _SIGNATURE + signature.encode() + _AFTER_SEAL + body[1:]


def parted(data: bytes) -> tuple[str, bytes]:
    """Split the object of an entry into the signature ("" if there is none) and the JSON that was signed."""
    body = unsealed(data) or b""
    if not body.startswith(_SIGNATURE):
        return "", body
    signature = body[len(_SIGNATURE) : _SIGNATURE_SIZE - len(_AFTER_SEAL)]
    return signature.decode("latin-1"), b"{" + body[_SIGNATURE_SIZE:]


def entry_json(entry: Entry) -> bytes:
    """Encode an entry for people and their programs, without the checksum."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry | None:
    """
    Decode the object of an entry. Return None if the checksum matches but the content is malformed; the entry is then
    void.

    Raises:
        LedgerDamaged: the bytes do not match their own checksum. No writer stores such an object, so this is an
            accepted entry that can no longer be decoded, and must not be skipped.
    """
    if not is_whole(data):
        raise LedgerDamaged("an entry does not match its checksum", hint=RESTORE)
    try:
        return decode(parted(data)[1], Entry)
    except OutOfBounds:
        return None


RESTORE = "restore the entry from a backup or an object version; no writer may append until then"


def is_whole(data: bytes) -> bool:
    """Return True if the object matches the checksum in it, even if the object is not an entry."""
    return unsealed(data) is not None


def unsealed(data: bytes) -> bytes | None:
    """Return the JSON object to which `seal` added a checksum; None if `data` does not match the checksum."""
    body = b"{" + data[_SEAL_SIZE:]
    return body if data.startswith(_seal_of(body)) else None


def kind(event: Event) -> str:
    return type(event).__name__
