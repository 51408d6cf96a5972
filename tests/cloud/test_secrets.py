"""Secrets by name: the trainer has their values, and nothing else of a run ever does."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from spotrun.agent.logs.console import Console
from spotrun.agent.logs.output_redaction import OutputRedaction, forms_of_all
from spotrun.agent.logs.secret_values import Secrets
from spotrun.agent.processes.trainer_process import user_environment
from spotrun.clock import system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.secret_checks import secret_findings
from spotrun.clouds.aws.secret_tags import SECRETS_MAX
from spotrun.doctor.finding import Verdict
from spotrun.errors import SpecInvalid, StoreUnavailable
from spotrun.secrets import parameter_store
from spotrun.secrets.reference import Reference, SecretUnreadable
from spotrun.secrets.values import read_values
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from tests.support.ec2_server import REGION, RUN
from tests.support.guarded_account import GuardedAccount
from tests.support.sandbox import Sandbox
from tests.support.secret_runs import require_that_a_missing_one_ends_the_run, require_that_only_the_trainer_has_it

CANARY = 'cNry"7vB2/mK9 pL4?-übel'
"""With what JSON, a URL and UTF-8 each write down in their own way."""


def spec(**keys: Any) -> RunSpec:
    return RunSpec.from_dict({"name": "n", "workdir": "/w", "train": {"run": "x"}, **keys})


def on_aws(**keys: Any) -> RunSpec:
    return spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"}, **keys)


# -- in the specification --------------------------------------------------------------------------------------------


def test_a_name_is_enough_and_where_its_value_is_follows_from_the_cloud() -> None:
    wanted = ["WANDB_API_KEY"]
    assert spec(secrets=wanted).secret_references == {"WANDB_API_KEY": Reference("env", "WANDB_API_KEY")}
    assert on_aws(secrets=wanted).secret_references == {"WANDB_API_KEY": Reference("ssm", "/spotrun/WANDB_API_KEY")}
    named = {"A": "ssm:/team/a.b-c_d", "B": None}
    assert on_aws(secrets=named).secret_references["A"] == Reference("ssm", "/team/a.b-c_d")
    assert RunSpec.from_dict(on_aws(secrets=named).to_dict()) == on_aws(secrets=named)


@pytest.mark.parametrize(
    "secrets",
    [
        {"KEY": CANARY}, [CANARY], f"KEY={CANARY}", [f"KEY={CANARY}"], {"KEY": {"value": CANARY}},
        ["A", {"KEY": CANARY}],
        {"KEY": f"ssm:{CANARY}"}, {"KEY": f"ssm:/spotrun/../{CANARY}"}, {"KEY": f"env:{CANARY}"},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_is_refused_and_not_shown(secrets: Any) -> None:
    with pytest.raises(SpecInvalid) as refused:
        spec(secrets=secrets)
    assert "cNry" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"secrets": ["SPOTRUN_RUN"]}, "belong to spotrun"),
        ({"secrets": ["1A"]}, "not a variable name"),
        ({"secrets": ["A", {"B": "env:C"}, {"D": None}]}, r"write \{A: null, B: env:C, D: null\}"),
        ({"secrets": ["A", {"B": CANARY}]}, r"write \{A: null, B: null\}"),
        ({"secrets": ["A", {CANARY: "env:C"}]}, r"write \{NAME: null, OTHER: env:VARIABLE\}"),
    ],
    ids=str,
)
def test_invalid_secret_names_are_refused_with_a_fix(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecInvalid, match=words):
        spec(**keys)


def test_a_variable_of_this_machine_is_no_secret_of_an_instance_on_aws(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: n\ntrain: {run: x}\nresources: {cloud: aws}\n"
        "checkpoint: {uri: 's3://bucket/runs'}\nsecrets: {A: 'env:A'}\n"
    )
    with pytest.raises(SpecInvalid, match="ssm:/spotrun/A"):
        load_spec(job)


def test_a_job_names_no_more_secrets_than_the_role_of_its_run_can(tmp_path: Path) -> None:
    def loaded(secrets: object, extra: str = "") -> int:
        job = tmp_path / "job.yaml"
        job.write_text(
            "name: n\ntrain: {run: x}\nresources: {cloud: aws}\ncheckpoint: {uri: 's3://bucket/runs'}\n"
            f"secrets: {json.dumps(secrets)}\n{extra}"
        )
        return len(load_spec(job).secrets)

    many = [f"S{number}" for number in range(SECRETS_MAX + 1)]
    assert loaded(many[1:]) == SECRETS_MAX
    with pytest.raises(SpecInvalid, match="names 21 parameters, but a run's role can read only 20"):
        loaded(many)
    assert loaded(many, "aws: {instance_profile: mine}\n") == SECRETS_MAX + 1
    with pytest.raises(SpecInvalid, match="too long for a tag"):
        loaded({"A": "ssm:/spotrun/" + "a" * 257})


# -- on an instance --------------------------------------------------------------------------------------------------


@pytest.fixture
def account(account_of_module: GuardedAccount, monkeypatch: pytest.MonkeyPatch) -> GuardedAccount:
    """One in which the caller is an instance: it has the role that we ship."""
    account = account_of_module
    account.reach(monkeypatch)
    account.furnish()
    account.denied = []
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", f"spotrun-run-{RUN}")  # whoever calls is an instance of this run
    return account


def put(account: GuardedAccount, path: str, value: str = CANARY, kind: str = "SecureString") -> None:
    with account.as_administrator():
        boto3.client("ssm").put_parameter(Name=path, Value=value, Type=kind)


def name(account: GuardedAccount, *paths: str) -> None:
    """What the job names that the caller is an instance of."""
    with account.as_administrator():
        account.identify(RUN, *paths)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is denied is denied for good."""
    monkeypatch.setattr(parameter_store, "ASK_AGAIN_FOR_S", 0.0)
    monkeypatch.setattr(parameter_store, "ASK_AGAIN_EVERY_S", 0.0)


