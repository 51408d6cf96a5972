"""The cloud `aws`, Amazon EC2. Implements the interface in spotrun.clouds.cloud."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.resources import files

from msgspec.structs import replace

from spotrun import address
from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.aws import secret_tags
from spotrun.clouds.aws.config import AwsConfig, config_of, in_small_letters, region_of
from spotrun.clouds.aws.notices import Ec2Notices
from spotrun.clouds.cloud import (
    Account,
    Cloud,
    Forward,
    RentalFlags,
    Shell,
    UsualStore,
    never_rented_kinds,
    secrets_elsewhere,
    secrets_of,
    way_inside,
    zone_elsewhere,
)
from spotrun.clouds.driver import CloudDriver
from spotrun.clouds.guards import Guards
from spotrun.clouds.identities import Identities, NoIdentities
from spotrun.clouds.nights import Nights
from spotrun.clouds.notices import NoticeSource
from spotrun.container.hosts import repository_of
from spotrun.doctor.finding import Finding
from spotrun.errors import CloudError, CloudNotInstalled, StoreError, needs_extra
from spotrun.folder.run_calls import Calls, RunnerCalls
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.run.billing import aws_rule
from spotrun.run.events import BillingRule
from spotrun.secrets.reference import PARAMETER, PARAMETERS, Reference
from spotrun.spec.image import PASSWORD
from spotrun.spec.model import AwsSpec, RunSpec
from spotrun.spec.strict import judged
from spotrun.store.port import Store
from spotrun.units import Unreadable

PLUGIN = "session-manager-plugin"
PLUGIN_HELP = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)


_ARM = re.compile(r"(a1|[a-z]+[0-9]+g[a-z]*|p6e-gb[0-9]+)[.].*")
"""
Types with Arm processors. Most have the letter g after the generation:
https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
"""


_IMAGE_ID = re.compile(r"ami-[0-9a-f]{8,17}")
"""Ids of EC2's resources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html"""
_NAMES = {
    "security_group": (
        "write its name: aws ec2 describe-security-groups --group-ids {} --query 'SecurityGroups[].GroupName'"
    ),
    "launch_template": (
        "write its name: aws ec2 describe-launch-templates --launch-template-ids {} "
        "--query 'LaunchTemplates[].LaunchTemplateName'"
    ),
}
"""The key of each name in place of which a user might write an id, with the command that shows the name."""


