"""`spotrun init --cloud` and `doctor` find the bucket that the files in infra/ make, but none of another account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import boto3
import pytest

from spotrun.clouds.aws.cloud import CLOUD as AWS
from spotrun.clouds.cloud import RentalFlags
from spotrun.errors import SpecInvalid
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from tests.support.called_spotrun import Spotrun
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_account import GcpAccount
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

USUAL_S3 = f"s3://spotrun-{ACCOUNT}-{REGION}/runs"
USUAL_GS = f"gs://spotrun-{PROJECT}/runs"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import lightning\n")
    return Spotrun(monkeypatch, capsys)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpAccount]:
    with GcpAccount(ManualClock(datetime.now(UTC))) as found:
        found.reach(monkeypatch, tmp_path)
        yield found


def test_init_writes_a_job_with_the_bucket_of_the_account(account: GuardedAccount, called: Spotrun) -> None:
    refused = called.call("init", "train.py", "--cloud", "aws", code=SpecInvalid.exit_code)
    assert "error: there is no bucket of spotrun's in your aws account" in refused
    assert "infra/aws/README.md makes one" in refused
    with account.as_administrator():
        boto3.client("s3").create_bucket(Bucket=f"spotrun-{ACCOUNT}-{REGION}")
    assert "spotrun doctor aws train.yaml" in called.call("init", "train.py", "--cloud", "aws")
    spec = load_spec(Path("train.yaml"))
    assert (spec.resources.cloud, spec.checkpoint.uri, str(spec.resources.accelerators)) == ("aws", USUAL_S3, "A10G:1")
    assert f"usual store: {USUAL_S3} is the bucket that infra/aws made" in called("doctor", "aws").out
    account.denied = []  # doctor tries what must be refused


def test_init_writes_a_job_with_the_bucket_of_the_project(project: GcpAccount, called: Spotrun) -> None:
    refused = called.call("init", "train.py", "--cloud", "gcp", code=SpecInvalid.exit_code)
    assert "error: there is no bucket of spotrun's in your gcp account" in refused
    project.iam.bucket_name = f"spotrun-{PROJECT}"
    project.iam.bucket["projectNumber"] = "999999999999"
    assert "no bucket" in called.call("init", "train.py", "--cloud", "gcp", code=SpecInvalid.exit_code), "of a stranger"
    del project.iam.bucket["projectNumber"]
    called.call("init", "train.py", "--cloud", "gcp", "--instance-type", "e2-standard-4", "--out", "cpu.yaml")
    assert load_spec(Path("cpu.yaml")).resources.instance_type == "e2-standard-4"
    called.call("init", "train.py", "--cloud", "gcp")
    spec = load_spec(Path("train.yaml"))
    assert (spec.resources.cloud, spec.checkpoint.uri, str(spec.resources.accelerators)) == ("gcp", USUAL_GS, "L4:1")
    assert f"usual store: {USUAL_GS} is the bucket that infra/gcp made" in called("doctor", "gcp").out


def test_init_writes_no_job_whose_bucket_is_in_another_region(project: GcpAccount, called: Spotrun) -> None:
    """A launch refuses the budget of such a job, because it does not know the price of its checkpoints' traffic."""
    project.iam.bucket_name = f"spotrun-{PROJECT}"
    project.iam.bucket["location"] = "EUROPE-WEST4"
    words = ("init", "train.py", "--cloud", "gcp")
    refused = called.call(*words, "--region", "us-central1", code=SpecInvalid.exit_code)
    assert f"spotrun's bucket in your gcp account is in europe-west4, not in us-central1: {USUAL_GS}" in refused
    assert "try: --region europe-west4; or name a bucket in us-central1 by --store: infra/gcp/README.md" in refused
    assert "did you mean us-central1?" in called.call(*words, "--region", "us-centarl1", code=SpecInvalid.exit_code)
    called.call(*words)
    assert load_spec(Path("train.yaml")).resources.region == "europe-west4"
    called.call(*words, "--region", "europe-west4", "--force")
    assert load_spec(Path("train.yaml")).resources.region == "europe-west4"
    project.iam.bucket |= {"location": "EU", "locationType": "multi-region"}
    called.call(*words, "--region", "europe-west1", "--force")
    assert load_spec(Path("train.yaml")).resources.region == "europe-west1"


def test_a_store_that_is_named_is_written_without_a_call(called: Spotrun) -> None:
    called.call("init", "train.py", "--cloud", "aws", "--store", "s3://my-bucket/runs")
    assert load_spec(Path("train.yaml")).checkpoint.uri == "s3://my-bucket/runs"
    refused = called.call("init", "train.py", "--store", "s3://my-bucket/runs", "--force", code=SpecInvalid.exit_code)
    assert "--store works only with --cloud" in refused
    local = ("init", "train.py", "--cloud", "local", "--instance-type", "c7i.large", "--force")
    assert "init writes no job for local" in called.call(*local, code=SpecInvalid.exit_code), (
        "the flag would be ignored"
    )
    refused = called.call("init", "train.py", "--cloud", "slurm", "--force", code=SpecInvalid.exit_code)
    assert "init writes no job for slurm" in refused


def test_a_job_that_names_no_region_has_that_of_the_settings(
    called: Spotrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`offers` reads the same settings, so what it shows is what `launch` rents."""
    job = Path("plain.yaml")
    job.write_text("train: {script: train.py}\nresources: {cloud: aws}\ncheckpoint: {uri: s3://my-bucket/runs}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert regions(job) == ("us-east-1",)
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    assert regions(job) == ("ap-south-1",)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert regions(job) == ("eu-west-1",)
    stored = load_spec(job).to_dict()
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert regions(job) == ("eu-west-2",)
    assert RunSpec.from_dict(stored).aws.regions == ("eu-west-1",), "a run keeps the region that it began with"
    job.write_text(f"{job.read_text()}aws: {{regions: [us-west-2]}}\n")
    assert load_spec(job).aws.regions == ("us-west-2",)


def regions(job: Path) -> tuple[str, ...]:
    """Those of the job, and of a command without a job, which must be the same."""
    (found,) = {load_spec(job).aws.regions, AWS.regions(None, RentalFlags())}
    return found


def test_init_writes_the_region_into_the_job(called: Spotrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    words = ("init", "train.py", "--cloud", "aws", "--store", "s3://my-bucket/runs")
    called.call(*words)
    assert load_spec(Path("train.yaml")).resources.region == "eu-west-1"
    called.call(*words, "--force", "--region", "us-west-2")
    assert load_spec(Path("train.yaml")).resources.region == "us-west-2"
    refused = called.call(*words, "--force", "--region", "us-wset-2", code=SpecInvalid.exit_code)
    assert "--region: AWS has no region us-wset-2" in refused
    refused = called.call("init", "train.py", "--region", "us-west-2", "--force", code=SpecInvalid.exit_code)
    assert "--region works only with --cloud" in refused
