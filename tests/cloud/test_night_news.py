"""Who is told of a night without a laptop: by the function itself, once or more, and never at the run's expense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.nights import AwsNights
from spotrun.errors import CloudError, SpecInvalid
from spotrun.night import news as night_news
from spotrun.notify.sinks import require_https
from spotrun.secrets import parameter_store
from spotrun.secrets.reference import PARAMETER, Reference, SecretUnreadable
from tests.support.http_server import Request
from tests.support.manual_clock import ManualClock
from tests.support.night_world import NightWorld, require_one_clean_night, utc
from tests.support.plain_aws import refusal
from tests.support.webhook_server import WebhookServer, hanging

PATH = "/spotrun/SLACK_WEBHOOK"
DENIED = "User: arn:aws:iam::1:user/me is not authorized to perform: ssm:GetParameters on resource: x"
ALL = ["started", "done", "night"]


class Parameters:
    """The Parameter Store of one region, with what it holds; `asked` is how often."""

    def __init__(self, **held: str) -> None:
        self.held = {f"/spotrun/{name}": value for name, value in held.items()}
        self.asked = 0
        self.kind = "SecureString"
        self.meta = SimpleNamespace(region_name="us-east-1")

    def get_parameters(self, Names: list[str], WithDecryption: bool = False) -> dict[str, Any]:
        self.asked += 1
        found = [{"Name": name, "Type": self.kind, "Value": self.held[name]} for name in Names if name in self.held]
        return {"Parameters": found, "InvalidParameters": [name for name in Names if name not in self.held]}


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


@pytest.fixture
def parameters(monkeypatch: pytest.MonkeyPatch, server: WebhookServer) -> Parameters:
    found = Parameters(SLACK_WEBHOOK=f"{server.url}services/T0/B0/cNryAddress")
    monkeypatch.setattr(parameter_store, "_client", lambda *_: found)
    monkeypatch.setattr(night_news, "WITHIN_S", 60.0)
    return found


@pytest.fixture
def new_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parameters: Parameters) -> Callable[..., NightWorld]:
    def made(**job: Any) -> NightWorld:
        world = NightWorld(monkeypatch, tmp_path / "work", utc("2026-11-23T12:00:00"), work_hours=1.0)
        world.install(**job)
        world.is_quiet_until(world.next_due())
        return world

    return made


@pytest.fixture
def world(new_world: Callable[..., NightWorld]) -> NightWorld:
    return new_world(notify=[{"webhook": "$SLACK_WEBHOOK"}])


def told(server: WebhookServer) -> list[str]:
    return [each.json["event"] for each in server.posted]


def test_a_night_tells_what_becomes_of_it_and_its_address_is_kept_nowhere(
    new_world: Callable[..., NightWorld], server: WebhookServer, parameters: Parameters
) -> None:
    on_spot = {"on_demand_after": "10m", "return_to_spot": False}
    world = new_world(notify=[{"webhook": "$SLACK_WEBHOOK"}], policy=on_spot)
    world.passes(20)
    assert world.is_interrupted()
    world.passes(110)
    require_one_clean_night(world)
    assert told(server) == ["started", "interrupted", *ALL[1:]]
    assert server.posted[-1].json["text"].startswith("resnet50-")
    assert "the night is over (completed)" in server.posted[-1].json["text"]
    assert "unheard" not in str(world.answers)
    assert b"cNryAddress" not in b"".join(world._objects.objects.values())
    assert "cNryAddress" not in str(world.answers)
    assert parameters.asked <= 4


def test_call_without_news_sends_no_request(new_world: Callable[..., NightWorld], parameters: Parameters) -> None:
    asked = list[Counter[str]]()
    for notify in ([{"webhook": "$SLACK_WEBHOOK"}], []):
        world = new_world(notify=notify)
        world.passes(20)
        before, read = Counter(world.asked), parameters.asked
        world.passes(20)
        asked.append(world.asked - before)
        assert parameters.asked == read
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (503, 12)])
def test_a_webhook_that_fails_is_given_up_and_the_night_ends_as_ever(
    world: NightWorld, server: WebhookServer, status: int, tries: int
) -> None:
    server.answer = lambda *_: status
    world.passes(180)
    require_one_clean_night(world)
    assert Counter(told(server)) == dict.fromkeys(ALL, tries)
    unheard = [each["unheard"] for each in world.answers if "unheard" in each]
    assert unheard[0] == f"webhook $SLACK_WEBHOOK did not receive 'started': the server answered {status}"


def test_a_slow_webhook_is_left_after_seconds_and_tried_in_the_next_call(
    world: NightWorld, server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_news, "WITHIN_S", 1.0)

    def slow_at_first(own: WebhookServer, posted: Request) -> int | None:
        if len(own.posted) > 1:
            monkeypatch.setattr(night_news, "WITHIN_S", 60.0)
            return 200
        return hanging(own, posted)

    server.answer = slow_at_first
    world.passes(120)
    require_one_clean_night(world)
    assert [*dict.fromkeys(told(server))] == ALL
    assert len(server.posted) > len(ALL)
    assert server.posted[0].json["id"] == server.posted[1].json["id"]
    assert any("no answer within 0.5 s" in each.get("unheard", "") for each in world.answers)


def test_a_function_killed_after_a_delivery_and_before_its_record_delivers_it_again(
    world: NightWorld, server: WebhookServer
) -> None:
    def kill_at_the_end(own: WebhookServer, posted: Request) -> int:
        if posted.json["event"] == "night" and told(own).count("night") == 1:
            world.kill_in = 0
        return 200

    server.answer = kill_at_the_end
    world.passes(120)
    require_one_clean_night(world)
    assert told(server) == [*ALL, "night"]
    assert server.posted[-1].headers["idempotency-key"] == server.posted[-2].headers["idempotency-key"]


def test_a_cold_start_tells_nothing_twice(world: NightWorld, server: WebhookServer) -> None:
    world.passes(120, each_minute=world.is_cold)
    require_one_clean_night(world)
    assert told(server) == ALL


def test_missing_address_is_reported_and_a_new_one_is_used_from_then_on(
    world: NightWorld, server: WebhookServer, parameters: Parameters
) -> None:
    address = parameters.held.pop(PATH)
    world.passes(8)
    assert any(f"there is no parameter {PATH}" in each.get("unheard", "") for each in world.answers)
    parameters.held[PATH] = address
    world.passes(110)
    require_one_clean_night(world)
    assert told(server) == ALL


def test_only_subscribed_events_are_sent_and_a_local_command_never_runs(
    new_world: Callable[..., NightWorld], server: WebhookServer, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    world = new_world(notify=[{"command": f"touch {ran}"}, {"webhook": "$SLACK_WEBHOOK", "on": ["night"]}])
    world.passes(120)
    require_one_clean_night(world)
    assert told(server) == ["night"]
    assert not ran.exists()


def test_night_that_does_not_begin_is_reported_once_within_the_hour_and_may_begin_then(
    world: NightWorld, server: WebhookServer
) -> None:
    (key,) = [key for key in world._objects.objects if key.startswith("runs/nights/resnet50/work/")]
    folder = world._objects.objects.pop(key)
    world.passes(59)
    assert world.said
    assert told(server) == [], "calls are repeated, and nobody is woken for what passes by itself"
    world.passes(35)
    (news,) = server.posted
    assert news.json["id"] == "resnet50-20261123-night"
    assert news.json["text"].startswith(
        "resnet50: the night of 2026-11-23 is not under way; spotrun tries to start it "
    )
    assert key.removeprefix("runs/nights/resnet50/") in news.json["sentence"]
    world._objects.objects[key] = folder
    world.passes(110)
    require_one_clean_night(world)
    assert told(server) == ["night", *ALL]


def test_foreign_record_is_reported_to_the_webhooks_of_the_installed_one(
    world: NightWorld, server: WebhookServer, parameters: Parameters
) -> None:
    """The stranger's own webhooks are none of the night's, and a mark of theirs is no delivery."""
    key = "runs/nights/resnet50/night.json"
    mark = "runs/nights/resnet50/notified/0-20261123-night.json"
    world._objects.objects[mark] = b'{"delivered":true,"tries":1}'
    installed = world._objects.objects[key]
    parameters.held["/spotrun/OF_A_STRANGER"] = f"{server.url}stranger"
    world._objects.objects[key] = installed.replace(b"SLACK_WEBHOOK", b"OF_A_STRANGER")
    world.passes(100)
    (news,) = server.posted
    assert news.json["id"] == "resnet50-20261123-night"
    assert "night.json is not what was installed" in news.json["sentence"]
    assert "spotrun night install" in news.json["sentence"]
    assert news.target != "/stranger"
    assert world.uids() == []
    assert world.invoke({"kind": "look"}), "what looks after a run asks nobody for the record"


def test_night_without_its_schedule_and_an_undelivered_webhook_are_reported(
    world: NightWorld, server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins; nobody is called each minute to look after it."""

    def no_schedules(operation: str) -> None:
        if "schedule" in operation:
            raise refusal("AccessDeniedException", 403)

    world.aws.fault = no_schedules
    server.answer = lambda *_: 503
    world.passes(70)
    assert "is not under way" in server.posted[-1].json["sentence"]
    *_, said = world.said
    assert "webhook $SLACK_WEBHOOK did not receive 'night': the server answered 503" in said
    assert server.posted[-1].json["sentence"].partition(": ")[2] in said


