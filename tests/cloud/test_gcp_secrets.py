"""Secrets of a job on Google Cloud: its instances read them of Secret Manager, and nobody else needs to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core.exceptions import BadRequest, Conflict, NotFound
from google.cloud import secretmanager_v1
from google.oauth2.credentials import Credentials

from spotrun.clock import system_clock
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.secret_checks import secret_findings
from spotrun.container.registry import RegistryUnavailable
from spotrun.doctor.finding import Finding, Verdict
from spotrun.errors import SpecInvalid, StoreUnavailable
from spotrun.runs.pinning import with_image
from spotrun.secrets import secret_manager
from spotrun.secrets.reference import Reference, SecretUnreadable, create_command
from spotrun.secrets.values import read_values
from spotrun.spec.file import load_spec
from spotrun.spec.image import PASSWORD, USERNAME
from spotrun.spec.model import ResourcesSpec, RunSpec
from tests.support.gce_catalog import PROJECT, PROJECT_NUMBER
from tests.support.gcp_account import GcpAccount
from tests.support.google_login import TOKEN, log_out, write_login
from tests.support.google_secrets import SecretManager
from tests.support.google_server import GoogleServer
from tests.support.http_server import as_json
from tests.support.manual_clock import ManualClock
from tests.support.registry_server import USER, WORD, RegistryServer
from tests.support.repository import ROOT
from tests.support.secret_runs import require_that_a_missing_one_ends_the_run, require_that_only_the_trainer_has_it

CANARY = 'cNry"7vB2/mK9 pL4?-übel'
"""With what JSON, a URL and UTF-8 each write down in their own way."""
ACCESS = "secretmanager.projects.secrets.versions.access"
UID = "0123456789"


def spec(cloud: str = "gcp", **keys: Any) -> RunSpec:
    uri = {"gcp": "gs://bucket/runs", "aws": "s3://bucket/runs"}[cloud]
    job = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "checkpoint": {"uri": uri}}
    return RunSpec.from_dict({**job, "resources": {"cloud": cloud}, **keys})


# -- in the specification --------------------------------------------------------------------------------------------


def test_a_name_is_enough_and_another_secret_can_be_named() -> None:
    wanted = spec(secrets={"WANDB_API_KEY": None, "HF_TOKEN": "gsm:team_hf-2"})
    assert wanted.secret_references == {
        "WANDB_API_KEY": Reference("gsm", "spotrun-WANDB_API_KEY"),
        "HF_TOKEN": Reference("gsm", "team_hf-2"),
    }
    assert RunSpec.from_dict(wanted.to_dict()) == wanted


@pytest.mark.parametrize(
    "text", ["gsm:/", "gsm:projects/p/secrets/b/versions/3", "GSM:a b", f"gsm:{'a' * 256}", f"gsm:{CANARY}", "gsm:a\n"]
)
def test_malformed_secret_name_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(SpecInvalid, match="neither a project nor a version can be named") as refused:
        spec(secrets={"KEY": text})
    assert text not in str(refused.value)


@pytest.mark.parametrize(
    ("cloud", "place", "words"),
    [
        ("gcp", "env:A", "a variable of this machine is not on an instance of gcp"),
        ("gcp", "ssm:/spotrun/A", "a parameter of AWS is not on an instance of gcp"),
        ("aws", "gsm:spotrun-A", "a secret of Google Cloud is not on an instance of aws"),
    ],
)
def test_secret_out_of_reach_of_the_cloud_is_refused_with_its_line_and_a_fix(
    tmp_path: Path, cloud: str, place: str, words: str
) -> None:
    job = tmp_path / "job.yaml"
    uri = {"gcp": "gs://bucket/runs", "aws": "s3://bucket/runs"}[cloud]
    job.write_text(
        f"name: n\ntrain: {{run: x}}\nresources: {{cloud: {cloud}}}\ncheckpoint: {{uri: '{uri}'}}\n"
        f"secrets: {{A: '{place}'}}\n"
    )
    with pytest.raises(SpecInvalid, match=f"5: secrets.A: {words}") as refused:
        load_spec(job)
    wanted = {"gcp": "gcloud secrets create spotrun-A;", "aws": "write ssm:/spotrun/A"}[cloud]
    assert wanted in str(refused.value)


# -- on an instance --------------------------------------------------------------------------------------------------


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    """A project in which the caller is an instance: it has the service account of a run, and what infra/gcp grants."""
    with GoogleServer(system_clock(), objects="http://127.0.0.1:9") as found:
        found.reach(monkeypatch, tmp_path)
        monkeypatch.setattr(secret_manager, "ASK_AGAIN_FOR_S", 0.0)
        monkeypatch.setattr(secret_manager, "ASK_AGAIN_EVERY_S", 0.0)
        email = found.iam._make_account(f"spotrun-{UID}", {})["email"]
        write_login(tmp_path / "login.json", found.token_of(email))
        yield found


@pytest.fixture
def secrets(google: GoogleServer) -> SecretManager:
    return google.iam.secrets


def read(**names: str) -> dict[str, str]:
    return read_values({variable: Reference("gsm", name) for variable, name in names.items()}, {})


def test_an_instance_reads_the_latest_versions_of_its_secrets_with_its_account(
    google: GoogleServer, secrets: SecretManager
) -> None:
    names = {f"S{number}": f"spotrun-s{number}" for number in range(3)}
    for variable, name in names.items():
        secrets.put(name, "an older one")
        secrets.put(name, f"{CANARY}{variable}")
    assert read(**names) == {variable: f"{CANARY}{variable}" for variable in names}
    assert {each.who for each in google.asked} == {f"serviceAccount:spotrun-{UID}@{PROJECT}.iam.gserviceaccount.com"}
    assert google.counts[ACCESS] == len(names)


def test_instance_may_not_read_other_secrets(google: GoogleServer, secrets: SecretManager) -> None:
    secrets.put("database-password", CANARY)
    with pytest.raises(SecretUnreadable, match=r"Permission .* denied on resource") as refused:
        read(A="database-password")
    assert "begin with spotrun-" in str(refused.value.hint)
    assert [permission for _, permission in google.denied] == ["secretmanager.versions.access"]


def test_launching_user_may_read_no_secret_value(
    google: GoogleServer, secrets: SecretManager, monkeypatch: Any, tmp_path: Path
) -> None:
    secrets.put("spotrun-A", CANARY)
    google.reach(monkeypatch, tmp_path)
    with pytest.raises(SecretUnreadable, match=r"Permission .* denied on resource"):
        read(A="spotrun-A")


def test_missing_secret_is_reported_with_the_command_that_makes_it(secrets: SecretManager) -> None:
    secrets.versions["spotrun-empty"] = []
    for name in ("spotrun-none", "spotrun-empty"):
        with pytest.raises(SecretUnreadable, match=f"no secret {name} in {PROJECT}, or it has no version") as refused:
            read(A=name)
        assert refused.value.hint == create_command(name, PROJECT)


def test_all_unreadable_secrets_are_reported_together(secrets: SecretManager) -> None:
    secrets.put("spotrun-a", b"\xff")
    secrets.put("spotrun-b", CANARY)
    secrets.put("database-password", CANARY)
    with pytest.raises(SecretUnreadable) as refused:
        read(A="spotrun-a", B="spotrun-b", C="spotrun-c", D="database-password")
    for words in ("spotrun-a in acme-training is not text", "no secret spotrun-c", "did not give database-password"):
        assert words in refused.value.message
    assert "spotrun-b" not in refused.value.message
    assert create_command("spotrun-c", PROJECT) in str(refused.value.hint)


@pytest.mark.parametrize("state", ["DISABLED", "DESTROYED"])
def test_secret_version_without_a_value_is_reported_with_the_command(secrets: SecretManager, state: str) -> None:
    secrets.put("spotrun-A", CANARY)
    secrets.put("spotrun-A", CANARY)
    secrets.versions["spotrun-A"][1].state = state
    with pytest.raises(SecretUnreadable, match=f"spotrun-A/versions/2. is in {state} state") as refused:
        read(A="spotrun-A")
    assert f"gcloud secrets versions add spotrun-A --data-file=- --project={PROJECT}" in str(refused.value.hint)


@pytest.mark.parametrize("data", [b"cNry\xff\xfe", b"cNry\0"], ids=["no UTF-8", "a zero"])
def test_a_value_that_can_be_no_variable_is_refused_and_not_shown(secrets: SecretManager, data: bytes) -> None:
    secrets.put("spotrun-A", data)
    with pytest.raises(SecretUnreadable, match=f"latest version of spotrun-A in {PROJECT} is not text") as refused:
        read(A="spotrun-A")
    assert "cNry" not in f"{refused.value} {refused.value.__cause__}"
    assert "base64 -w0 FILE | gcloud secrets versions add spotrun-A" in str(refused.value.hint)


def test_a_value_that_was_damaged_on_its_way_is_not_taken(secrets: SecretManager) -> None:
    secrets.put("spotrun-A", CANARY)
    secrets.checksum = 1
    with pytest.raises(StoreUnavailable, match="does not match its checksum") as refused:
        read(A="spotrun-A")
    assert "cNry" not in str(refused.value)
    secrets.checksum = None
    assert read(A="spotrun-A") == {"A": CANARY}


def refusal(status: int, word: str, **details: str) -> dict[str, Any]:
    found = [{"reason": each} for each in details.values()]
    return {"error": {"code": status, "message": "not now", "status": word, "details": found}}


@pytest.mark.parametrize(
    ("status", "body", "passes", "hint"),
    [
        (503, refusal(503, "UNAVAILABLE"), True, ""),
        (500, {}, True, ""),
        (429, refusal(429, "RESOURCE_EXHAUSTED"), True, ""),
        (302, {}, True, ""),
        (404, {}, True, ""),  # no page of Google's
        (403, refusal(403, "PERMISSION_DENIED"), False, "ask for secretmanager.versions.access"),
        (
            403,
            refusal(403, "PERMISSION_DENIED", reason="SERVICE_DISABLED"),
            False,
            "gcloud services enable secretmanager",
        ),
        (400, refusal(400, "INVALID_ARGUMENT"), False, ""),
    ],
)
def test_a_secret_manager_that_is_away_is_no_missing_secret(
    google: GoogleServer, secrets: SecretManager, status: int, body: dict[str, Any], passes: bool, hint: str
) -> None:
    secrets.put("spotrun-A", CANARY)
    google.fail(ACCESS, as_json(body, status))
    with pytest.raises(StoreUnavailable if passes else SecretUnreadable) as refused:
        read(A="spotrun-A")
    assert hint in (refused.value.hint or "")


def test_account_unknown_to_google_is_reported_as_such(google: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_manager, "_logged_in", lambda named: (requests.Session(), PROJECT))
    with pytest.raises(SecretUnreadable, match="invalid authentication credentials") as refused:
        read(A="spotrun-A")
    assert "log in by" in str(refused.value.hint)


@pytest.mark.parametrize("status", [403, 503])
def test_an_account_that_is_not_known_everywhere_yet_is_waited_for(
    google: GoogleServer, secrets: SecretManager, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    secrets.put("spotrun-A", CANARY)
    monkeypatch.setattr(secret_manager, "ASK_AGAIN_FOR_S", 60.0)
    google.fail(ACCESS, as_json(refusal(status, "PERMISSION_DENIED"), status), times=3)
    assert read(A="spotrun-A") == {"A": CANARY}
    assert google.counts[ACCESS] == 4


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"payload": {"data": "cNry*"}}'])
def test_an_answer_that_is_none_is_taken_for_a_fault_that_passes(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def arrives(*_: object, **__: object) -> requests.Response:
        found = requests.Response()
        found.status_code, found._content = 200, answer
        return found

    monkeypatch.setattr(secret_manager, "_logged_in", lambda named: (requests.Session(), "acme"))
    monkeypatch.setattr(requests.Session, "get", arrives)
    with pytest.raises(StoreUnavailable, match="damaged") as refused:
        secret_manager.read_at_once(["spotrun-A"], "acme")
    assert "cNry" not in f"{refused.value} {refused.value.__cause__}"


def test_secret_read_without_a_login_says_how_to_log_in(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log_out(monkeypatch, tmp_path)
    with pytest.raises(SecretUnreadable, match="spotrun-A") as refused:
        read(A="spotrun-A")
    assert "gcloud auth application-default login" in str(refused.value.hint)


ON_GCP: dict[str, Any] = {"resources": {"cloud": "gcp"}, "checkpoint": {"uri": "gs://bucket/runs"}}


def test_only_the_trainer_has_them(google: GoogleServer, secrets: SecretManager, tmp_path: Path) -> None:
    secrets.put("spotrun-WORD", CANARY)
    require_that_only_the_trainer_has_it(tmp_path, CANARY, **ON_GCP)


def test_a_secret_that_cannot_be_read_ends_the_run_with_the_reason(google: GoogleServer, tmp_path: Path) -> None:
    require_that_a_missing_one_ends_the_run(tmp_path, "there is no secret spotrun-WORD", **ON_GCP)


# -- a private registry ----------------------------------------------------------------------------------------------


def test_the_password_of_a_registry_is_a_secret_that_who_launches_may_lack(
    google: GoogleServer, secrets: SecretManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody waits at a launch: the right to read it is either there or not meant."""
    secrets.put(f"spotrun-{PASSWORD}", WORD)
    monkeypatch.setattr(secret_manager, "ASK_AGAIN_FOR_S", 60.0)
    with RegistryServer("bearer") as server:
        digest = server.put_image("team/image:1", 1)
        job = spec(envs={USERNAME: USER}, secrets=[PASSWORD])
        named = {each: job.model_copy(update={"resources": in_image(server, each)}) for each in (":1", f"@{digest}")}
        found, _ = with_image(named[":1"], {})
        assert found.image is not None
        assert found.image.digest == digest
        google.reach(monkeypatch, tmp_path)
        before = google.counts[ACCESS]
        _, (note,) = with_image(named[f"@{digest}"], {})
        assert note.startswith("the image was not checked: Secret Manager did not give spotrun-SKYPILOT")
        with pytest.raises(RegistryUnavailable, match="Secret Manager did not give") as caught:
            with_image(named[":1"], {})
        assert "@sha256:" in str(caught.value.hint)
        assert google.counts[ACCESS] - before == 2


