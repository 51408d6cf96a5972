"""The CloudDriver for Compute Engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.clouds.clock_skew import SKEW_WARNED, in_words
from spotrun.clouds.driver import require_one
from spotrun.clouds.error_kinds import AlreadyThere, BadImage, BadSurroundings, NotThere, Unsupported
from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.catalog import Catalog, catalogs
from spotrun.clouds.gcp.config import GcpConfig, region_of
from spotrun.clouds.gcp.delete_ids import delete_id
from spotrun.clouds.gcp.description import Record, denials, instance_of, odd_labels, why_not_ended
from spotrun.clouds.gcp.error_codes import AddressesExhausted, StockedOut
from spotrun.clouds.gcp.instances import InstanceListing, look, require_seen
from spotrun.clouds.gcp.launching import Launching
from spotrun.clouds.gcp.names import OURS, name_for, read_name
from spotrun.clouds.gcp.operations import is_being_deleted
from spotrun.clouds.regions import Regions
from spotrun.errors import CloudError, CloudUnavailable, LaunchTokenSpent, QuotaExceeded
from spotrun.instance import Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import CapacityType, Offering

SNAPSHOT_FOR_S = 1.0
"""Seconds for which an answer about a run is reused by all callers, because Google limits a project's calls (P15)."""
QUOTA_HELD_FOR = timedelta(minutes=5)
"""Time for which an instance that has ended still counts against the quota (P5)."""
LISTED_WITHIN_S = 120.0
"""
Seconds within which the instance of a launch that Google has accepted appears in Google's lists. If the instance is
still missing after that, it was never made.
"""
ENDS_WITHIN_S = 180.0
"""
Seconds within which an instance should be gone. An instance has 90 s to shut down, and Google's lists lag behind:
https://cloud.google.com/compute/docs/instances/deleting-instance
"""


class _Ending(NamedTuple):
    """
    The state of ending an instance. `since_s` is the time of the first request to end it. If the last such request
    failed, `why_not` is Google's message.
    """

    since_s: float
    why_not: str = ""


