"""Checks that the resources that a job names in its section `aws` exist, and that its instances may use the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.aws import account_checks, role_rights
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.error_codes import BadLaunchTemplate
from spotrun.clouds.aws.launch_template import find_launch_template
from spotrun.clouds.aws.network import describe_image, find_image
from spotrun.clouds.error_kinds import BadImage, of_key
from spotrun.clouds.regions import Regions
from spotrun.errors import AccessDenied, Mistakes
from spotrun.spec.model import DEEP_LEARNING_AMI


def require_named(config: AwsConfig, store_uri: str, clock: Clock) -> list[str]:
    """
    Check the instance profile, the launch template and the machine image that a job names. The latter two must exist in
    at least one region, because a run leaves out a region in which it cannot launch instances. Return a note if no
    policy of the profile's role allows the use of the store.

    Raises:
        CloudError: a resource does not exist; SeveralInvalid if several do not.
    """

    def somewhere(find: Callable[[Region], object]) -> None:
        Regions(config.regions, clock).ask(lambda name: find(Region(name, clock)), must_see=())

    profile, template, mistakes, notes = config.instance_profile, config.launch_template, Mistakes(), list[str]()
    if template is not None:
        with mistakes, of_key(BadLaunchTemplate, "aws", "launch_template"):
            somewhere(lambda region: find_launch_template(region, template))
    if config.image_id is not None or config.image_parameter != DEEP_LEARNING_AMI:
        key = "image_parameter" if config.image_id is None else "image_id"
        with mistakes, of_key(BadImage, "aws", key):
            somewhere(lambda region: describe_image(region, find_image(region, config)))
    if profile is not None:  # last, because the user may not be allowed to read it
        region = Region(config.regions[0], clock)
        with mistakes:
            account_checks.require_profile(region, profile)
            notes += _about_store(region, profile, store_uri)
    mistakes.refuse()
    return notes


def _about_store(region: Region, profile: str, store_uri: str) -> Iterator[str]:
    store = address.parse(store_uri)
    if not isinstance(store, address.BucketAddress):
        return
    folder, hint = role_rights.folder_in(store, "doctor"), role_rights.ALLOW.format(profile)
    with suppress(AccessDenied):  # the user is not allowed to ask IAM
        try:
            role_rights.require_store(region, profile, folder, {}, hint)
        except role_rights.StoreDenied as denied:  # a policy of the bucket, which IAM does not consider, may allow it
            yield denied.one_line
