"""
Pins two values of a job when its run begins, so that later changes do not affect the run: the digest of the job's
container image (instead of its tag) and its baseline price.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from spotrun.clouds.registry import cloud_of
from spotrun.container.engine import find_engine
from spotrun.container.hosts import cloud_behind
from spotrun.container.logins import login_to
from spotrun.container.registry import (
    Credentials,
    ImageRefused,
    NotForThisUser,
    RegistryUnavailable,
    find,
    this_machine,
)
from spotrun.errors import SpecInvalid, StoreUnavailable
from spotrun.offering import CapacityType
from spotrun.secrets.reference import SecretUnreadable
from spotrun.secrets.values import read_values
from spotrun.spec.image import CREDENTIALS, Image
from spotrun.spec.model import ResourcesSpec, RunSpec

INSTANCES = "x86_64"
"""The processor architecture of all instances that spotrun rents."""
NOT_LOOKED_AT = "the image was not checked"
_WRITE_DIGEST = "write the digest after the tag: docker:REPO/NAME:TAG@sha256:…"


def with_baseline_price(spec: RunSpec) -> RunSpec:
    """
    Return the job with a fixed baseline price. If `report.baseline` names an instance type, the type's current
    on-demand price replaces the name; otherwise the job is returned as it is.

    Raises:
        SpecInvalid: the cloud does not rent this type out on demand in the job's region.
        CloudError: the cloud does not answer.
    """
    kind = spec.report.baseline_type
    if kind is None or spec.report.baseline_usd_per_hour is not None:
        return spec
    resources = spec.resources.model_copy(update={"instance_type": kind})
    elsewhere = spec.model_copy(update={"resources": resources})
    cloud = cloud_of(elsewhere)
    offered = cloud.driver(elsewhere, cloud.clock(spec)).offerings(must_see=())
    region = spec.resources.region
    here = [each for each in offered if region is None or region.casefold() == each.region.casefold()]
    on_demand = [each for each in here if each.capacity_type is CapacityType.ON_DEMAND]
    price = min((each.price_usd_per_hour for each in on_demand if each.instance_type == kind), default=None)
    if price is None:
        nearest = get_close_matches(kind, {each.instance_type for each in on_demand}, 1)
        raise SpecInvalid(
            f"{spec.resources.cloud} does not offer {kind} in the job's regions",
            hint=f"did you mean {nearest[0]}?" if nearest else "see `spotrun offers`, or write US dollars per hour",
            key=("report", "baseline"),
        )
    report = spec.report.model_copy(update={"baseline_usd_per_hour": price})
    return spec.model_copy(update={"report": report})


def with_image(spec: RunSpec, environment: Mapping[str, str]) -> tuple[RunSpec, list[str]]:
    """
    Return the job with the digest of its container image, and notes on checks that were not possible.

    The digest comes from the image's registry. But if the training runs on this machine, and the image is already here,
    its digest here is used, and the image need not be in a registry.

    Raises:
        SpecInvalid: the image does not exist, this user is not allowed to read it, or it was built for other processors
            than the instances have.
        NotInstalled: this machine has no container engine, and the job would train on this machine.
        RegistryUnavailable: the job names the image by a tag, and the registry does not give the tag's digest; or
            the job trains on this machine, which does not have the image and cannot reach its registry.
    """
    image, here = spec.image, spec.cloud.here
    if image is None:
        return spec, []
    if spec.resources.home is not None:
        find_engine()
    if here and (digest := _digest_here(image)):
        return spec.with_image(image.with_digest(digest)), []
    theirs = cloud_behind(image.host)
    own = spec.resources.cloud == theirs  # instances have an identity in this registry
    try:
        login, why_not = _login(spec, environment, theirs if here or own else "")
        if image.digest and why_not:
            return spec, [f"{NOT_LOOKED_AT}: {why_not}"]
        found = find(image, login, this_machine() if here else INSTANCES)
    except RegistryUnavailable as error:
        if here and (image.is_local or not image.digest):
            hint = f"build or pull the image on this machine, as {image.name}, or check that the registry runs"
            raise RegistryUnavailable(f"this machine has no {image}, and {error.message}", hint=hint) from error
        if not image.digest:
            raise
        return spec, [f"{NOT_LOOKED_AT}: {error.one_line}"]
    except NotForThisUser as error:
        if here:
            raise
        if not own:
            hint = f"instances on {spec.resources.cloud} have no identity in this registry: use an image in another"
            raise ImageRefused(error.message, hint=hint, key=error.key) from error
        # This user is not allowed to read the image, but the instances log in with another identity, which may be
        # allowed to read it. If the job gives the image's digest, the run can start, and the user gets a note. If the
        # job gives a tag, the run cannot start, because its digest would have to be looked up here.
        if not image.digest:
            hint = f"{error.hint}; or {_WRITE_DIGEST}"
            raise RegistryUnavailable(f"the digest of the image is not known: {error.message}", hint=hint) from error
        return spec, [f"{NOT_LOOKED_AT}: {error.message}"]
    size = "" if found.size_bytes is None else f", {found.size_bytes / 1e6:,.0f} MB to pull"
    return spec.with_image(image.with_digest(found.digest)), [f"image {image.name} is {found.digest}{size}"]


def with_image_here(spec: RunSpec, environment: Mapping[str, str]) -> RunSpec:
    """
    Return the job with its image's digest, for a command that tries the job on this machine. The errors are those of
    `with_image`.
    """
    resources = ResourcesSpec(image_id=spec.resources.image_id)
    found, _ = with_image(spec.model_copy(update={"resources": resources}), environment)
    return spec if found.image is None else spec.with_image(found.image)


def _digest_here(image: Image) -> str:
    """
    Return the digest of the image on this machine; "" if this machine does not have the image.

    Raises:
        NotInstalled: this machine has no container engine.
    """
    engine = find_engine()
    if image.digest:
        return image.digest if engine.has(image) else ""
    return engine.digest_of(image)


def _login(spec: RunSpec, environment: Mapping[str, str], cloud: str) -> tuple[Credentials | None, str]:
    """
    Return the login to the image's registry (None if no login is needed or known), and the reason why this machine
    cannot ask the registry. The reason is "" unless only instances can read the job's credentials.

    If the job has no credentials, the user's identity on `cloud` is used as the login, unless `cloud` is "".

    Raises:
        RegistryUnavailable: the cloud does not answer; or the job names the image by a tag, and the credentials for
            looking up its digest cannot be read on this machine.
        NotForThisUser: this machine has no identity for the registry.
    """
    references = {name: place for name, place in spec.secret_references.items() if name in CREDENTIALS}
    image, here = spec.image, spec.cloud.here
    assert image is not None
    try:
        values = read_values(references, environment, rights_are_new=False)
    except (SecretUnreadable, StoreUnavailable) as error:
        if here:
            raise
        if not image.digest:
            what = f"the digest of the image is not known: {error.message}"
            raise RegistryUnavailable(what, hint=_WRITE_DIGEST) from error
        return None, error.message
    return login_to(image, spec.envs, values, cloud), ""