def test_schedule_that_calls_no_later_night_is_reported_once(world: NightWorld, server: WebhookServer) -> None:
    world.aws.due["begin-again"] = "DISABLED"
    world.passes(130)
    require_one_clean_night(world)
    (warning,) = [each.json["sentence"] for each in server.posted if "may not begin" in each.json["sentence"]]
    assert "the schedule spotrun-night-resnet50/begin-again is disabled; `spotrun night ls` says" in warning
    assert any("begin-again is disabled" in each.get("trouble", "") for each in world.answers)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (NoCredentialsError(), "aws sso login"),
        (
            ClientError({"Error": {"Code": "ExpiredTokenException", "Message": "x"}}, "GetParameters"),
            "log in again",
        ),
        (ClientError({"Error": {"Code": "AccessDeniedException", "Message": DENIED}}, "GetParameters"), "ask for ssm:"),
    ],
    ids=str,
)
def test_installer_who_may_not_read_an_address_gets_a_fix(
    monkeypatch: pytest.MonkeyPatch, parameters: Parameters, fault: Exception, words: str
) -> None:
    def refuses(**_: Any) -> None:
        raise fault

    monkeypatch.setattr(parameters, "get_parameters", refuses)
    with pytest.raises(CloudError, match=PATH) as refused:
        AwsNights(Region("us-east-1", ManualClock())).addresses({"SLACK_WEBHOOK": Reference(PARAMETER, PATH)})
    assert words in str(refused.value.hint)


def test_command_for_an_address_names_its_region(parameters: Parameters) -> None:
    parameters.kind = "String"
    with pytest.raises(SecretUnreadable, match="not encrypted") as refused:
        AwsNights(Region("us-east-1", ManualClock())).addresses({"SLACK_WEBHOOK": Reference(PARAMETER, PATH)})
    deleted, put = str(refused.value.hint).split(" && ")
    assert deleted.endswith(f"aws ssm delete-parameter --name {PATH} --region us-east-1")
    assert put == f"aws ssm put-parameter --type SecureString --name {PATH} --value … --region us-east-1"


def test_an_address_with_a_user_is_refused_for_that_and_not_shown() -> None:
    with pytest.raises(SpecInvalid, match="a user name before its host") as refused:
        require_https("HOOK", "https://me:cNry@example.com/x", PATH, "type")
    assert "cNry" not in str(refused.value)
