"""Jobs that ask Google Cloud for what it does not rent out: each is told which words are wrong, and what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotrun.errors import IdentityUnknown, SpecInvalid, StoreError
from tests.support.called_spotrun import Spotrun
from tests.support.called_spotrun import spotrun as spotrun
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_account import GcpAccount
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import BUCKET, RunningServer
from tests.support.repository import JOBS

SHARED = f"trainer@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpAccount]:
    with GcpAccount(ManualClock(datetime.now(UTC))) as found:
        found.reach(monkeypatch, tmp_path)
        yield found


@pytest.fixture
def store(servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch) -> str:
    server = servers("gs")
    server.reach(monkeypatch)
    return server.new_prefix()


@pytest.fixture
def job(tmp_path: Path, store: str) -> Callable[..., Path]:
    def write(resources: str = "", gcp: str = "{}", uri: str = store) -> Path:
        path = tmp_path / "asked.yaml"
        path.write_text(
            f"workdir: {JOBS}\ntrain: {{script: quick.py}}\ncheckpoint: {{uri: '{uri}'}}\n"
            f"resources: {{cloud: gcp, {resources}}}\ngcp: {gcp}\n"
        )
        return path

    return write


Job = Callable[..., Path]


@pytest.mark.parametrize(
    ("resources", "gcp", "problem", "advice"),
    [
        ("", "{instance_types: [g2-standart-4]}", "5: gcp.instance_types[0]: ", "did you mean g2-standard-4, from $"),
        (
            "accelerators: 'L4:1'",
            "{instance_types: [g2-standard-8, g2-standart-4]}",
            "5: gcp.instance_types[1]: ",
            "did you mean g2-standard-4, from $",
        ),
        ("instance_type: g2-standart-4", "{}", "4: resources.instance_type: ", "did you mean g2-standard-4, from $"),
        (
            "accelerators: 'L4:9'",
            "{}",
            "4: resources.accelerators: ",
            "there is L4:1 from $0.397336/h, L4:2 from $1.124816/h",
        ),
        (
            "accelerators: 'K9:1'",
            "{}",
            "4: resources.accelerators: ",
            "there is A100:1 from $1.92802/h, H100:8 from $50.609541/h, L4:1",
        ),
    ],
)
def test_unavailable_offering_is_reported_with_its_line_and_the_available_ones(
    account: GcpAccount, spotrun: Spotrun, job: Job, resources: str, gcp: str, problem: str, advice: str
) -> None:
    said = spotrun("launch", job(resources, gcp), "--dry-run")
    assert said.code == SpecInvalid.exit_code, said.err
    assert f"asked.yaml:{problem}" in said.err
    assert advice in said.err


def test_a_type_that_is_listed_and_there_is_taken(account: GcpAccount, spotrun: Spotrun, job: Job) -> None:
    said = spotrun("launch", job("", "{instance_types: [g2-standard-8, G2-STANDARD-4]}"), "--dry-run")
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (
            ("--accelerators", "T4:1"),
            "T4 is attached to an N1 machine on gcp",
        ),
        (("--instance-type", "c4a-standard-4"), "c4a-standard-4 has Arm processors"),
        (("--accelerators", "tpu-v5e:1"), "tpu-v5e:1 is a TPU"),
    ],
)
def test_offers_of_what_is_never_rented_say_why_and_what_there_is(
    account: GcpAccount, spotrun: Spotrun, kind: tuple[str, str], problem: str
) -> None:
    said = spotrun("offers", "--cloud", "gcp", *kind)
    assert said.code == SpecInvalid.exit_code
    assert f"gcp offers no instance that fits: {problem}" in said.err
    assert "try: there is A100:1 from $" in said.err or "try: name one with x86 processors" in said.err


@pytest.mark.parametrize(
    "words", [("offers", "--cloud", "gcp"), ("reap", "--cloud", "gcp")], ids=lambda words: words[0]
)
def test_a_region_that_google_has_not_is_refused_with_the_one_that_was_meant(
    account: GcpAccount, spotrun: Spotrun, words: tuple[str, ...]
) -> None:
    said = spotrun(*words, "--region", "us-east1", "--region", "us-central9")
    assert said.code == SpecInvalid.exit_code
    assert "Google Cloud has no region us-central9\n  try: did you mean us-central1?" in said.err


def test_a_bucket_that_is_not_there_is_found_by_a_dry_run(account: GcpAccount, spotrun: Spotrun, job: Job) -> None:
    said = spotrun("launch", job(uri="gs://nobody-has-made-this/runs"), "--dry-run")
    assert said.code == StoreError.exit_code, said.err
    assert "asked.yaml:3: checkpoint.uri: " in said.err
    assert "make the bucket" in said.err


def test_a_service_account_that_is_not_there_is_found_by_a_dry_run(
    account: GcpAccount, spotrun: Spotrun, job: Job
) -> None:
    gcp = f"{{service_account: {SHARED}}}"
    said = spotrun("launch", job(gcp=gcp), "--dry-run")
    assert said.code == IdentityUnknown.exit_code, said.err
    assert (
        f"asked.yaml:5: gcp.service_account: there is no service account {SHARED}, or you are not allowed to see it"
        in said.err
    )
    account.iam._make_account("trainer", {})
    said = spotrun("launch", job(gcp=gcp), "--dry-run")
    assert said.code == 0


def test_dry_run_notes_that_the_shared_account_may_be_unable_to_use_the_store(
    account: GcpAccount, spotrun: Spotrun, job: Job
) -> None:
    account.iam._make_account("trainer", {})
    path = job(uri=f"gs://{BUCKET}/runs", gcp=f"{{service_account: {SHARED}}}")
    said = spotrun("launch", path, "--dry-run")
    assert f"grants no role to {SHARED}, so instances may be unable to use the store" in " ".join(said.err.split())


def test_dry_run_lists_all_resources_that_are_not_there(account: GcpAccount, spotrun: Spotrun, job: Job) -> None:
    image = "projects/elsewhere-1/global/images/none"
    gcp = f"{{service_account: {SHARED}, image: {image}, subnetwork: none, reservation: none}}"
    said = spotrun("launch", job(gcp=gcp), "--dry-run")
    assert said.code == SpecInvalid.exit_code, said.err
    assert "error: 4 problems in " in said.err
    for key in ("service_account", "image", "subnetwork", "reservation"):
        assert f"asked.yaml:5: gcp.{key}: " in said.err


def test_a_dry_run_says_what_it_could_not_look_at_and_does_not_try(
    account: GcpAccount, spotrun: Spotrun, job: Job
) -> None:
    account.allowed.discard("iam.serviceAccounts.get")
    path = job(gcp=f"{{service_account: {SHARED}}}")
    said = spotrun("launch", path, "--dry-run")
    assert said.code == 0, said.err
    told = " ".join(said.err.split()) + " ".join(said.out.split())
    assert "note: not checked: Google refused to read the service account" in told
    assert f"note: this command does not check rights, quotas and secrets: `spotrun doctor gcp {path}` does" in told
