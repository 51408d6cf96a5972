"""Pins the container image of a job to its digest."""

from __future__ import annotations

from collections.abc import Mapping

from spotrun.clouds.registry import cloud_of
from spotrun.container import hosts
from spotrun.container.engine import find_engine
from spotrun.container.logins import login_to
from spotrun.container.registry import (
    Credentials,
    ImageRefused,
    NotForThisUser,
    RegistryUnavailable,
    credentials_of,
    find,
    this_machine,
)
from spotrun.errors import (
    StoreUnavailable,
)
from spotrun.secrets.reference import SecretUnreadable
from spotrun.secrets.values import read_values
from spotrun.spec.image import CREDENTIALS, Image
from spotrun.spec.model import ResourcesSpec, RunSpec

INSTANCES = "x86_64"
"""The processors of all instances that the clouds rent out to us."""
NOT_LOOKED_AT = "the image was not looked at"
_WRITE_DIGEST = "write the digest behind the tag: docker:REPO/NAME:TAG@sha256:…"


def with_image(spec: RunSpec, environment: Mapping[str, str]) -> tuple[RunSpec, list[str]]:
    """
    Return the job with the digest of its container image; and notes on that.

    An image that this very machine has, and trains in, need be in no registry.

    Raises:
        SpecInvalid: there is no such image, or not for this user, or not for the processors of instances.
        NotInstalled: this machine would run it, or does so while it is free, and has no engine for that.
        RegistryUnavailable: the digest of a tag is unknown, or this machine, which would train in it, has neither the
        image nor its registry.
    """
    image, here = spec.image, cloud_of(spec).here
    if image is None:
        return spec, []
    if spec.resources.home is not None:
        find_engine()
    if here and (digest := _digest_here(image)):
        return spec.with_image(image.with_digest(digest)), []
    try:
        login, why_not = _login(spec, environment)
        if image.digest and why_not:
            return spec, [f"{NOT_LOOKED_AT}: {why_not}"]
        found = find(image, login, this_machine() if here else INSTANCES)
    except RegistryUnavailable as error:
        if here and (image.is_local or not image.digest):
            hint = f"build or pull it here, as {image.name}, or see whether the registry runs"
            raise RegistryUnavailable(f"this machine has no {image}, and {error.message}", hint=hint) from error
        if not image.digest:
            raise
        return spec, [f"{NOT_LOOKED_AT}: {error.one_line}"]
    except NotForThisUser as error:
        if here:
            raise
        if not _logs_in(spec, image):
            hint = f"instances on {spec.resources.cloud} have no identity there: name an image of another registry"
            raise ImageRefused(error.message, hint=hint, key=error.key) from error
        # instances have another identity than the launching user
        if not image.digest:
            hint = f"{error.hint}; or {_WRITE_DIGEST}"
            raise RegistryUnavailable(f"the digest of the image is not known: {error.message}", hint=hint) from error
        return spec, [f"{NOT_LOOKED_AT}: {error.message}"]
    size = "" if found.size_bytes is None else f", {found.size_bytes / 1e6:,.0f} MB to pull"
    return spec.with_image(image.with_digest(found.digest)), [f"image {image.name} is {found.digest}{size}"]


def with_image_here(spec: RunSpec, environment: Mapping[str, str]) -> RunSpec:
    """Return the same for a job that is tried on this machine, wherever it would train. Raises as `with_image`."""
    resources = ResourcesSpec(image_id=spec.resources.image_id)
    found, _ = with_image(spec.model_copy(update={"resources": resources}), environment)
    return spec if found.image is None else spec.with_image(found.image)


def _digest_here(image: Image) -> str:
    """
    Raises:
        NotInstalled: this machine runs no containers.
    """
    engine = find_engine()
    if image.digest:
        return image.digest if engine.has(image) else ""
    return engine.digest_of(image)


def _login(spec: RunSpec, environment: Mapping[str, str]) -> tuple[Credentials | None, str]:
    """
    Return the user at the registry; or why it cannot be read from here, where only instances may read it. A cloud's own
    login counts only if instances have one too.

    Raises:
        RegistryUnavailable: the registry cannot be read from here, for a tag; or the reason is unknown.
        NotForThisUser: no user is logged in here.
    """
    references = {name: place for name, place in spec.secret_references.items() if name in CREDENTIALS}
    image, here = spec.image, cloud_of(spec).here
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
    if here or _logs_in(spec, image):
        return login_to(image, spec.envs, values), ""
    return credentials_of(spec.envs, values), ""


def _logs_in(spec: RunSpec, image: Image) -> bool:
    """Return whether instances have an identity of the cloud whose registry it is."""
    return spec.resources.cloud == hosts.cloud_of(image.host)
