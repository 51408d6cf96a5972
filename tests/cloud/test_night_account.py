"""A night from `spotrun night install` to `night rm`, with the function as it was built, under AWS's runtime client."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.aws import night_stack, nights
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.function_zip import SIZE_MAX_BYTES, function_of_this_installation
from spotrun.clouds.aws.night_alarm import WARNING
from spotrun.clouds.aws.night_stack import NightStack
from spotrun.clouds.aws.nights import AwsNights
from spotrun.clouds.nights import Function
from spotrun.errors import CloudError
from spotrun.folder.ledger import Ledger
from spotrun.folder.night import Pin
from spotrun.folder.night_record import NightRecord, names
from spotrun.runs.open_run import OpenRun
from tests.support.called_spotrun import Spotrun, spotrun  # noqa: F401
from tests.support.ec2_server import IMAGE_PARAMETER, REGION, TYPES
from tests.support.eventually import eventually
from tests.support.night_account import BUCKET, STORE, NightAccount
from tests.support.played_agent import Agent
from tests.support.webhook_server import WebhookServer

NIGHT = "resnet50"
WEBHOOK = "/spotrun/SLACK_WEBHOOK"


@pytest.fixture(scope="module")
def function() -> Function:
    """Of the packages that are installed here, also where these run on this machine alone."""
    return function_of_this_installation(portable=False)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Function) -> Iterator[NightAccount]:
    with NightAccount(ScaledClock(datetime.now(UTC), 1.0), tmp_path / "function") as account:
        account.reach(monkeypatch)
        monkeypatch.setattr(nights, "function_of_this_installation", lambda: function)
        monkeypatch.setattr(night_stack, "POLL_S", 0.01)
        account.furnish()
        with account.as_administrator():
            boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield account
        assert account.denied == []


@pytest.fixture
def job(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("import lightning\n")
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: {NIGHT}\nworkdir: work\ntrain: {{script: train.py}}\n"
        f"resources: {{cloud: aws}}\ncheckpoint: {{uri: '{STORE}'}}\n"
        "notify: [{webhook: $SLACK_WEBHOOK, on: [night]}]\n"
        f"aws: {{instance_types: {list(TYPES)}, image_parameter: {IMAGE_PARAMETER}}}\n"
    )
    return path


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


INSTALL = ("--at", "22:00 Europe/Berlin", "--days", "mon-fri", "--deadline", "8h", "--budget", "15", "-y")


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_night_is_installed_begun_interrupted_completed_and_removed(
    account: NightAccount,
    job: Path,
    function: Function,
    server: WebhookServer,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    assert len(function.data) < SIZE_MAX_BYTES
    with account.as_administrator():
        for address, words in ((None, "there is no parameter"), ("http://127.0.0.1/cNry", "is no https:// address")):
            if address is not None:
                put_webhook(address)
            said = spotrun("night", "install", job, *INSTALL)
            assert said.code == 2, said
            assert f"{words} {WEBHOOK}" in said.err or f"{WEBHOOK}, the address for $SLACK_WEBHOOK, {words}" in said.err
            assert f"aws ssm put-parameter --type SecureString --name {WEBHOOK}" in said.err
            assert "cNry" not in said.err
        put_webhook("https://hooks.example.com/cNry")
        said = spotrun("night", "install", job, *INSTALL)
        put_webhook(server.url)  # a server of this machine, in the place of Slack's
    assert said.code == 0, said.err
    assert "installed resnet50; the next night is due at" in said.out
    assert account.schedule("begin", NIGHT)["ScheduleExpression"] == "cron(0 22 ? * MON,TUE,WED,THU,FRI *)"
    assert account.schedule("begin-again", NIGHT)["ScheduleExpressionTimezone"] == "Europe/Berlin"
    assert (account.schedule("tick", NIGHT)["State"], account.rule(NIGHT)["State"]) == ("DISABLED", "DISABLED")

    begun = account.run({"kind": "begin", "due": "2026-11-27T21:00:00Z"})
    assert (begun["night"], begun["state"]) == ("2026-11-27", "starting"), begun
    assert "trouble" not in begun, begun
    assert account.schedule("tick", NIGHT)["State"] == "ENABLED"
    first = only_instance()
    account.run({"kind": "tick"})
    assert account.rule(NIGHT)["State"] == "ENABLED"
    assert first in account.rule(NIGHT)["EventPattern"]
    again = account.run({"kind": "begin", "due": "2026-11-27T21:00:00Z"})
    assert again["run"] == begun["run"], "the call came twice"
    account.is_cold()
    assert account.run({"kind": "tick"})["run"] == begun["run"]
    assert only_instance() == first

    run = OpenRun(f"{STORE}/{begun['run']}", "test")
    agent = Agent(Ledger(run.store, run.created.uid, "agent", run.clock), run.store, run.clock)
    agent.is_told_to_go()
    account.run({"detail-type": WARNING, "detail": {"instance-id": first}})
    state = run.ledger.refresh()
    assert state.current is not None
    assert state.current.notice_at is not None
    replacement = [each for each in state.launches.values() if each.number != state.current.launch]
    assert len(replacement) == 1
    assert replacement[0].intended_at - state.current.notice_at < timedelta(seconds=60), "a busy machine takes a while"
    agent.drains("notice")
    account.end(first, "Server.SpotInstanceTermination")
    account.run({"kind": "tick"})
    second = Agent(Ledger(run.store, run.created.uid, "agent", run.clock), run.store, run.clock)
    second.completes()
    account.end(second.instance_id, "Client.InstanceInitiatedShutdown")
    # A look at the cloud may be left out while a run is still, so that its end is seen by a later call.
    ended = eventually(lambda: next((told for told in [account.run({"kind": "tick"})] if told["done"]), None))
    assert ended["state"] == "completed"
    assert "unheard" not in ended, ended
    assert [each.json["event"] for each in server.posted] == ["night"]
    assert (account.schedule("tick", NIGHT)["State"], account.rule(NIGHT)["State"]) == ("DISABLED", "DISABLED")
    with account.as_administrator():
        assert running() == []
        names = [each["RoleName"] for each in boto3.client("iam").list_roles()["Roles"]]
        assert f"spotrun-run-{run.created.uid}" not in names
        listed = spotrun("night", "ls", "--store", STORE, "--json").json
        assert [(each["run"], each["state"], each["last"]) for each in listed] == [
            (begun["run"], "completed", "2026-11-27")
        ]
        assert listed[0]["calls_are_counted"]
        calls = spotrun("report", begun["run"], "--store", STORE, "--json").json["runner_calls"]
        assert (calls["by_events"], calls["starts"], calls["memory_mb"]) == (1, 2, 256)
        assert calls["seconds"] > 0
        assert calls["reads"] > calls["writes"] > 0
        assert calls["usd"] == listed[0]["calls_usd"]
        assert spotrun("night", "rm", NIGHT, "--store", STORE, "-y").out == f"removed {NIGHT}\n"
        assert f"spotrun-night-{NIGHT}" not in [each["RoleName"] for each in boto3.client("iam").list_roles()["Roles"]]
        gone = spotrun("night", "run", NIGHT, "--store", STORE)
        assert gone.code == 3
        assert "no night 'resnet50' is installed" in gone.err


STRANGE = b"a stranger's archive"


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_code_of_the_function_is_what_was_built_whatever_the_bucket_holds(
    account: NightAccount,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    built = Function(b"an archive", "python3.12", "x86_64")
    monkeypatch.setattr(nights, "function_of_this_installation", lambda: built)
    monkeypatch.setattr(account, "run", lambda event: {})
    record, pins = NightRecord(STORE, NIGHT), list[Pin]()

    def refuses(*_: object) -> None:
        raise CloudError("the stack failed")

    key = f"runs/nights/function-{hashlib.sha256(built.data).hexdigest()[:32]}.zip"
    with account.as_administrator():
        boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=STRANGE)
        put_webhook("https://hooks.example.com/cNry")
        for _ in range(2):  # the second one changes what the first one has made
            before = names(STORE) and record.read()
            with monkeypatch.context() as patch:
                patch.setattr(NightStack, "deploy", refuses)
                assert spotrun("night", "install", job, *INSTALL).code == CloudError.exit_code
            assert (names(STORE) and record.read()) == before, "what is refused leaves the record as it was"
            said = spotrun("night", "install", job, *INSTALL)
            assert said.code == 0, said.err
            assert account.code(NIGHT) == built.data
            pin = AwsNights(Region(REGION, account.clock)).pinned(NIGHT)
            assert pin is not None
            pins.append(pin)
            assert NightRecord(STORE, NIGHT, pin).read() == record.read()
    assert pins[0].key == pins[1].key, "a run that goes on stays known"
    assert pins[0].sha256 != pins[1].sha256


def put_webhook(address: str) -> None:
    kept = {"Name": WEBHOOK, "Value": address, "Type": "SecureString"}
    boto3.client("ssm", region_name=REGION).put_parameter(**kept, Overwrite=True)


NAMES_WHAT_IT_COMPILES = """
import importlib, importlib.machinery, sys
root = sys.argv[1]
sys.path.insert(0, root)
compiles = importlib.machinery.SourceFileLoader.source_to_code
def named(loader, data, path, **others):
    if str(path).startswith(root):
        print(path)
    return compiles(loader, data, path, **others)
