"""Logins to the registries of clouds, which nobody has stored a password for: by the identity that is at hand."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotrun.clouds.aws.cloud import _repository
from spotrun.container import hosts
from spotrun.container.hosts import cloud_behind, repository_of
from spotrun.container.logins import login_to
from spotrun.container.registry import Credentials, ImageRefused, NotForThisUser, RegistryUnavailable, find
from spotrun.runs.pinning import with_image
from spotrun.spec.image import PASSWORD, USERNAME, Image, image_of
from spotrun.spec.model import RunSpec
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.gce_metadata import gce_metadata
from tests.support.google_login import log_in, log_out
from tests.support.guarded_account import GuardedAccount
from tests.support.http_server import HttpServer, Reply, Request, as_json
from tests.support.registry_server import USER, WORD, RegistryServer

DIGEST = f"sha256:{'1' * 64}"
ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
PUBLIC = "public.ecr.aws"
PKG = "europe-west4-docker.pkg.dev"


def image_on(host: str) -> Image:
    return image_of(f"docker:{host}/team/train@{DIGEST}")


@pytest.mark.parametrize(
    ("host", "cloud"),
    [
        (ECR, "aws"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "aws"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "aws"),
        ("123456789012.dkr-ecr.eu-central-1.on.aws", "aws"),
        (PUBLIC, "aws"),
        (PKG, "gcp"),
        ("us-docker.pkg.dev", "gcp"),
        ("gcr.io", "gcp"),
        ("eu.gcr.io", "gcp"),
        ("docker.io", ""),
        ("mirror.gcr.io", ""),
        (f"{ECR}.example.org", ""),
        (f"evil-{PKG}.example.org", ""),
        ("docker.pkg.dev", ""),
        ("12345.dkr.ecr.us-east-1.amazonaws.com", ""),
    ],
)
def test_a_host_says_whose_registry_it_is(host: str, cloud: str) -> None:
    assert cloud_behind(host) == cloud


def test_only_a_private_repository_of_ecr_is_named_in_the_role_of_a_run() -> None:
    assert repository_of(image_on(ECR)) == "team/train"
    assert repository_of(image_on(PUBLIC)) == repository_of(image_on(PKG)) == ""
    assert _repository(job(ECR)) == "team/train"
    stored = job(ECR).model_copy(update={"secrets": {PASSWORD: ""}})
    assert _repository(stored) == "", "who brings a password needs no right"


# -- AWS --------------------------------------------------------------------------------------------------------------


def test_ecr_login_is_that_of_the_caller(account: GuardedAccount) -> None:
    found = login_to(image_on(ECR), {}, {}, cloud_behind(ECR))
    assert found == Credentials("AWS", f"{ACCOUNT}-auth-token", "aws")
    stored = login_to(image_on(ECR), {USERNAME: USER}, {PASSWORD: WORD}, cloud_behind(ECR))
    assert stored == Credentials(USER, WORD), "what a job says comes first"
    account.policies = []
    with pytest.raises(NotForThisUser, match=f"AWS gives no login to {ECR}.*AccessDenied") as refused:
        login_to(image_on(ECR), {}, {}, cloud_behind(ECR))
    assert "ecr:BatchGetImage" in str(refused.value.hint)
    account.denied.clear()


def test_a_cloud_that_gives_no_answer_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL_ECR", "http://127.0.0.1:9")
    with pytest.raises(RegistryUnavailable, match=r"AWS gives no login.*Could not connect"):
        login_to(image_on(ECR), {}, {}, cloud_behind(ECR))


def test_caller_without_an_aws_login_pulls_public_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged_out_of_aws(monkeypatch, tmp_path)
    assert login_to(image_on(PUBLIC), {}, {}, cloud_behind(PUBLIC)) is None
    with pytest.raises(NotForThisUser, match="Unable to locate credentials") as refused:
        login_to(image_on(ECR), {}, {}, cloud_behind(ECR))
    assert "aws sso login" in str(refused.value.hint)


def logged_out_of_aws(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(empty / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def public_ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Amazon's service for tokens of the public registry; who has signed each call."""
    signed: list[str] = []
    token = base64.b64encode(b"AWS:of-everybody").decode()

    def answer(request: Request) -> Reply:
        signed.append(request.headers["authorization"])
        return as_json({"authorizationData": {"authorizationToken": token}})

    with HttpServer(answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_ECR_PUBLIC", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        yield signed


def test_who_is_logged_in_to_aws_is_known_to_the_public_registry_too(public_ecr: list[str]) -> None:
    assert login_to(image_on(PUBLIC), {}, {}, cloud_behind(PUBLIC)) == Credentials("AWS", "of-everybody", "aws")
    assert "/us-east-1/ecr-public/aws4_request" in public_ecr[0]


# -- Google Cloud -----------------------------------------------------------------------------------------------------


def test_an_instance_of_google_cloud_logs_in_as_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: Google's library reads these variables when it is imported."""
    log_out(monkeypatch, tmp_path)
    monkeypatch.delenv("NO_GCE_CHECK")
    with gce_metadata(token="ya29.of-the-instance") as metadata:
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, metadata.host)
        asks = f"from spotrun.container.artifact_registry import login; print(*login({PKG!r}))"
        found = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["oauth2accesstoken", "ya29.of-the-instance", "gcp"]