def in_image(server: RegistryServer, named: str) -> ResourcesSpec:
    image = {"image_id": f"docker:{server.host}/team/image{named}"}
    return ResourcesSpec().model_copy(update={"cloud": "gcp", **image})


# -- what to type ----------------------------------------------------------------------------------------------------


def test_the_command_gives_gcloud_the_value_as_it_was_typed_and_shows_it_nowhere(tmp_path: Path) -> None:
    gcloud = tmp_path / "gcloud"
    gcloud.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> "$0.said"\n[ "$2" = create ] || cat > "$0.got"\n')
    gcloud.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f'PATH="{tmp_path}:$PATH"\n{create_command("spotrun-A", PROJECT)}'],
        input="  cNry\\n%s$HOME \n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (tmp_path / "gcloud.got").read_text() == "  cNry\\n%s$HOME "
    assert (tmp_path / "gcloud.said").read_text().splitlines() == [
        f"secrets create spotrun-A --project={PROJECT}",
        f"secrets versions add spotrun-A --data-file=- --project={PROJECT}",
    ]
    assert (done.stdout, done.stderr) == ("", "")


# -- the doctor ------------------------------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpAccount]:
    with GcpAccount(ManualClock()) as found:
        found.reach(monkeypatch, tmp_path)
        yield found