importlib.machinery.SourceFileLoader.source_to_code = named
for name in ("spotrun.night.function", "spotrun.store.s3", "spotrun.clouds.aws.nights"):
    importlib.import_module(name)
print("of", importlib.import_module("spotrun.errors").SpotrunError.__init__.__code__.co_filename)
"""

BUILDS_A_SMALL_ONE = """
import hashlib
from spotrun.clouds.archive import archive_for
from spotrun.clouds.aws.function_zip import LAMBDA
few = LAMBDA._replace(calls=lambda name: name.startswith(("tenacity/", "jmespath/")))
digest = hashlib.sha256(archive_for(few, portable=False).data).hexdigest()
"""


def test_a_cold_start_compiles_nothing(function: Function, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(function.data)) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-S", "-E", "-B", "-c", NAMES_WHAT_IT_COMPILES, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout == f"of {tmp_path}/spotrun/errors.py\n"


def test_the_archive_is_the_same_whichever_process_builds_it() -> None:
    here: dict[str, str] = {}
    exec(BUILDS_A_SMALL_ONE, here)
    command = [sys.executable, "-c", f"{BUILDS_A_SMALL_ONE}print(digest)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == here["digest"]


def running() -> list[str]:
    found = boto3.client("ec2", region_name=REGION).describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )
    return [row["InstanceId"] for each in found["Reservations"] for row in each["Instances"]]


def only_instance() -> str:
    (found,) = running()
    return str(found)
