"""`spotrun reap --cloud aws`: what a run does not want is ended, what belongs to a run unknown here is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import boto3
from msgspec.structs import replace

from spotrun.cli.wiring import open_run
from spotrun.clock import ManualClock
from spotrun.clouds.aws.driver import AwsCloud
from spotrun.clouds.aws.guard import AwsGuards
from spotrun.clouds.guards import Guard
from spotrun.creation import create_run
from spotrun.spec_file import load_spec
from tests.aws_launches import CONFIG, request
from tests.ec2_server import REGION
from tests.guarded_account import GuardedAccount


def test_an_orphan_is_ended_with_its_guard_and_a_strangers_instance_is_not(
    account: GuardedAccount, cloud: AwsCloud, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    run = open_run(create_run(load_spec(job), "a test"), None)
    asked = request(cloud)
    orphan = cloud.launch(replace(asked, run_uid=run.created.uid, token=f"{run.created.uid}-7"))
    strangers = cloud.launch(asked)
    for instance in (orphan, strangers):
        guard = Guard(
            token=instance.token, region=REGION, instance_id=instance.instance_id, ends_at=instance.launched_at
        )
        AwsGuards([REGION], ManualClock()).arm(guard)

    command = [sys.executable, "-m", "spotrun", "reap", "-y", "--cloud", "aws", "--region", REGION]
    said = subprocess.run(
        [*command, "--store", f"{tmp_path}/runs"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert orphan.instance_id in said
    assert strangers.instance_id not in said
    assert {each.instance_id: each.alive for each in AwsCloud(CONFIG, ManualClock()).list()} == {
        orphan.instance_id: False,
        strangers.instance_id: True,
    }
    with account.as_administrator():
        schedules = boto3.client("scheduler").list_schedules(GroupName="spotrun")["Schedules"]
    assert [each["Name"] for each in schedules] == [strangers.token]
