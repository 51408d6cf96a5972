"""The CloudDriver for EC2."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from spotrun.clock import Clock
from spotrun.clouds.aws import request as tag
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.description import cannot_start, instance_of, odd_tags
from spotrun.clouds.aws.disk_key import default_key
from spotrun.clouds.aws.error_codes import BadLaunchTemplate, NoSuchInstance, TokenReused, VcpusInUse
from spotrun.clouds.aws.network import describe_image
from spotrun.clouds.aws.prices import SpotPool
from spotrun.clouds.aws.quota_headroom import quota_in_use
from spotrun.clouds.aws.quotas import Quota, quota_of
from spotrun.clouds.aws.request import run_instances
from spotrun.clouds.aws.termination_times import TerminationTimes
from spotrun.clouds.clock_skew import SKEW_WARNED, in_words
from spotrun.clouds.driver import require_one
from spotrun.clouds.error_kinds import BadImage, BadSurroundings, Unsupported
from spotrun.clouds.regions import Regions, regions_of
from spotrun.clouds.ttl_cache import TtlCache
from spotrun.errors import CloudError, CloudUnavailable, LaunchTokenSpent, QuotaExceeded
from spotrun.instance import Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import CapacityType, Offering

SNAPSHOT_FOR_S = 1.0
"""
Seconds for which an answer about a run's instances in a region is reused, because AWS allows an account only few
Describe calls (P15).
"""
QUOTA_HELD_FOR = timedelta(minutes=5)
"""Time for which an instance that has ended still counts against the quota (P5)."""
KEY_READ_FOR_S = 600.0
"""Seconds for which an answer about EBS's default key is reused, even if the answer is a refusal."""
QUOTA_TOLD_FOR_S = 60.0
"""
Seconds for which an answer about a quota is reused. If the quota is exhausted, EC2 refuses launches in all of the
quota's pools, one after another. The message about each refusal quotes the quota's value.
"""
LISTED_WITHIN_S = 900.0
"""
Seconds within which EC2 lists an instance that it has launched. EC2 is eventually consistent, and its pages promise no
limit: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
"""
_ID_PATTERN = re.compile(r"i-[0-9a-f]{8,17}")
Filter = dict[str, Any]