def findings(**names: str) -> dict[str, Finding]:
    places = {variable: Reference("gsm", name) for variable, name in names.items()}
    return {each.name: each for each in secret_findings(Google(ManualClock()), PROJECT, places)}


def test_the_doctor_sees_which_secrets_are_there_and_reads_none(account: GcpAccount) -> None:
    held = account.iam.secrets
    for name in ("spotrun-a", "spotrun-b", "spotrun-c", "elsewhere"):
        held.put(name, CANARY)
    held.put("spotrun-a", CANARY)
    held.versions["spotrun-b"][0].state = "DISABLED"
    held.versions["spotrun-c"][0].state = "DESTROYED"
    found = findings(A="spotrun-a", B="spotrun-b", C="spotrun-c", D="spotrun-d", E="elsewhere")
    assert {name.removeprefix("secret "): each.verdict for name, each in found.items()} == {
        "A": Verdict.OK, "B": Verdict.FAILED, "C": Verdict.FAILED, "D": Verdict.FAILED, "E": Verdict.WARNED,
    }  # fmt: skip
    assert found["secret A"].detail == "spotrun-a, version 2"
    assert found["secret B"].hint == f"gcloud secrets versions enable 1 --secret=spotrun-b --project={PROJECT}"
    assert "gcloud secrets versions add spotrun-c" in found["secret C"].hint
    assert "gcloud secrets create spotrun-d" in found["secret D"].hint
    assert "gcloud secrets add-iam-policy-binding elsewhere" in found["secret E"].hint
    assert {each.method for each in account.asked} == {"secretmanager.projects.secrets.versions.get"}
    missing, page = findings(WANDB_API_KEY="spotrun-WANDB_API_KEY").popitem(), (ROOT / "docs/gcp.md").read_text()
    assert f"{missing[0]}: {missing[1].detail}\n          try: {missing[1].hint}\n" in page
    account.allowed.discard("secretmanager.versions.get")
    (denied,) = findings(A="spotrun-a").values()
    assert denied.verdict is Verdict.UNKNOWN
    assert "secretmanager.versions.get" in denied.hint