def read(**paths: str) -> dict[str, str]:
    return read_values({name: Reference("ssm", path) for name, path in paths.items()}, {})


def test_an_instance_reads_its_secrets_with_its_role(account: GuardedAccount) -> None:
    paths = {f"S{number}": f"/spotrun/s{number}" for number in range(12)}  # more than one call may name
    for variable, path in paths.items():
        put(account, path, f"{CANARY}{variable}")
    name(account, *paths.values())
    assert read(**paths) == {variable: f"{CANARY}{variable}" for variable in paths}


def test_an_instance_reads_no_secret_that_only_other_jobs_name(account: GuardedAccount) -> None:
    for path in ("/spotrun/a", "/spotrun/b", "/spotrun/a/deeper"):
        put(account, path)
    name(account, "/spotrun/a")
    assert read(A="/spotrun/a") == {"A": CANARY}
    for others in ("/spotrun/b", "/spotrun/a/deeper"):
        with pytest.raises(SecretUnreadable, match="AccessDenied") as refused:
            read(A="/spotrun/a", B=others)
        assert "that its job names" in str(refused.value.hint)
    assert [asked.resource.partition("parameter")[2] for asked in account.denied] == ["/spotrun/b", "/spotrun/a/deeper"]


def test_instance_may_not_read_other_secrets(account: GuardedAccount) -> None:
    put(account, "/database/password")
    with pytest.raises(SecretUnreadable, match="AccessDenied") as refused:
        read(A="/database/password")
    assert [asked.action for asked in account.denied] == ["ssm:GetParameters"]
    assert "/spotrun/" in str(refused.value.hint)


def test_missing_or_unencrypted_secret_is_reported_with_the_command(account: GuardedAccount) -> None:
    put(account, "/spotrun/clear", kind="String")
    name(account, "/spotrun/clear", "/spotrun/b")
    with pytest.raises(SecretUnreadable, match="is not encrypted") as clear:
        read(A="/spotrun/clear")
    with pytest.raises(SecretUnreadable, match=f"no parameter /spotrun/b in {REGION}") as missing:
        read(B="/spotrun/b")
    for refused in (clear, missing):
        assert "aws ssm put-parameter --type SecureString --name /spotrun/" in str(refused.value.hint)
        assert "cNry" not in str(refused.value)


