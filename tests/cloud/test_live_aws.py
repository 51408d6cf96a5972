"""
One run on a real account, which bills it: some minutes of a g4dn.xlarge, $0.10 at most with its disk and requests.

    SPOTRUN_LIVE_STORE=s3://spotrun-ACCOUNT-REGION/runs pytest -m live_aws

Needs what infra/aws makes, and the credentials of whoever runs spotrun. Everything else of these tests needs neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.repository import JOBS

WITHIN_S = 45 * 60


def spotrun(*words: str) -> str:
    command = [sys.executable, "-m", "spotrun", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WITHIN_S).stdout


@pytest.mark.live_aws
@pytest.mark.timeout(WITHIN_S)
def test_a_run_on_a_real_account_is_completed_billed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store, region = os.environ["SPOTRUN_LIVE_STORE"], os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
    job = tmp_path / "live.yaml"
    job.write_text(
        f"name: live\nworkdir: {JOBS}\ntrain: {{script: quick.py, args: [--epochs, '20', --step-s, '1']}}\n"
        f"envs: {{TRACE: /tmp/trace}}\ncheckpoint: {{uri: '{store}', every: 60s}}\n"
        f"resources: {{cloud: aws, region: {region}, max_price: 0.6}}\n"
        "aws: {instance_types: [g4dn.xlarge], launch_template: spotrun-node}\n"
        "budget: {max_usd: 1}\nmax_duration: 40m\n"
    )
    spotrun("doctor", "aws", str(job))
    spotrun("launch", str(job), "-y")
    total = json.loads(spotrun("report", "live", "--store", store, "--json"))["total"]
    assert Decimal(0) < Decimal(total["cost_usd"]) < Decimal("0.5")
    assert "there is no instance to end" in spotrun(
        "reap", "-y", "--cloud", "aws", "--region", region, "--store", store
    )
