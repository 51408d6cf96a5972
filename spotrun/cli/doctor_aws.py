"""`spotrun doctor aws`: from the flags and the job to what the doctor looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spotrun.doctor.aws import AwsDoctor
    from spotrun.secrets.reference import Reference
    from spotrun.spec.model import AwsSpec, ResourcesSpec, RunSpec


class AwsFlags(NamedTuple):
    """What the command line says about AWS; it wins over the job."""

    region: str | None = None
    accelerators: str | None = None
    instance_type: str | None = None
    image: str | None = None


def aws_doctors(spec: RunSpec | None, flags: AwsFlags) -> list[AwsDoctor]:
    """
    Who looks at the account, one for each region that a launch would look at.

    Raises:
        SpecInvalid: a flag cannot be read.
        CloudError: AWS's library is not installed.
    """
    from spotrun.cli.wiring import aws_config
    from spotrun.clock import system_clock
    from spotrun.errors import CloudError

    try:
        from spotrun.clouds.aws.calls import Region
        from spotrun.doctor.aws import AwsDoctor
    except ModuleNotFoundError as error:
        raise CloudError(f"aws needs the Python package {error.name}", hint="pip install 'spotrun[aws]'") from error
    wanted, clock = _wanted(spec, flags), system_clock()
    config = aws_config(wanted, _around(spec, flags))
    secrets = _secrets(spec)
    return [AwsDoctor(Region(name, clock), config, wanted, clock, secrets) for name in config.regions]


def _secrets(spec: RunSpec | None) -> dict[str, Reference]:
    """A job that is rehearsed on the local cloud is asked about as if it were for aws."""
    from spotrun.secrets.reference import ENVIRONMENT, resolved

    found = {} if spec is None else {name: resolved(name, text, "aws") for name, text in spec.secrets.items()}
    return {name: reference for name, reference in found.items() if reference.kind != ENVIRONMENT}


def _wanted(spec: RunSpec | None, flags: AwsFlags) -> ResourcesSpec:
    from spotrun.errors import SpecInvalid
    from spotrun.spec.model import ResourcesSpec
    from spotrun.spec.values import read_accelerators
    from spotrun.units import Unreadable

    changes: dict[str, object] = {"region": flags.region, "instance_type": flags.instance_type}
    if flags.accelerators is not None:
        try:
            changes["accelerators"] = read_accelerators(flags.accelerators)
        except Unreadable as error:
            raise SpecInvalid(f"--accelerators: {error}", hint="name one kind, like A10G:1") from error
    given = {name: value for name, value in changes.items() if value is not None}
    resources = ResourcesSpec() if spec is None else spec.resources
    return resources.model_copy(update={"cloud": "aws", **given})


def _around(spec: RunSpec | None, flags: AwsFlags) -> AwsSpec:
    from spotrun.spec.model import AwsSpec

    aws = AwsSpec() if spec is None else spec.aws
    if flags.image is None:
        return aws
    if flags.image.startswith("/"):
        return aws.model_copy(update={"image_id": None, "image_parameter": flags.image})
    return aws.model_copy(update={"image_id": flags.image})


def reachable(store: str) -> str:
    """
    The store, which has to be in a bucket.

    Raises:
        StoreError: an instance could not reach it.
    """
    from spotrun import address
    from spotrun.address import BucketAddress
    from spotrun.errors import StoreError

    if not isinstance(address.parse(store), BucketAddress):
        raise StoreError(
            f"{store} is a folder of this machine, which no instance reaches",
            hint="--store s3://BUCKET/runs, or checkpoint.uri in the job (infra/aws/README.md makes a bucket)",
        )
    return store
