"""
The events of a run, named in the past tense. A written event is never changed. Everything else about a run is computed
from its events.

An *entry* is one event under its number, with its writer and its time. A *launch* has the number of its
`LaunchIntended` entry, an *attempt* that of its `AttemptStarted`, and a commit that of its `CheckpointCommitted`.

Epochs count from 0 in events, and from 1 in text for people. All times and durations are in run time.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType, Offering, require_amount
from spotrun.run.bounds import SMALL_BYTES, Count, ExitCode, Moment, Scale, Seconds, prepare
from spotrun.run.gang import Gang, Layout, Meeting, MemberName, Port, Shard

LEDGER_VERSION = 3
"""The version of the ledger in which runs on one instance are written. Its entries have no fields for gangs."""
GANG_LEDGER_VERSION = 4
ELASTIC_LEDGER_VERSION = 5
"""The version of the ledger in runs whose gangs may have fewer members than the job requests."""
OLD_LEDGER_VERSION = 2
"""
The version of the ledger in old runs, whose entries are not signed with a key. In such a run, any program that can
write to the run's folder can pose as the runner (protocol 31).
"""
READABLE_VERSIONS = (OLD_LEDGER_VERSION, LEDGER_VERSION, GANG_LEDGER_VERSION, ELASTIC_LEDGER_VERSION)


def version_for(instances: int, *, elastic: bool = False) -> int:
    """
    Return the version of the ledger for a new run. It is the lowest version that can describe a run on this number of
    instances, so that older versions of spotrun can read as many runs as possible. With `elastic`, the number may
    change.
    """
    if instances == 1:
        return LEDGER_VERSION
    return ELASTIC_LEDGER_VERSION if elastic else GANG_LEDGER_VERSION


ENTRY_SIZE_MAX = SMALL_BYTES
"""Maximum size of an entry, in bytes. Content that would make an entry larger is stored as a separate object."""
HOURS_PER_VOLUME_MONTH = 30 * 24
"""
Number of hours in a month when the monthly price of a volume is converted to an hourly price. It is the number in the
examples of https://aws.amazon.com/ebs/pricing/.
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
    The rule that decides when an epoch ends. Costs after its end belong to the next epoch (protocol 26).

    Runs that an earlier version of spotrun created do not name a rule. They get the rule of that version, which is the
    default, so their figures do not change.
    """

    FINISHED = "finished"
    DURABLE = "durable"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", forbid_unknown_fields=True):
    """
    The base class of all events. In JSON, the field `type` contains the name of the class.

    A field with the value `UNSET` is not written. In a run on one instance, all fields for gangs are `UNSET`, so that a
    version of spotrun without support for gangs can read the run's entries.
    """


# -- written by the command line -------------------------------------------------------------------------------------


BENCH = "bench"
SWEEP = "sweep "
"""Values of `RunCreated.part_of`: either `BENCH`, or the prefix `SWEEP` followed by the name of a sweep."""


class PackDigest(msgspec.Struct, frozen=True):
    """
    Identifies the content of one stored set-up. `key` is the name under which it is stored, and `sha256` is the digest
    of its description, which contains the digest of each of its parts.
    """

    key: str
    sha256: str


class RunCreated(Event, frozen=True, kw_only=True):
    """
    Entry 0: the job, and the limit of its cost. No later entry raises the limit.

    `clock_epoch` and `time_scale` define run time for every process of the run. `workdir_sha256` names the uploaded
    work folder. `start_sha256` names the uploaded Lightning checkpoint from which the training starts; None if it
    starts from scratch. `revision` is the git commit of the work folder; None outside of git. `spotrun` is the version
    that created the run; "" if the run is older than this field.

    `script_sha256` is the digest of the script alone. Two runs with the same digest did the same work, so their bills
    can be compared. It is "" for a command, and in a run that an earlier version created.

    `storage` has the prices of the object store. `deadline_at` is the run time by which the run has to be completed;
    None without a deadline. `interruption_bands` has the cloud's published figures: for a region and a type
    (`us-east-1/g5.xlarge`), the share of spot instances that the cloud interrupts in a month, such as "5-10%".
    `epochs_end` is the rule for when an epoch ends. `benched` has the seconds per step on each kind of instance, if
    `spotrun bench` has measured this job.

    `public_key` is the Ed25519 key, in hex, for checking the signatures of the run's owner (protocol 31); "" in a run
    that an earlier version created. `part_of` names the command that created the run as a part of its own work:
    `BENCH`, or `SWEEP` and a name. Only that command can continue the run. `setup_packs` are the stored set-ups that a
    sweep copies from an earlier trial.
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
    setup_packs: tuple[PackDigest, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_amount(self.price_cap_usd_per_hour)
        require_amount(self.budget_usd)

    def job(self, section: str) -> dict[str, Any]:
        """
        Return a section of the job; {} if it is not a mapping, which can happen because the fold does not validate the
        job.
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
    def copied_packs(self) -> tuple[PackDigest, ...]:
        return () if self.setup_packs is UNSET else self.setup_packs

    @property
    def size(self) -> int:
        """The number of instances that the job requests. It is 1 if the job's `num_nodes` is not a whole number."""
        found = self.spec.get("num_nodes")
        return found if isinstance(found, int) else 1

    @property
    def least(self) -> int:
        """The minimum number of instances that train together. It is `size` unless the job's gang is elastic."""
        found = self.job("elastic").get("min_nodes") if self.ledger_version == ELASTIC_LEDGER_VERSION else None
        return found if isinstance(found, int) and 1 <= found <= self.size else self.size


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """
    The git commit that is checked out in a folder. `changed` is True if some files in the folder differ from the commit
    or are not in it, and None if this is unknown.
    """

    commit: str
    changed: bool | None = None


class Passage(msgspec.Struct, frozen=True):
    """
    The prices of traffic between a bucket and an instance. `is_home` is True if the instance is in the bucket's region,
    or in one of them if the bucket has several.
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

    `region` is the bucket's region. It is "" for a folder, or if the region is unknown; then no traffic counts as
    traffic between regions.

    The price of a GB that is sent to another region depends on the sending region. It is `egress_elsewhere[region]` or,
    if the region is not a key there, `egress_usd_per_gb`.

    If the cloud's price depends on the receiving region too, `between` has the prices of traffic between the bucket and
    an instance. Its keys are the instance's region, or the first word of that region's name, such as `europe`.
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
        """Return True if `region` is not the bucket's region."""
        passage = self._passage(region)
        return self.region not in ("", region) if passage is None else not passage.is_home

    def charges(self, region: str) -> bool:
        """
        Return True if the traffic of an instance in `region` is billed.

        Even traffic within the bucket's own region can be billed. If a bucket has several regions, the cloud copies
        everything that is written to the bucket from one of these regions to the others, and charges for the copies.
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
    The rule by which the seconds of an instance are billed. `source` says where the rule was published, and on which
    day it was read.

    Instances are billed per second, for at least `minimum_s`. If the cloud takes a spot instance back within
    `free_if_interrupted_within_s` of its start, the machine itself costs nothing, but its disk of `volume_gib` and its
    public address are still billed.

    On some clouds, the disk remains after the machine has shut down, and is billed until it is deleted. The machine
    itself then costs nothing: the last price in the instance's record is 0, from the shutdown on.
    """

    minimum_s: Seconds
    free_if_interrupted_within_s: Seconds
    source: str
    volume_gib: Count = 0
    volume_usd_per_gib_month: Decimal = Decimal(0)
    address_usd_per_hour: Decimal = Decimal(0)
    spot_address_usd_per_hour: Decimal | None = None
    """The price of a spot instance's address. If it is None, `address_usd_per_hour` is used for spot instances too."""
    family_volume_usd_per_gib_month: dict[str, Decimal] | UnsetType = UNSET
    """
    The price of the volume for families of instance types whose volume is of another kind. A family is the part of a
    type's name before the first hyphen.
    """

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
        The hourly cost of an on-demand instance's disk and address, which is billed in addition to the machine. For a
        spot instance, the user's own machine or a certain instance type, first call `attached_to`, because their prices
        may differ.
        """
        return self.volume_usd_per_hour + self.address_usd_per_hour

    def attached_to(self, offering: Offering) -> BillingRule:
        """
        Return the rule for instances of one offering. Spot instances can have another price for the address, and
        families of instance types another price for the volume. The user's own machine has no minimum time, and no cost
        for a disk or an address.
        """
        if offering.capacity_type is CapacityType.OWN:
            alone = replace(self, minimum_s=0, volume_gib=0, address_usd_per_hour=Decimal(0))
            return replace(alone, spot_address_usd_per_hour=None)
        rule = self
        if self.family_volume_usd_per_gib_month:
            family = offering.instance_type.partition("-")[0]
            volume = self.family_volume_usd_per_gib_month.get(family, self.volume_usd_per_gib_month)
            rule = replace(rule, volume_usd_per_gib_month=volume, family_volume_usd_per_gib_month=UNSET)
        if offering.capacity_type is not CapacityType.SPOT or self.spot_address_usd_per_hour is None:
            return rule
        return replace(rule, address_usd_per_hour=self.spot_address_usd_per_hour, spot_address_usd_per_hour=None)


class StopRequested(Event, frozen=True, kw_only=True):
    by: str


class ResumeRequested(Event, frozen=True, kw_only=True):
    by: str


class PruneRequested(Event, frozen=True, kw_only=True):
    """
    A request to the current attempt: keep only the newest `keep` of the checkpoints that are older than this entry.
    """

    by: str
    keep: Count


class EndCorrected(Event, frozen=True, kw_only=True):
    """
    No runner had observed the end of an instance, so its time was estimated. Now the cloud's bill, which `evidence`
    names, shows the true time.

    `ended_at` replaces the estimated time in `InstanceGone`. `member` is as in `LaunchRecorded`.
    """

    launch: Count
    ended_at: Moment
    by: str
    evidence: str
    member: Count | UnsetType = UNSET


# -- written by any runner -------------------------------------------------------------------------------------------


class LaunchIntended(Event, frozen=True, kw_only=True):
    """
    The runner is about to request the instance that this event describes. Runners send the request only until
    `not_after`. After that, they only check whether an earlier request has created the instance. For a gang, `count`
    instances are requested, and the cloud starts either all or none of them.

    Two amounts are reserved in the budget: for each instance, `time_to_live_s` at `price_ceiling_usd_per_hour`; and for
    all instances together, `egress_usd` for traffic between regions. `on_demand_usd_per_hour` is the on-demand price of
    the same type in the same place. The cost of spot is compared with this price.

    `standby_for` is the attempt whose instance will be replaced. `for_gang` is the attempt whose missing members will
    be replaced; if it is None, the instances form a new gang.
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
        """The attempt whose instance, or whose missing members, this launch is to replace; None if it replaces none."""
        return self.standby_for if self.for_gang is UNSET else self.for_gang


class LaunchRecorded(Event, frozen=True, kw_only=True):
    """
    The instance of a launch exists, and has been billed since `billed_from`.

    A guard in the cloud ends the instance if the instance's own timer fails (protocol 11). `unguarded` is the reason
    why there is no guard; None if there is one. `member` is the number of the instance within its launch, from 0. An
    event without `member` is about the only instance of its launch.
    """

    launch: Count
    instance_id: str
    billed_from: Moment
    prices: tuple[PriceSegment, ...]
    unguarded: str | None = None
    member: Count | UnsetType = UNSET


class GuardArmed(Event, frozen=True, kw_only=True):
    """
    The instance now has a guard, which was missing after the launch. So the cloud will end the instance even if no
    runner does.
    """

    launch: Count
    member: Count | UnsetType = UNSET


class InstanceStopped(Event, frozen=True, kw_only=True):
    """
    The instance shut down at `stopped_at`, but the cloud still has it, for example because it refuses to delete it.
    From then on, only its disk is billed.
    """

    launch: Count
    stopped_at: Moment
    member: Count | UnsetType = UNSET


class LaunchClosed(Event, frozen=True, kw_only=True):
    """
    The launch is given up: no attempt will start from it, and every runner terminates its instance. This
    cannot be undone.

    `refused` is True if the cloud refused the request, so that no instance exists. If it is False, the cloud
    might not have answered, and an instance might exist that no runner has observed yet.
    """

    launch: Count
    cause: Cause
    detail: str = ""
    refused: bool = False


class DrainRequested(Event, frozen=True, kw_only=True):
    """
    The attempt is ordered to commit once more and then to hand over. With `regroup`, its members stay: they train in
    the next attempt, together with the members that have been waiting.
    """

    attempt: Count
    reason: str
    regroup: bool | UnsetType = UNSET


class InstanceCondemned(Event, frozen=True, kw_only=True):
    """
    The instance of this launch is ordered to end: any runner that observes the instance terminates it. This
    cannot be undone.
    """

    launch: Count
    cause: Cause
    detail: str = ""
    member: Count | UnsetType = UNSET


class MemberReleased(Event, frozen=True, kw_only=True):
    """
    The run no longer needs this member, so any runner terminates its instance. The member is not at fault. This cannot
    be undone.
    """

    launch: Count
    member: Count
    reason: str


class InstanceGone(Event, frozen=True, kw_only=True):
    """
    The instance of a launch has ended, as `evidence` shows. The event contains everything needed to compute the bill.

    If the cloud reports when the instance ended, or a runner observed the end, `ended_at` is that time and `bounded_by`
    is "". Otherwise `ended_at` is the earliest time by which the instance must have ended, and `bounded_by` says what
    this estimate is based on.

    `last_step_seen` is the newest step in the agent's heartbeat, from which the number of lost steps is computed; None
    if no heartbeat could be read. `stopped_at` is the time of the agent's last heartbeat. Nothing trained between
    it and `ended_at`.
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
    The deadline cannot be met: at the measured speed, the run will be completed only at `expected_at`, even if it
    continues on demand. This event is written at most once.
    """

    deadline_at: Moment
    expected_at: Moment
    work_left_s: Seconds


class BudgetNearlySpent(Event, frozen=True, kw_only=True):
    """
    The run has spent the share of its budget at which the user wants a warning.

    At this rate, the run will have spent the whole budget at the time `passes_at`, in the epoch `epoch`. Both are None
    if this cannot be predicted. This event is written at most once.
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


# -- written by agents: first by the agent of a new instance, then by the agent of the current attempt ---------------


class AttemptStarted(Event, frozen=True, kw_only=True):
    """
    The agent on the instance of a launch takes over the run. `booted_at` is when the instance began to run spotrun's
    code. `setup` is None if the set-up failed.

    In a run on several instances, `gang` lists the members that train, and the other fields are about the gang's lead.
    """

    launch: Count
    instance_id: str
    booted_at: Moment
    setup: SetUp | None = None
    gang: Gang | UnsetType = UNSET


PACK_PART_BYTES = 32 << 20
"""Size of each object of a stored set-up, in bytes. The last object may be smaller."""


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """
    The set-up of an instance. It took `seconds`, including the time to fetch the work folder.

    `how` is "run" if the job's set-up command was executed, "unpacked" if the files that it had made on an earlier
    instance were unpacked, and "none" if the job has no such command. `packed_bytes` is the size of the archive that
    was unpacked, or that was packed for later instances, and `pack` is its digest; UNSET if there is no archive, or
    in a run that an earlier version created.
    """

    seconds: Seconds
    how: str
    packed_bytes: Count = 0
    pack: PackDigest | UnsetType = UNSET

    @property
    def objects(self) -> int:
        """
        The number of objects of a stored set-up, including the list of its parts. It is 0 if the set-up is not stored.
        """
        return -(-self.packed_bytes // PACK_PART_BYTES) + 1 if self.packed_bytes else 0


class MemberReady(Event, frozen=True, kw_only=True):
    """
    A member of a launch is ready to take part in the next attempt: nothing of an earlier attempt is left on it.

    The other members reach this one at `address`. To test the connection, they use its port `door`; None if this member
    could not open such a port. `accelerators` is the number of its accelerators. `holds` is the newest commit whose
    image this member still has in memory. `setup` is None if the set-up failed, or if an earlier event contains it.

    `after` is the entry that ended the newest attempt so far; None if no attempt has ended. When another attempt ends,
    this event no longer counts, and the member has to report again.
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
    A trainer of this attempt resumes from `commit`, or begins from scratch if `commit` is None. All later commits are
    cut off: the trainer repeats their steps, so they no longer count.

    `incarnation` numbers the trainers of the attempt from 0. `skipped` are newer commits that were not used, because
    they could not be read, or because a command that resumed from them had failed repeatedly. `in_place` is True if a
    command continues with the files that the previous trainer left on this instance; they are newer than `commit`.
    `meet` is the address and port at which the trainers of a gang connect with one another.
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
    A trainer has completed its first new step. The time before this counts as restore, the time after it as training.

    A command that reports no steps is an exception: for such a trainer, this event means that the command has started,
    and `began_at` is the time of the start. For any other trainer, `began_at` is None.

    `unprotected` is True if the run makes no checkpoints. That is the case if the command runs Python, stores no state,
    and contains no training that connected to the agent within the first minute.
    """

    attempt: Count
    incarnation: Count
    step: Count
    began_at: Moment | None = None
    unprotected: bool = False


class NoticeSeen(Event, frozen=True, kw_only=True):
    """
    The cloud has announced that it will take the instance (`termination`), or that it might take it (`rebalance`). In a
    gang, `member` is the member whose instance this is, and any member of the attempt is allowed to write this event.
    """

    attempt: Count
    kind: str
    deadline_at: Moment | None
    member: MemberName | UnsetType = UNSET


class NoticesUnseen(Event, frozen=True, kw_only=True):
    """
    The instance of this attempt cannot receive the cloud's notices, so it can be lost without a notice. Each agent
    writes this event at most once.
    """

    attempt: Count
    detail: str
    member: MemberName | UnsetType = UNSET


class CommittedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """
    The files of the work folder as they were at a checkpoint, between two steps. They are listed in the object at
    `key`, each with the digest of its content.

    The list contains `files` files with `size_bytes` in total. `left_out` is the number of files that were not stored.
    `objects` is the number of new objects that were written for this checkpoint, including the list, and `sent_bytes`
    is their total size. `stored_bytes` is the total size of all files that the run has stored so far.
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

    Times: `taken_at` is when the training paused for the snapshot. `stall_s` is the total time of such pauses since the
    previous commit. `durable_s` is the time from the snapshot to this entry.

    State: if `suspect` is True, the checkpoint contains NaN or Inf, and no training resumes from it. If `final` is
    True, it is the last of its attempt, and no step follows it. `fit` numbers the calls of fit() from 1; epochs and
    steps are counted over all calls.

    Objects: the checkpoint's size is `size_bytes`. Of these bytes, `sent_bytes` were stored in new objects for this
    checkpoint; if `sent_bytes` is None, all were. The other bytes are in the objects of earlier commits, whose prefixes
    are listed in `borrows`. `files` is None if the checkpoint has no files, for example in a run that an earlier
    version created.

    The checkpoint of a command has only files. It has no image and no epoch, and its step is 0.

    For a gang, `shards` describes the parts that the ranks stored, in the order of the ranks, and `layout` defines
    which ranks store a part. `manifest_blake3` is then the digest of rank 0's manifest, and all sizes and numbers of
    objects are totals over the ranks.
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
        """True if the checkpoint contains the image of a training. The checkpoint of a command contains only files."""
        return self.size_bytes > 0 or self.files is None

    @property
    def puts(self) -> int:
        """
        The number of objects that were written for the checkpoint, apart from its files: the parts of its image, and
        the manifest of each rank.
        """
        return self.objects + (self.has_image if self.shards is UNSET else len(self.shards))

    @property
    def stored_bytes(self) -> int:
        """
        The size of the checkpoint's own objects, in bytes. Objects that it borrows from other commits do not count.
        """
        return self.size_bytes if self.sent_bytes is None else self.sent_bytes


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """
    A snapshot could not be made durable (promise I8). `size_bytes` is its size if the store refused it; otherwise 0.
    """

    attempt: Count
    step: Count
    detail: str
    size_bytes: Count = 0


class CheckpointRetired(Event, frozen=True, kw_only=True):
    """
    A commit is retired: from now on no trainer resumes from it, so its objects may be deleted. This cannot be
    undone. `attempt` is None if a runner retires the commit after the run has ended.
    """

    attempt: Count | None
    commit: Count


class Uncarried(msgspec.Struct, frozen=True, kw_only=True):
    """
    A part of the training's state that no checkpoint contains: its path in the script (`place`), and the kind of state
    (`what`).
    """

    place: str
    what: str


class StateNotCarried(Event, frozen=True, kw_only=True):
    """
    Part of the script's state has changed since fit() began, and no checkpoint contains this part. So a training that
    resumes may differ from an uninterrupted one.

    The change was found when the snapshot of step `step` was made. Each changed place is reported once per run.
    """

    attempt: Count
    step: Count
    places: tuple[Uncarried, ...]


class OutputsStored(Event, frozen=True, kw_only=True):
    """
    Files that the script wrote have been stored. They are listed in the object at `key`, each with the digest of its
    content. The stored bytes were compared with the files before this event was written.

    The agent scanned the files at `looked_at`. At that time, `commit` was the newest checkpoint (None if there was
    none), and `step` was the step that the trainer had reached. If `final` is True, the trainer had already ended, so
    the event covers all of its files.

    The list contains `files` files with `size_bytes` in total. `left_out` is the number of files that were not stored;
    the list names them with the reason, but perhaps not all. `objects` is the number of new objects that were written
    for this event, including the list, and `sent_bytes` is their total size. `stored_bytes` is the total size of all
    files that the run has stored so far.
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
    The last step of an epoch is done, and the epoch's validation has ended at `ended_at`. The event is provisional: if
    the run resumes from a checkpoint before `step`, the epoch has to be repeated. The event is final once a commit at
    or after `step` exists, and no resume discards that commit (protocol 24).
    """

    attempt: Count
    epoch: Count
    step: Count
    ended_at: Moment
    metrics: dict[str, float] = {}


class TrainerExited(Event, frozen=True, kw_only=True):
    """
    A trainer ended before its work was done. The agent starts another trainer, unless the job allows no more restarts.
    """

    attempt: Count
    incarnation: Count
    cause: Cause
    exit_code: ExitCode
    step: Count
    detail: str = ""


class AttemptDrained(Event, frozen=True, kw_only=True):
    """
    The attempt has handed over. `final_commit` contains all of its training: no step was taken after `stopped_at`.
    """

    attempt: Count
    final_commit: Count | None
    stopped_at: Moment
    reason: str


class AttemptEnded(Event, frozen=True, kw_only=True):
    """
    The attempt ended without a handover. `last_step` is the last step that its trainer completed.

    In a gang, `missing` are the members that could not be reached. If the lead is one of them, another member has
    written this event.
    """

    attempt: Count
    cause: Cause
    last_step: Count
    detail: str = ""
    missing: tuple[MemberName, ...] | UnsetType = UNSET


class RunCompleted(Event, frozen=True, kw_only=True):
    """The training is complete. `final_commit` contains the result; it is None for a command without checkpoints."""

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
    | InstanceStopped
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


OfMember = (
    EndCorrected
    | LaunchRecorded
    | GuardArmed
    | InstanceStopped
    | InstanceCondemned
    | MemberReleased
    | InstanceGone
    | MemberReady
)
"""The events that are about one member of a launch."""


def name_of(event: OfMember) -> MemberName:
    """Return the member that an event is about. In a run on one instance, this is the only member of its launch."""
    return MemberName(event.launch, 0 if event.member is UNSET else event.member)


_FIELDS_OF_GANGS = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.default is UNSET)
    for kind in get_args(AnyEvent)
}


def speaks_of_gangs(event: Event) -> bool:
    """
    Return True if the event uses a field for gangs. Versions of spotrun without support for gangs cannot read such an
    event.
    """
    for name in _FIELDS_OF_GANGS[type(event)]:
        if getattr(event, name) is not UNSET:
            return True
    return type(event) is MemberReady or type(event) is MemberReleased


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One numbered object of the ledger.

    `run` is the uid of the run. `nonce` is a random string by which a writer recognises its own entry. `at` is the run
    time on the writer's clock. Entries are ordered by `number`, never by `at`. The stored object also has a signature,
    which is not in this struct.

    `history` is the digest of all entries before this one. Only signed entries have it, so that a signature also covers
    what came before (protocol 31). In entry 0 it is "", which shows that the signed entries of the run have it; entry 0
    of a run that an earlier version created has no such field.
    """

    number: Count
    run: str
    nonce: str
    at: Moment
    writer: str
    event: AnyEvent
    history: str | UnsetType = UNSET


prepare(Entry)


def kind(event: Event) -> str:
    return type(event).__name__
