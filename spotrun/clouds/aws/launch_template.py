"""
Finds the launch template that a job names. Some accounts require one, to add monitoring, licences or options to each
launch.

Parameters that spotrun passes to RunInstances override those of the template:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html. The template's other parameters stay
in effect, so spotrun refuses a template that would break one of spotrun's promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.error_codes import BadLaunchTemplate

_DEFAULT = "$Default"
_NOT_BESIDE = {
    "InstanceMarketOptions": "they would apply to on-demand launches too",
    "InstanceRequirements": "EC2 accepts no instance type together with them",
    "KeyName": "spotrun's instances have no key pair",
    "NetworkInterfaces": "EC2 accepts no security group and subnet together with them",
    "SecurityGroups": "spotrun passes its security group by id",
}
"""Settings that a template must not have, each with the reason."""
_ROOTS = ("/dev/sda1", "/dev/xvda")
"""Device names of root volumes. spotrun's own mapping replaces that of the template."""
_HINT = "choose a default version without this setting: aws ec2 modify-launch-template --default-version …"


class LaunchTemplate(NamedTuple):
    """A version of a launch template. EC2 never changes an existing version."""

    template_id: str
    version: str

    def __str__(self) -> str:
        return f"{self.template_id}:{self.version}"


def find_launch_template(region: Region, name: str) -> LaunchTemplate:
    """
    Return the current default version of the template `name`.

    Raises:
        BadLaunchTemplate: the template has no default version, or that version has a setting that would break one of
            spotrun's promises.
    """

    def call() -> Any:
        return region.ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=[_DEFAULT])

    found = region.ask(f"describe the launch template {name}", call)["LaunchTemplateVersions"]
    if not found:
        raise BadLaunchTemplate(f"the launch template {name} has no default version in {region.name}", hint=_HINT)
    reasons = [*_broken_promises(found[0]["LaunchTemplateData"])]
    if reasons:
        raise BadLaunchTemplate(f"the launch template {name} has {'; '.join(reasons)}", hint=_HINT)
    return LaunchTemplate(found[0]["LaunchTemplateId"], str(found[0]["VersionNumber"]))


def _broken_promises(data: Mapping[str, Any]) -> Iterator[str]:
    for name, why in _NOT_BESIDE.items():
        if data.get(name):
            yield f"{name}: {why}"
    if data.get("DisableApiTermination"):
        yield "DisableApiTermination: the instance could not be ended"
    if data.get("HibernationOptions", {}).get("Configured"):
        yield "HibernationOptions: an instance that hibernates receives its notice too late"
    tenancy = data.get("Placement", {}).get("Tenancy", "default")
    if tenancy != "default":
        yield f"the tenancy {tenancy}, whose prices differ"
    for mapping in data.get("BlockDeviceMappings", []):
        if mapping.get("Ebs") and mapping["DeviceName"] not in _ROOTS:
            yield f"a volume at {mapping['DeviceName']}, whose price spotrun does not count (set aws.volume_gb instead)"