# -- by software that is not ours ------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[Callable[..., Any]]:
    """Methods of google-cloud-secret-manager, for a project in which the caller may do all."""
    with GoogleServer(ManualClock()) as gce:
        found = secretmanager_v1.SecretManagerServiceClient(
            credentials=Credentials(TOKEN),  # type: ignore[no-untyped-call]
            transport="rest",
            client_options={"api_endpoint": gce.url},
        )
        yield lambda verb, **request: getattr(found, verb)(request=request)


def test_googles_client_makes_reads_and_disables_a_secret(client: Callable[..., Any]) -> None:
    project = f"projects/{PROJECT}"
    made = client("create_secret", parent=project, secret_id="spotrun-A", secret={"replication": {"automatic": {}}})
    assert made.name == f"projects/{PROJECT_NUMBER}/secrets/spotrun-A"
    latest = f"{project}/secrets/spotrun-A/versions/latest"
    with pytest.raises(NotFound, match="has no versions"):
        client("access_secret_version", name=latest)
    with pytest.raises(Conflict):
        client("create_secret", parent=project, secret_id="spotrun-A", secret={"replication": {"automatic": {}}})
    added = client("add_secret_version", parent=f"{project}/secrets/spotrun-A", payload={"data": CANARY.encode()})
    assert added.name == f"{made.name}/versions/1"
    found = client("access_secret_version", name=latest)
    assert (found.name, found.payload.data) == (added.name, CANARY.encode())
    assert found.payload.data_crc32c == secret_manager._crc32c(CANARY.encode())
    assert client("get_secret_version", name=latest).state.name == "ENABLED"
    client("disable_secret_version", name=added.name)
    with pytest.raises(BadRequest, match="DISABLED state"):
        client("access_secret_version", name=latest)
