"""
Converts a LaunchRequest to the parameters of RunInstances. This one call also creates and tags the disk,
so no launch can fail halfway.
"""

from __future__ import annotations

from typing import Any

from spotrun.clouds.aws.bootstrap import user_data
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.network import Ami
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType

RUN, LAUNCH, TOKEN = "spotrun:run", "spotrun:launch", "spotrun:token"
TIME_TO_LIVE, PRICE = "spotrun:time-to-live", "spotrun:usd-per-hour"
ACCELERATORS, CPUS, MEMORY = "spotrun:accelerators", "spotrun:cpus", "spotrun:memory-gib"


def run_instances(request: LaunchRequest, config: AwsConfig, image: Ami, group: str) -> dict[str, Any]:
    """
    Return the parameters of RunInstances. They depend only on the arguments, because EC2 refuses a call that reuses an
    earlier call's token with different parameters.
    """
    offering = request.offering
    parameters: dict[str, Any] = {
        "ClientToken": request.token,
        "ImageId": image.image_id,
        "InstanceType": offering.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": offering.subnet,
        "SecurityGroupIds": [group],
        "IamInstanceProfile": {"Name": config.profile_of(request.run_uid)},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": [_root_volume(config, image)],
        "TagSpecifications": [_tagged(kind, request) for kind in _tagged_kinds(offering.capacity_type)],
        "UserData": user_data(request),
    }
    if offering.launch_template:
        template_id, version = offering.launch_template.split(":")
        parameters["LaunchTemplate"] = {"LaunchTemplateId": template_id, "Version": version}
    if offering.capacity_type is CapacityType.SPOT:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if request.price_cap_usd_per_hour is not None:
            options["MaxPrice"] = str(request.price_cap_usd_per_hour)
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    return parameters


def _root_volume(config: AwsConfig, image: Ami) -> dict[str, Any]:
    volume = {
        "VolumeSize": max(config.volume_gib, image.volume_gib),
        "VolumeType": "gp3",
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    return {"DeviceName": image.root_device, "Ebs": volume}


def _tagged_kinds(capacity_type: CapacityType) -> tuple[str, ...]:
    both = ("instance", "volume")
    return (*both, "spot-instances-request") if capacity_type is CapacityType.SPOT else both


def _tagged(kind: str, request: LaunchRequest) -> dict[str, Any]:
    tags = {"Name": f"spotrun-{request.run_uid}-{request.launch}", **tags_of(request)}
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_of(request: LaunchRequest) -> dict[str, str]:
    """Return the instance's tags. By these tags, any driver knows to which run and launch the instance belongs."""
    offering = request.offering
    return {
        RUN: request.run_uid,
        LAUNCH: str(request.launch),
        TOKEN: request.token,
        TIME_TO_LIVE: str(int(request.time_to_live.total_seconds())),
        PRICE: str(offering.price_usd_per_hour),
        ACCELERATORS: offering.accelerators,
        CPUS: str(offering.cpus),
        MEMORY: str(offering.memory_gib),
    }