class AwsDriver:
    """Rents EC2 instances in the configured regions. All facts about them come from EC2 and from their tags."""

    name = "aws"
    rations_calls = True

    def __init__(self, config: AwsConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._regions = {name: Region(name, clock) for name in config.regions}
        self._catalogs = {name: Catalog(region.aside, config, clock) for name, region in self._regions.items()}
        self._termination_times = {name: TerminationTimes(region.aside) for name, region in self._regions.items()}
        self._offered = Regions(config.regions, clock)
        self._listed = Regions(config.regions, clock)
        self._snapshots: dict[tuple[str, str | None], tuple[float, list[Instance]]] = {}
        self._odd_tags: dict[str, str] = {}
        self._homes: dict[str, str] = {}
        self._accepted: dict[str, tuple[float, Instance]] = {}
        """The instances that EC2 has launched and does not list yet, each with the time of the launch."""
        self._pending_at: dict[str, datetime] = {}
        self._quotas: dict[tuple[str, Quota], TtlCache[str]] = {}
        self._keys = {
            name: TtlCache(clock, KEY_READ_FOR_S, partial(_key_of, region.aside))
            for name, region in self._regions.items()
        }

    # -- CloudDriver -----------------------------------------------------------------------------------------

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(self._odd())

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        found = self._offered.ask(self._offered_in, must_see)
        return [offering for offered in found.values() for offering in offered]

    def launch(self, request: LaunchRequest) -> Instance:
        require_one(request, self.name)
        region = self._region_of(request.offering)
        try:
            found = self._run(region, request)
        except TokenReused as error:
            return self._launched_before(region, request, error)
        except Unsupported:
            self._catalogs[region.name].leave_out(request.offering.pool)
            raise
        except BadImage:
            self._catalogs[region.name].forget_image()
            raise
        except BadLaunchTemplate:
            self._catalogs[region.name].forget_launch_template()
            raise
        except BadSurroundings:
            self._catalogs[region.name].forget_network()
            raise
        except QuotaExceeded as error:
            raise self._quota_error(region, request.offering, error) from error
        finally:
            self._snapshots.clear()
        launched = instance_of(found, region.name, (), self._clock.now())
        self._accepted[launched.instance_id] = (self._clock.monotonic(), launched)
        return launched

    def describe(self, instance_id: str) -> Instance | None:
        """
        Search all regions for the instance, and return it; None if no region has it.

        Raises:
            CloudError: a region did not answer, and no other region has the instance.
        """
        if _ID_PATTERN.fullmatch(instance_id) is None:
            return None
        asked = [*_of_run(None), {"Name": "instance-id", "Values": [instance_id]}]
        unseen: CloudError | None = None
        for region in self._regions.values():
            try:
                found = self._look(region, asked)
            except CloudError as error:
                unseen = unseen or error
                continue
            if found:
                return found[0]
        if unseen is not None:
            raise unseen
        return None

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        regions = regions_of(must_see, self._regions)

        def listed_in(name: str) -> list[Instance]:
            region = self._regions[name]
            needed = regions is None or name in regions
            return self._snapshot(region if needed else region.aside, run_uid)

        found = self._listed.ask(listed_in, regions)
        listed = [instance for instances in found.values() for instance in instances]
        return [*listed, *self._not_listed_yet(run_uid, {each.instance_id for each in listed})]

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        history = self._catalogs[offering.region].spot_history(since)
        return history.get(SpotPool(offering.instance_type, offering.zone), ())

    def terminate(self, instance_id: str) -> None:
        if _ID_PATTERN.fullmatch(instance_id) is None:
            return
        if instance_id not in self._homes:
            self.describe(instance_id)
        home = self._homes.get(instance_id)
        for region in self._regions.values() if home is None else [self._regions[home]]:
            self._terminate_in(region, instance_id)

    # -- calls of EC2 ----------------------------------------------------------------------------------------

    def _region_of(self, offering: Offering) -> Region:
        if offering.region not in self._regions:
            raise CloudError(
                f"{offering} is not in any of the job's regions", hint="name its region under `resources` in the job"
            )
        return self._regions[offering.region]

    def _run(self, region: Region, request: LaunchRequest) -> dict[str, Any]:
        """Call RunInstances. Repeating the call is harmless, because it has the same token and parameters."""
        image = describe_image(region, request.offering.image)
        group = self._catalogs[region.name].network.group
        parameters = run_instances(request, self._config, image, group)
        answer = region.ask(f"launch {request.offering}", lambda: region.ec2.run_instances(**parameters))
        found: dict[str, Any] = answer["Instances"][0]
        return found

    def _launched_before(self, region: Region, request: LaunchRequest, error: TokenReused) -> Instance:
        """
        Return the instance that an earlier call launched with the same token. Each launch of a run has its own token,
        so this is the instance of the request, even if its image is older. Raise `error` if the instance is not in the
        request's pool.
        """
        seen = sorted(self._look(region, _of_run(request.run_uid)), key=lambda each: each.launched_at)
        mine = [each for each in seen if each.token == request.token]
        if not mine or any(each.offering.pool != request.offering.pool for each in mine):
            raise error
        if not mine[0].alive:
            raise LaunchTokenSpent(f"{mine[0].instance_id}, the instance of launch {request.launch}, is terminated")
        return mine[0]

    def _quota_error(self, region: Region, offering: Offering, error: QuotaExceeded) -> CloudError:
        """
        Return the error to raise for a launch that a quota has refused. If one of spotrun's instances has just ended,
        return CloudUnavailable: the instance still counts against the quota for a while, so waiting helps. Otherwise
        return QuotaExceeded.
        """
        since = self._clock.now() - QUOTA_HELD_FOR
        quota = quota_of(offering.instance_type, offering.capacity_type)
        holding = [
            each.instance_id
            for each in self._look(region, _of_run(None))
            if quota_of(each.offering.instance_type, each.offering.capacity_type) == quota
            and (each.state is InstanceState.STOPPING or (each.ended_at is not None and each.ended_at >= since))
        ]
        if holding:
            return CloudUnavailable(
                f"{error.message} (instances that just ended may still count against the quota: {', '.join(holding)})"
            )
        told = self._told_of(region, quota) if isinstance(error, VcpusInUse) else ""
        return QuotaExceeded(f"{error.message}; {told}", hint=error.hint) if told else error

    def _told_of(self, region: Region, quota: Quota | None) -> str:
        """
        Describe the quota: its value, and the instances that count most against it. Return "" if the quota is unknown
        or the caller is not allowed to read it.
        """
        if quota is None:
            return ""

        def read() -> str:
            return quota_in_use(region, quota, {kind.name: kind.cpus for kind in catalog.types.values()})

        catalog = self._catalogs[region.name]
        try:
            return self._quotas.setdefault((region.name, quota), TtlCache(self._clock, QUOTA_TOLD_FOR_S, read)).get()
        except CloudError:
            return ""  # the launch's refusal is reported in any case

    def _terminate_in(self, region: Region, instance_id: str) -> None:
        def call() -> Any:
            return region.ec2.terminate_instances(InstanceIds=[instance_id])

        try:
            region.ask(f"terminate {instance_id}", call)
        except NoSuchInstance:
            return  # either it is gone, or it is too new to be found; a runner that lists it later ends it
        finally:
            self._snapshots.clear()

    def _offered_in(self, name: str) -> list[Offering]:
        """
        Return a region's offerings, or an empty list while the region's instances cannot be listed. Without that list,
        spotrun could not find an instance whose launch got no answer.
        """
        return [] if name in self._listed.left_out else [*self._catalogs[name].offerings()]

    # -- remarks, and lists of instances ---------------------------------------------------------------------

    def _odd(self) -> Iterator[str]:
        left_out = self._offered.left_out | self._listed.left_out
        yield from (f"{name} is left out: {why}" for name, why in sorted(left_out.items()))
        yield from (f"{instance_id} has {odd}" for instance_id, odd in sorted(self._odd_tags.items()))
        if abs(self._clock.ahead) > SKEW_WARNED:
            yield f"{in_words(self._clock.ahead, 'AWS')}, and the run uses AWS's clock"
        for catalog in self._catalogs.values():
            yield from catalog.remarks

    def _snapshot(self, region: Region, run_uid: str | None) -> list[Instance]:
        now_s, asked = self._clock.monotonic(), (region.name, run_uid)
        known = self._snapshots.get(asked)
        if known is None or now_s - known[0] >= SNAPSHOT_FOR_S * self._clock.scale:
            known = self._snapshots[asked] = (now_s, self._look(region, _of_run(run_uid)))
        return known[1]

    def _not_listed_yet(self, run_uid: str | None, listed: Collection[str]) -> list[Instance]:
        """
        Return the instances that RunInstances has launched, and that EC2 does not list so far. The list can be older
        than the answer, and a run that completes in the meantime still has to record them.
        """
        since_s = self._clock.monotonic() - LISTED_WITHIN_S * self._clock.scale
        self._accepted = {
            name: known for name, known in self._accepted.items() if name not in listed and known[0] > since_s
        }
        return [each for _, each in self._accepted.values() if run_uid in (None, each.run_uid)]

    def _look(self, region: Region, filters: Iterable[Filter]) -> list[Instance]:
        """
        Return the instances that match `filters`. This makes one call to EC2, and a second one, for prices, if there
        are spot instances among them.
        """
        reservations = region.pages(region.ec2, "describe_instances", "Reservations", Filters=[*filters])
        rows = [row for reservation in reservations for row in reservation["Instances"]]
        spot = [row["LaunchTime"] for row in rows if row.get("InstanceLifecycle") == CapacityType.SPOT]
        history = self._catalogs[region.name].spot_history(min(spot)) if spot else {}
        self._homes |= {row["InstanceId"]: region.name for row in rows}
        self._odd_tags |= {row["InstanceId"]: odd for row in rows if (odd := odd_tags(row))}
        now = self._clock.now()
        ends = self._termination_times[region.name].of(rows, now)
        self._pending_at |= {row["InstanceId"]: now for row in rows if row["State"]["Name"] == "pending"}
        return [
            instance_of(
                row,
                region.name,
                history.get(_pool(row), ()),
                ends.get(row["InstanceId"], now),
                self._pending_at.get(row["InstanceId"]),
                self._keys[region.name].get() if cannot_start(row) else None,
            )
            for row in rows
        ]


def _key_of(region: Region) -> str:
    """
    Return EBS's default key, which may explain why an instance ended. Return "" if the key cannot be read: the driver
    must report the end even then.
    """
    try:
        return default_key(region)
    except CloudError:
        return ""


def _of_run(run_uid: str | None) -> list[Filter]:
    """
    Return the filters with which EC2 lists only the instances of one run; without `run_uid`, of all runs. The account
    may have thousands of other instances.
    """
    if run_uid is None:
        return [{"Name": "tag-key", "Values": [tag.RUN]}]
    return [{"Name": f"tag:{tag.RUN}", "Values": [run_uid]}]


def _pool(row: dict[str, Any]) -> SpotPool:
    return SpotPool(row["InstanceType"], row["Placement"]["AvailabilityZone"])