class Aws(Cloud):
    """
    EC2. A job's `aws` section names regions and instance types, and the machine image, network and role of each
    instance.
    """

    name = "aws"
    here = False
    simulated = False
    failed_starts = "boot/failed-"
    example_kind = "A10G:1"
    notice = timedelta(minutes=2)
    instead_of_envs = "name it under secrets instead: its value is read from the Parameter Store (`spotrun doctor aws`)"

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        def elsewhere(spec: RunSpec) -> Iterator[Unreadable]:
            return secrets_elsewhere(self, spec, lambda own: f"keep it in the Parameter Store, and write {own}")

        unknown = (_unknown_region, _unknown_region_of_zone, _unknown_regions)
        misspelled = (_misspelled_image, _misspelled_group, _misspelled_template)
        kinds = (*never_rented_kinds(self), _unlisted_type)
        return judged(spec, elsewhere, _too_many_secrets, _far_store, zone_elsewhere, *unknown, *misspelled, *kinds)

    def usual_region(self) -> str | None:
        try:
            from spotrun.clouds.aws.calls import usual_region
        except ModuleNotFoundError:
            return None
        return usual_region()

    def secret(self, name: str) -> Reference:
        return Reference(PARAMETER, PARAMETERS + name)

    def boot(self, spec: RunSpec) -> timedelta:
        """Return the usual boot time of a GPU instance whose machine image is a Deep Learning AMI."""
        return timedelta(seconds=90)

    def interrupts(self, spec: RunSpec) -> bool:
        return True

    def types_listed(self, spec: RunSpec) -> Sequence[str]:
        return spec.aws.instance_types

    def of_any_type(self, spec: RunSpec) -> RunSpec:
        return super().of_any_type(spec.model_copy(update={"aws": spec.aws.model_copy(update={"instance_types": ()})}))

    def never_rented(self, kind: str) -> Unreadable | None:
        if not _ARM.fullmatch(kind.lower()):
            return None
        return Unreadable(
            f"{kind} has Arm processors, and spotrun has no image and no packages for them",
            "name one with x86 processors, like g5.xlarge with a GPU or c7i.2xlarge without",
        )

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> CloudDriver:
        return _driver(config_of(spec.resources, spec.aws), clock)

    def guards(self, spec: RunSpec, clock: Clock) -> Guards:
        return _guards(self.regions(spec, RentalFlags()), clock)

    def identities(self, spec: RunSpec, clock: Clock) -> Identities:
        if spec.aws.instance_profile is not None:
            return NoIdentities()
        return _identities(self.regions(spec, RentalFlags()), clock, spec.secret_references.values(), _repository(spec))

    def require_named(self, spec: RunSpec) -> Sequence[str]:
        with _sdk():
            from spotrun.clouds.aws.named_resources import require_named
        return require_named(config_of(spec.resources, spec.aws), spec.checkpoint.uri, self.clock(spec))

    def put_right(self, clock: Clock, spec: RunSpec) -> None:
        """
        Correct `clock` before the run uses it. To do so, call AWS once: each of its answers contains the time, and
        thereby corrects the clock.
        """
        with contextlib.suppress(CloudError), _sdk():
            from spotrun.clouds.aws.account_checks import account_number
            from spotrun.clouds.aws.calls import Region

            account_number([Region(name, clock) for name in self.regions(spec, RentalFlags())])

    def furnish(self, store: Store) -> None:
        from spotrun.boot import upload

        upload.upload(store, files(__package__).joinpath("start.sh").read_bytes())

    def billing(self, spec: RunSpec) -> BillingRule:
        return aws_rule(spec.aws.volume_gb, self.regions(spec, RentalFlags()))

    def interruption_rates(self, spec: RunSpec) -> dict[str, str]:
        if spec.aws.advisor is None:
            return {}
        from spotrun.clouds.aws.advisor import bands_known

        config = config_of(spec.resources, spec.aws)
        return bands_known(spec.aws.advisor, config.regions, config.instance_types, system_clock())

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        return [Ec2Notices.of(environment, clock)]

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """Return a shell through Session Manager, which needs no open port."""
        place = ("--target", instance.instance_id, "--region", instance.offering.region)
        return Shell(
            ("aws", "ssm", "start-session", *place),
            needs={
                "aws": "pip install awscli, or see https://aws.amazon.com/cli/",
                PLUGIN: f"see {PLUGIN_HELP}",
            },
            advice=way_inside(spec) + "not connected? deploy infra/aws/account.yaml with SessionManager=enabled",
        )

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        """
        Forward ports without opening a shell. Session Manager needs a separate session for each port. All of these
        sessions end when the user ends the command.
        """
        shell = self.shell(spec, instance)
        sessions = [(*shell.command, *_leading(one)) for one in forwards]
        if len(sessions) == 1:
            return shell._replace(command=sessions[0])
        begun = " ".join(f'{shlex.join(words)} & all="$all $!";' for words in sessions)
        # A signal that arrives between the start of a session and the note of its number waits until all are noted.
        script = f"trap 'kill $all' EXIT; trap over=1 INT TERM; {begun} trap exit INT TERM; [ $over ] || wait"
        return shell._replace(command=("sh", "-c", script))

    def console(self, instance: Instance) -> str | None:
        """
        Return the console output, which EC2 keeps for about an hour after an instance's end; None if EC2 has no output
        yet.
        """
        with _sdk():
            from spotrun.clouds.aws.calls import Region
            from spotrun.clouds.aws.consoles import console_of
        return console_of(Region(instance.offering.region, system_clock()).aside, instance.instance_id)

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        raise CloudError(
            f"{instance_id} is on aws, where spotrun cannot interrupt instances",
            hint="AWS Fault Injection Service can send a spot interruption: aws:ec2:send-spot-instance-interruptions",
        )

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        everywhere, clock = in_small_letters(regions) or _without_job().regions, system_clock()
        driver = _driver(AwsConfig(regions=everywhere), clock)
        return Account(driver, _guards(everywhere, clock), _identities(everywhere, clock))

    def require_regions(self, regions: Sequence[str]) -> None:
        self._require(in_small_letters(regions))

    def _require(self, regions: Iterable[str]) -> None:
        with _sdk():
            from spotrun.clouds.aws.calls import require_regions
        require_regions(regions)

    def offers(self, wish: RentalFlags) -> Quotes:
        with _sdk():
            from spotrun.clouds.aws.advisor import read_advice, with_bands
            from spotrun.clouds.aws.quotes import read_quotes
        regions = in_small_letters(wish.regions) or _without_job().regions
        self._require(regions)
        config = AwsConfig(regions=regions, instance_types=in_small_letters(wish.instance_types))
        clock = system_clock()
        advice = None if wish.rates is None else read_advice(wish.rates, clock)
        found = read_quotes(config, clock, wish.accelerators)
        return found if advice is None else with_bands(found, advice)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        with _sdk():
            from spotrun.clouds.aws.quotes import read_quotes
        config = replace(config_of(spec.resources, spec.aws), instance_types=tuple(types))
        return read_quotes(config, self.clock(spec), ())

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        with _sdk():
            from spotrun.clouds.aws.calls import Region
            from spotrun.clouds.aws.doctor import AwsDoctor
        wanted, clock, secrets = (
            wish.over(spec, Aws.name, like=Aws.example_kind),
            system_clock(),
            secrets_of(self, spec),
        )
        config = config_of(wanted, _around(spec, wish))
        store = wish.store if spec is None else spec.checkpoint.uri
        self._require(config.regions)
        for region in config.regions:
            doctor = AwsDoctor(Region(region, clock), config, wanted, clock, secrets, _repository(spec), store or "")
            for finding in doctor.findings():
                where = "" if len(config.regions) == 1 else f" in {region}"
                yield replace(finding, name=f"{finding.name}{where}")

    def nights(self, region: str, spec: RunSpec) -> Nights:
        with _sdk():
            from spotrun.clouds.aws.calls import Region
            from spotrun.clouds.aws.nights import AwsNights
        self._require((region,))
        return AwsNights(Region(region, system_clock()))

    def runner_calls(self, calls: Calls) -> RunnerCalls:
        from spotrun.clouds.aws.control_plane import prices, usd_of

        return RunnerCalls(calls, usd_of(calls), prices().as_of)

    def regions(self, spec: RunSpec | None, wish: RentalFlags) -> tuple[str, ...]:
        return config_of(wish.over(spec, Aws.name, like=Aws.example_kind), _around(spec, wish)).regions

    def usual_store(self, spec: RunSpec | None, wish: RentalFlags) -> UsualStore | None:
        with _sdk():
            from spotrun.clouds.aws.calls import Region
            from spotrun.clouds.aws.usual_store import usual_store
        regions, clock = self.regions(spec, wish), system_clock()
        self._require(regions)
        return usual_store([Region(name, clock) for name in regions])

    def reachable(self, store: str) -> str:
        if not isinstance(address.parse(store), address.BucketAddress):
            raise StoreError(
                f"{store} is a folder of this machine, which instances cannot reach",
                hint="--store s3://BUCKET/runs, or checkpoint.uri in the job (make a bucket: infra/aws/README.md)",
            )
        return store


