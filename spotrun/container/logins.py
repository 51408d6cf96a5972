"""Finds the login for a pull: the job's own user and password, or an identity in the registry's cloud."""

from __future__ import annotations

from collections.abc import Mapping

from spotrun.container.hosts import AWS, ECR_PUBLIC, GOOGLE
from spotrun.container.registry import KEY, Credentials, NotForThisUser
from spotrun.errors import command_for
from spotrun.spec.image import PASSWORD, USERNAME, Image


def login_to(image: Image, envs: Mapping[str, str], secrets: Mapping[str, str], cloud: str) -> Credentials | None:
    """
    Return the login to an image's registry; None if no login is known. If the job's variables (`envs` and `secrets`)
    contain a user and a password, return these. Otherwise, if the registry belongs to a cloud, obtain a login with this
    machine's identity in that cloud. `cloud` is the cloud to which the registry belongs; "" if it belongs to none.

    Logins to a cloud's registry are valid for only a few hours, so each call obtains a new one.

    Raises:
        NotForThisUser: this machine has no identity for the registry.
        RegistryUnavailable: the cloud does not answer now.
    """
    named = {**envs, **secrets}
    if USERNAME in named and PASSWORD in named:
        return Credentials(named[USERNAME], named[PASSWORD])
    try:
        if cloud == AWS:
            from spotrun.container import ecr

            return ecr.login(image.host)
        if cloud == GOOGLE:
            from spotrun.container import artifact_registry

            return artifact_registry.login(image.host)
    except ImportError as error:
        if image.host == ECR_PUBLIC or cloud == GOOGLE:
            return None
        what = f"a login to {image.host} needs boto3, which is not installed"
        raise NotForThisUser(what, hint=command_for("aws"), key=KEY) from error
    return None
