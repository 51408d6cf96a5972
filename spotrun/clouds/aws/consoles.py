"""Reads what EC2 keeps of an instance's console."""

from __future__ import annotations

from functools import partial

from spotrun.clouds.aws.calls import Region


def console_of(region: Region, instance_id: str) -> str | None:
    """
    Return the console, which EC2 posts shortly after a start and an end; None if it has posted none.

    Raises:
        CloudError: the instance is long gone, or the caller may not read it.
    """
    look = partial(region.ec2.get_console_output, InstanceId=instance_id)
    return region.ask(f"show the console of {instance_id}", look).get("Output") or None