CLOUD = Aws()


def _too_many_secrets(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.aws.instance_profile is None:
        yield from secret_tags.refusals(spec.secret_references.values())


def _far_store(spec: RunSpec) -> Iterator[Unreadable]:
    uri = spec.checkpoint.uri
    if not uri.startswith("s3://"):
        advice = "add --store s3://BUCKET/runs, or write the address as checkpoint.uri or SPOTRUN_STORE"
        yield Unreadable(f"{uri} cannot be reached from instances on aws", advice, at=("checkpoint", "uri"))


def _unlisted_type(spec: RunSpec) -> Iterator[Unreadable]:
    one, types = spec.resources.instance_type, spec.aws.instance_types
    if one and types and one not in types:
        advice = "remove one of them"
        yield Unreadable(f"does not list resources.instance_type, {one}", advice, at=("aws", "instance_types"))


def _unknown_region(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.region:
        yield from _misnamed(spec.resources.region, ("resources", "region"))


def _unknown_region_of_zone(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.zone:
        yield from _misnamed(region_of(spec.resources.zone), ("resources", "zone"))


def _unknown_regions(spec: RunSpec) -> Iterator[Unreadable]:
    for index, name in enumerate(spec.aws.regions):
        yield from _misnamed(name, ("aws", "regions", index))


def _misnamed(region: str, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    """
    Yield an error if AWS does not have the region. Without the SDK the regions are not known: then the run, which needs
    the SDK, is refused before it begins.
    """
    try:
        from spotrun.clouds.aws.calls import unknown_region
    except ModuleNotFoundError:
        return
    if (unknown := unknown_region(region.lower())) is not None:
        yield Unreadable(unknown.message, unknown.suggestion, at=at)


def _misspelled_image(spec: RunSpec) -> Iterator[Unreadable]:
    found = spec.aws.image_id
    if found is not None and not _IMAGE_ID.fullmatch(found):
        advice = "write an id like ami-0123456789abcdef0, or name an SSM parameter under image_parameter"
        yield Unreadable(f"{found} is not the id of a machine image", advice, at=("aws", "image_id"))


def _misspelled_group(spec: RunSpec) -> Iterator[Unreadable]:
    return _id_for_name("security_group", spec.aws.security_group, "sg-")


def _misspelled_template(spec: RunSpec) -> Iterator[Unreadable]:
    return _id_for_name("launch_template", spec.aws.launch_template or "", "lt-")


def _id_for_name(key: str, text: str, prefix: str) -> Iterator[Unreadable]:
    if re.fullmatch(f"{prefix}[0-9a-f]{{8,17}}", text):
        yield Unreadable(f"{text} is an id, not a name", _NAMES[key].format(text), at=("aws", key))


def _sdk() -> AbstractContextManager[None]:
    """Return a context for imports that need the extra `aws`. It turns an ImportError into CloudNotInstalled."""
    return needs_extra("aws", "aws", CloudNotInstalled)


def _leading(one: Forward) -> tuple[str, ...]:
    """Return the arguments of `start-session` that forward a port."""
    ports = f"portNumber={one.there},localPortNumber={one.here}"
    return ("--document-name", "AWS-StartPortForwardingSession", "--parameters", ports)


def _driver(config: AwsConfig, clock: Clock) -> CloudDriver:
    with _sdk():
        from spotrun.clouds.aws.driver import AwsDriver
    return AwsDriver(config, clock)


def _guards(regions: Sequence[str], clock: Clock) -> Guards:
    with _sdk():
        from spotrun.clouds.aws.guard import AwsGuards
    return AwsGuards(regions, clock)


def _identities(
    regions: Sequence[str], clock: Clock, secrets: Iterable[Reference] = (), repository: str = ""
) -> Identities:
    with _sdk():
        from spotrun.clouds.aws.calls import Region
        from spotrun.clouds.aws.run_role import CheckedRunRoles
    first, *others = (Region(name, clock) for name in regions)
    return CheckedRunRoles(first, clock, others, secrets, repository)


def _repository(spec: RunSpec | None) -> str:
    """
    Return the ECR repository that the run's role needs access to, so that instances can pull the job's container image.
    Return "" if the image is not in ECR, or if the job has a password for it.
    """
    if spec is None or spec.image is None or PASSWORD in spec.secrets:
        return ""
    return repository_of(spec.image)


def _without_job() -> AwsSpec:
    """Return the settings of a job that names nothing, in the region of the user's settings."""
    region = CLOUD.usual_region()
    return AwsSpec() if region is None else AwsSpec(regions=(region.lower(),))


def _around(spec: RunSpec | None, wish: RentalFlags) -> AwsSpec:
    aws = _without_job() if spec is None else spec.aws
    if wish.image is None:
        return aws
    if wish.image.startswith("/"):
        return aws.model_copy(update={"image_id": None, "image_parameter": wish.image})
    return aws.model_copy(update={"image_id": wish.image})