def answer(code: str, status: int) -> ClientError:
    facts = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(facts, "GetParameters")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (EndpointConnectionError(endpoint_url="https://ssm"), True),
        (answer("ThrottlingException", 400), True),
        (answer("InternalServerError", 500), True),
        (answer("AccessDeniedException", 400), False),
        (answer("InvalidKeyId", 400), False),
    ],
    ids=str,
)
def test_a_parameter_store_that_is_away_is_no_missing_secret(
    monkeypatch: pytest.MonkeyPatch, error: Exception, passes: bool
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(parameter_store, "_client", refuse)
    with pytest.raises(StoreUnavailable if passes else SecretUnreadable):
        read(A="/spotrun/a")


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException"])
def test_a_role_that_is_not_known_everywhere_yet_is_waited_for(
    account: GuardedAccount, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    put(account, "/spotrun/a")
    name(account, "/spotrun/a")
    client, refusals = parameter_store._client, [answer(code, 400)] * 3

    def late(*how: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return client(*how)

    monkeypatch.setattr(parameter_store, "ASK_AGAIN_FOR_S", 60.0)
    monkeypatch.setattr(parameter_store, "_client", late)
    assert read(A="/spotrun/a") == {"A": CANARY}


def test_old_role_is_denied_at_once(account: GuardedAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    put(account, "/spotrun/a")
    monkeypatch.setattr(parameter_store, "ASK_AGAIN_FOR_S", 60.0)
    with pytest.raises(SecretUnreadable, match="AccessDenied"):
        read_values({"A": Reference("ssm", "/spotrun/a")}, {}, rights_are_new=False)
    assert len(account.denied) == 1


ON_AWS: dict[str, Any] = {"resources": {"cloud": "aws"}, "checkpoint": {"uri": "s3://bucket/runs"}}


def test_only_the_trainer_has_them(account: GuardedAccount, tmp_path: Path) -> None:
    put(account, "/spotrun/WORD")
    name(account, "/spotrun/WORD")
    require_that_only_the_trainer_has_it(tmp_path, CANARY, **ON_AWS)


def test_a_secret_that_cannot_be_read_ends_the_run_with_the_reason(account: GuardedAccount, tmp_path: Path) -> None:
    name(account, "/spotrun/WORD")
    require_that_a_missing_one_ends_the_run(tmp_path, "there is no parameter /spotrun/WORD", **ON_AWS)


# -- on the local cloud ----------------------------------------------------------------------------------------------


def test_secrets_of_the_local_cloud_are_variables_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", CANARY)
    monkeypatch.setenv("B", "b-value-b")
    wanted = spec(secrets={"A": "env:MINE", "B": ""})
    assert read_values(wanted.secret_references, {"MINE": CANARY, "B": "b-value-b"}) == {
        "A": CANARY,
        "B": "b-value-b",
    }
    assert not {"A", "B", "MINE"} & user_environment(wanted, tmp_path, "i-1", "0123456789").keys()


def test_a_launch_without_the_variable_is_refused_before_anything_is_made(sandbox: Sandbox) -> None:
    told = sandbox.call("launch", sandbox.job("needy", extra="secrets: [NOT_SET_ANYWHERE]\n"), "-y", code=2)
    assert "NOT_SET_ANYWHERE is not set" in told
    assert not sandbox.store.exists() or not list(sandbox.store.iterdir())


# -- what is hidden --------------------------------------------------------------------------------------------------


def test_a_secret_is_hidden_however_it_is_written_down() -> None:
    redaction = OutputRedaction(forms_of_all([CANARY, "first line\nsecond line"]))
    for text in (CANARY, base64.b64encode(CANARY.encode()).decode(), "second line"):
        hidden = redaction.hide(f"<{text}>".encode()).decode()
        assert text not in hidden
        assert len(hidden) >= len(text)


def test_output_from_before_secrets_were_lost_is_starred(tmp_path: Path) -> None:
    first = Console(tmp_path, OutputRedaction([CANARY]))
    first.path.write_text(f"it is {CANARY}\n")
    lost = Secrets(failure="away").redaction(spec(secrets=["WORD"]), tmp_path)
    console = Console(tmp_path, lost)
    size_bytes = console.size_bytes()
    console.note("from now on")
    told = console.read(0, 1000)
    assert told == b"*" * size_bytes + b"[spotrun] from now on\n"
    assert console.read(3, 1000) == told[3:]
    assert Secrets(values={"WORD": CANARY}).redaction(spec(), tmp_path).sealed == 0
    assert "cNry" not in repr(Secrets(values={"WORD": CANARY}))


# -- the doctor ------------------------------------------------------------------------------------------------------


def test_the_doctor_sees_which_secrets_are_there_and_reads_none(
    account: GuardedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SDK_UA_APP_ID")
    put(account, "/spotrun/a")
    put(account, "/spotrun/b", kind="String")
    put(account, "/elsewhere/c")
    wanted = {
        name: Reference("ssm", path)
        for name, path in zip("ABCD", ("/spotrun/a", "/spotrun/b", "/elsewhere/c", "/spotrun/d"), strict=True)
    }
    found = {each.name: each for each in secret_findings(Region(REGION, system_clock()), wanted)}
    assert {name: each.verdict for name, each in found.items()} == {
        "secret A": Verdict.OK, "secret B": Verdict.FAILED, "secret C": Verdict.WARNED, "secret D": Verdict.FAILED,
    }  # fmt: skip
    assert "put-parameter --type SecureString --name /spotrun/d" in found["secret D"].hint
    assert "aws ssm delete-parameter --name" in found["secret B"].hint
    assert account.denied == []
    account.policies = ({"Statement": []},)
    (finding,) = secret_findings(Region(REGION, system_clock()), wanted)
    assert finding.verdict is Verdict.UNKNOWN
    assert "ssm:DescribeParameters" in finding.hint