def test_google_cloud_login_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, tmp_path / "login.json", token="of-ada")
    assert login_to(image_on("gcr.io"), {}, {}, cloud_behind("gcr.io")) == Credentials(
        "oauth2accesstoken", "of-ada", "gcp"
    )
    log_out(monkeypatch, tmp_path)
    assert login_to(image_on("gcr.io"), {}, {}, cloud_behind("gcr.io")) is None


# -- what a registry says to it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "right"), [("aws", "ecr:GetDownloadUrlForLayer"), ("gcp", "roles/artifactregistry.reader")]
)
def test_refused_pull_names_the_missing_right(cloud: str, right: str) -> None:
    with RegistryServer("basic") as server:
        image = image_of(f"docker:{server.host}/team/train:1")
        digest = server.put_image("team/train:1", 1)
        assert find(image, Credentials(USER, WORD, cloud)).digest == digest
        with pytest.raises(NotForThisUser, match="does not let this identity of") as refused:
            find(image, Credentials(USER, "another", cloud))
    assert right in str(refused.value.hint)
    assert "another" not in str(refused.value)


def job(host: str, cloud: str = "aws", tag: str = "") -> RunSpec:
    text = f"docker:{host}/team/train{tag}" + ("" if tag else f"@{DIGEST}")
    resources = {"image_id": text, "cloud": cloud}
    uri = "gs://bucket/runs" if cloud == "gcp" else "s3://bucket/runs"
    keys = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "checkpoint": {"uri": uri}}
    return RunSpec.model_validate(keys | {"resources": resources})


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, account: GuardedAccount) -> Iterator[RegistryServer]:
    """A registry that is taken for one of AWS, and lets in whoever has a token of this account."""
    with RegistryServer("basic", "AWS", f"{ACCOUNT}-auth-token") as server:
        monkeypatch.setattr(hosts, "ECR", re.compile(re.escape(server.host)))
        monkeypatch.setattr(hosts, "region_of", lambda _: REGION)
        yield server


def test_launch_looks_up_a_tag_with_the_login_of_its_user(ours: RegistryServer) -> None:
    digest = ours.put_image("team/train:1", 3_000_000)
    found, notes = with_image(job(ours.host, tag=":1"), {})
    assert found.image is not None
    assert found.image.digest == digest
    assert notes == [f"image {ours.host}/team/train is {digest}, 3 MB to pull"]


def test_instances_may_pull_an_image_that_the_user_may_not(ours: RegistryServer, account: GuardedAccount) -> None:
    account.policies = []
    pinned = job(ours.host)
    found, (note,) = with_image(pinned, {})
    assert found == pinned
    assert note.startswith(f"the image was not checked: AWS gives no login to {ours.host}")
    with pytest.raises(RegistryUnavailable, match="the digest of the image is not known") as refused:
        with_image(job(ours.host, tag=":1"), {})
    assert "@sha256:" in str(refused.value.hint)
    account.denied.clear()


def test_an_image_of_another_cloud_than_its_instances_is_refused_unless_everybody_may_pull_it(
    ours: RegistryServer,
) -> None:
    with pytest.raises(ImageRefused, match="has no public") as refused:
        with_image(job(ours.host, "gcp"), {})
    assert "instances on gcp have no identity in this registry" in str(refused.value.hint)
    assert not isinstance(refused.value, NotForThisUser)