class GcpDriver:
    """
    Rents Compute Engine's VMs in the configured regions. An instance's name identifies its run.

    The driver remembers instances that it has seen, for two reasons. The bill of a deleted instance needs the time at
    which billing began. And an instance that Google has accepted but does not list yet must not be requested again.
    """

    name = "gcp"
    rations_calls = True

    def __init__(self, config: GcpConfig, clock: Clock, google: Google | None = None) -> None:
        self._config = config
        self._clock = clock
        self._google = google or Google(clock)
        self._offered = Regions(config.regions, clock)
        self._snapshots: dict[str | None, tuple[float, InstanceListing]] = {}
        self._is_blind = False
        self._known: dict[str, Instance] = {}
        self._accepted: dict[str, tuple[float, Instance]] = {}
        self._odd: dict[str, str] = {}
        self._copies: dict[str | None, dict[str, str]] = {}
        self._ending: dict[str, _Ending] = {}
        self._absent: set[str] = set()
        """Names of instances that Google did not find when they were to be ended."""

    # -- CloudDriver -----------------------------------------------------------------------------------------

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(self._remarks())

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        if self._is_blind:
            return []  # a launch's outcome would be unknown, and a throttled caller should call less often
        found = self._offered.ask(lambda region: [*self._catalogs[region].offerings()], must_see)
        return [offering for offered in found.values() for offering in offered]

    def launch(self, request: LaunchRequest) -> Instance:
        require_one(request, self.name)
        catalog = self._catalog_of(request.offering)
        records = self._records_of(request)
        found = self._of_token(request, records) or self._not_listed_yet(request)
        if found is not None:
            return found
        try:
            self._launching.launch(request, sum(map(denials, records)))
        except AlreadyThere as error:
            found = self._of_token(request, self._records_of(request))
            if found is None:
                raise CloudUnavailable(f"{error.message}; Google does not list the instance yet") from error
            return found
        except CloudError as error:
            self._learn(catalog, request.offering, error)
            if isinstance(error, QuotaExceeded):
                raise self._quota_error(request.offering, error) from error
            raise
        finally:
            self._snapshots.clear()
        return self._launched(request)

    def describe(self, instance_id: str) -> Instance | None:
        name = read_name(instance_id)
        if name is None and not instance_id.startswith(OURS):
            return None
        seen = self._snapshot(None if name is None else name.run_uid)
        return self._instance(seen.records.get(instance_id) or Record(instance_id, None, ()))

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        seen = self._snapshot(run_uid)
        require_seen(seen, self._config.regions if must_see is None else must_see)
        found = (self._instance(record) for record in seen.records.values())
        return [instance for instance in found if instance is not None]

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return self._spot_history(offering, None)

    def terminate(self, instance_id: str) -> None:
        name = read_name(instance_id)
        record = self._snapshot(None if name is None else name.run_uid).records.get(instance_id)
        instance = None if record is None else self._instance(record)
        if record is None or instance is None or not instance.alive:
            return
        asked_first = self._ending.get(instance_id, _Ending(self._clock.monotonic()))
        self._ending[instance_id] = asked_first._replace(why_not=why_not_ended(record.operations))
        if is_being_deleted(record.operations):
            return
        place = f"projects/{self._project}/zones/{instance.offering.zone}/instances/{instance_id}"
        try:
            query = {"requestId": delete_id(instance.off_since)}
            self._google.ask(f"end {instance_id}", Call(COMPUTE, "DELETE", place, query))
        except NotThere:
            self._absent.add(instance_id)
            return
        finally:
            self._snapshots.clear()

    # -- launching -------------------------------------------------------------------------------------------

    @cached_property
    def _project(self) -> str:
        return self._google.project(self._config.project)

    @cached_property
    def _launching(self) -> Launching:
        return Launching(self._google, self._project, self._config, self._clock)

    @cached_property
    def _catalogs(self) -> dict[str, Catalog]:
        return catalogs(self._google.aside, self._project, self._config, self._clock)

    def _catalog_of(self, offering: Offering) -> Catalog:
        if offering.region not in self._catalogs:
            raise CloudError(
                f"{offering} is not in any of the job's regions", hint="name its region under `resources` in the job"
            )
        return self._catalogs[offering.region]

    def _records_of(self, request: LaunchRequest) -> list[Record]:
        """
        Return Google's records of all instances that may belong to the request's token. Their names begin with the
        token's prefix, and end differently for each instance type.

        Raises:
            CloudUnavailable: Google cannot list the instances in the request's zone now. Other zones do not matter,
                because the request is only for this zone.
        """
        seen = look(self._google, self._project, request.run_uid)
        require_seen(seen, (request.offering.zone,))
        prefix = name_for(request).of_token
        return [record for name, record in seen.records.items() if name.startswith(prefix)]

    def _of_token(self, request: LaunchRequest, records: Iterable[Record]) -> Instance | None:
        """
        Return the instance that was launched with the request's token; None if there is none.

        Raises:
            LaunchTokenSpent: the instance has ended.
            CloudError: the instance differs from the request.
        """
        for instance in (each for each in map(self._instance, records) if each is not None):
            self._accepted.pop(request.token, None)
            if not instance.alive and instance.billed_from is None:
                continue  # its launch failed; a repeated request would fail in the same way
            if instance.offering.pool != request.offering.pool:
                raise CloudError(
                    f"the token of launch {request.launch} was already used for another offering: {instance.offering}"
                )
            if not instance.alive:
                raise LaunchTokenSpent(f"{instance.instance_id}, the instance of launch {request.launch}, has ended")
            return instance
        return None

    def _launched(self, request: LaunchRequest) -> Instance:
        """Return the instance that was just launched. While Google does not list it, its state is PENDING."""
        found = self._of_token(request, self._records_of(request))
        if found is not None:
            return found
        pending = Instance(
            instance_id=str(name_for(request)),
            token=request.token,
            run_uid=request.run_uid,
            launch=request.launch,
            offering=request.offering,
            state=InstanceState.PENDING,
            launched_at=self._clock.now(),
        )
        self._accepted[request.token] = (self._clock.monotonic(), pending)
        return pending

    def _not_listed_yet(self, request: LaunchRequest) -> Instance | None:
        """
        Return the requested instance if Google accepted the request so recently that its lists may not show the
        instance yet. Otherwise return None. Without this check, a repeated launch would request the instance a second
        time.
        """
        accepted_s, pending = self._accepted.get(request.token, (-inf, None))
        if self._clock.monotonic() - accepted_s < LISTED_WITHIN_S * self._clock.scale:
            return pending if pending is not None and pending.offering.pool == request.offering.pool else None
        self._accepted.pop(request.token, None)
        return None

    def _learn(self, catalog: Catalog, offering: Offering, error: CloudError) -> None:
        """
        React to a refused launch. If `error` shows that pools have no capacity, stop offering them for a while. If
        Google rejected the subnetwork or the image, forget the cached one; the next launch looks it up again.
        """
        match error:
            case Unsupported():
                catalog.leave_out(offering.pool)
            case StockedOut():
                catalog.leave_out_but(offering.pool, error.elsewhere)
            case AddressesExhausted():
                catalog.leave_out_region(offering)
            case BadImage():
                catalog.forget_image()
            case BadSurroundings():
                catalog.forget_surroundings()

    def _quota_error(self, offering: Offering, error: QuotaExceeded) -> CloudError:
        """
        Return the error to raise for a launch that a quota has refused. An instance that has just ended still counts
        against the quota for a while. If spotrun launched such an instance, waiting helps, so return CloudUnavailable.
        Otherwise return `error`.
        """
        since = self._clock.now() - QUOTA_HELD_FOR
        records = look(self._google, self._project, None).records.values()
        held = [each for each in map(self._instance, records) if each is not None]
        holding = [
            each.instance_id
            for each in held
            if each.offering.region == offering.region
            and each.billed_from is not None
            and (each.state is InstanceState.STOPPING or (each.ended_at is not None and each.ended_at >= since))
        ]
        if not holding:
            return error
        return CloudUnavailable(
            f"{error.message} (instances that just ended may still count against the quota: {', '.join(holding)})"
        )

    # -- remarks, and lists of instances ---------------------------------------------------------------------

    def _remarks(self) -> Iterator[str]:
        yield from (f"{name} is left out: {why}" for name, why in sorted(self._offered.left_out.items()))
        yield from (f"{zone} is left out: Google does not answer for it" for zone in self._blind())
        yield from (f"{instance_id} has {odd}" for instance_id, odd in sorted(self._odd.items()))
        yield from self._copied()
        yield from self._still_there()
        if abs(self._clock.ahead) > SKEW_WARNED:
            yield f"{in_words(self._clock.ahead, 'Google')}, and the run uses Google's clock"
        for catalog in self.__dict__.get("_catalogs", {}).values():
            yield from catalog.remarks

    def _copied(self) -> Iterator[str]:
        """
        Describe each instance to which a user has copied the labels of one of spotrun's. It is not the run's: the run
        neither waits for its end nor ends it, which the condition of the runner's role would not allow.
        """
        for name, zone in sorted({name: zone for each in self._copies.values() for name, zone in each.items()}.items()):
            command = f"gcloud compute instances delete {name} --zone {zone} --project {self._project}"
            yield f"{name} has a run's labels, but spotrun has not made it, and does not end or bill it: {command}"

    def _still_there(self) -> Iterator[str]:
        """Describe each instance that still exists long after Google accepted a request to delete it (G12)."""
        for name, end in sorted(self._ending.items()):
            waited_s = self._clock.monotonic() - end.since_s
            if waited_s > ENDS_WITHIN_S * self._clock.scale:
                yield f"{name} still exists {waited_s / 60:.0f} min after the request to end it{end.why_not}"

    def _blind(self) -> list[str]:
        zones = {zone for _, seen in self._snapshots.values() for zone in seen.unreachable}
        return sorted(zone for zone in zones if region_of(zone) in self._config.regions)

    def _snapshot(self, run_uid: str | None) -> InstanceListing:
        now_s = self._clock.monotonic()
        known = self._snapshots.get(run_uid)
        if known is None or now_s - known[0] >= SNAPSHOT_FOR_S * self._clock.scale:
            self._is_blind = True
            known = self._snapshots[run_uid] = (now_s, look(self._google, self._project, run_uid))
            self._is_blind = False
            self._copies[run_uid] = known[1].copies
        return known[1]

    def _instance(self, record: Record) -> Instance | None:
        found = instance_of(record, self._spot_history, self._known.get(record.name))
        self._odd.pop(record.name, None)
        if record.row is None:
            self._ending.pop(record.name, None)
        elif found is not None and (odd := odd_labels(record.row)):
            self._odd[record.name] = odd
        if found is not None and found.alive and record.row is None and record.name in self._absent:
            return None
        if found is not None and found.alive and found.billed_from is not None:
            self._known[record.name] = found
        return found

    def _spot_history(self, offering: Offering, until: datetime | None) -> Sequence[PriceSegment]:
        catalog = self._catalogs.get(offering.region)
        if catalog is None or offering.capacity_type is CapacityType.ON_DEMAND:
            return ()
        return catalog.spot_history(offering.instance_type, until)
