"""Reads the console output of an instance."""

from __future__ import annotations

from functools import partial

from spotrun.clouds.aws.calls import Region


def console_of(region: Region, instance_id: str) -> str | None:
    """
    Return the console output of an instance. EC2 stores it shortly after the instance starts, and shortly after it
    ends. Return None if EC2 has not stored any yet.

    Raises:
        CloudError: the instance ended long ago, or the caller is not allowed to read its console.
    """
    look = partial(region.ec2.get_console_output, InstanceId=instance_id)
    return region.ask(f"show the console of {instance_id}", look).get("Output") or None
