"""What becomes of errors of the AWS SDK, which has a hundred kinds; and how long a call may take."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions as sdk
from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session
from botocore.loaders import Loader

from spotrun.address import BucketAddress
from spotrun.clouds.aws import calls, clock_skew
from spotrun.clouds.aws.account_checks import account_number
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.error_codes import error_of
from spotrun.clouds.error_kinds import BadImage, ClockWrong, CredentialsExpired, CredentialsRefused, Unexplained
from spotrun.clouds.patience import ASIDE, ATTEMPTS_MAX, RENEWED_EVERY_S
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, LoginExpired, StoreError
from spotrun.store import s3_login
from spotrun.store.s3 import S3Store
from tests.support.aws_accidents import ASKED_AGAIN
from tests.support.manual_clock import ManualClock
from tests.support.plain_aws import REGION, PlainAws, refusal

SDK_ERRORS = sorted(
    (kind for kind in vars(sdk).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    key=lambda kind: kind.__name__,
)
SERVICES = ("ec2", "iam", "ssm", "sts", "scheduler", "pricing", "service-quotas")


@pytest.fixture
def region() -> Region:
    return Region(REGION, ManualClock())


def failing(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def bare(kind: type[Exception]) -> Exception:
    """One of its class, with no words: their arguments differ."""
    error = kind.__new__(kind)
    if isinstance(error, sdk.ClientError):
        error.response = {}
    return error


# -- every error is one of ours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SDK_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_sdk_is_one_of_ours(region: Region, kind: type[Exception]) -> None:
    with pytest.raises(CloudError):
        region.ask("look", failing(bare(kind)))


def error_shapes() -> Iterator[tuple[str, str, int]]:
    loader = Loader()
    for service in SERVICES:
        for name, shape in loader.load_service_model(service, "service-2")["shapes"].items():
            if shape.get("exception"):
                told = shape.get("error", {})
                yield service, told.get("code", name), told.get("httpStatusCode", 400)


@pytest.mark.parametrize("code", sorted(ASKED_AGAIN))
def test_error_that_the_sdk_retries_is_transient(code: str) -> None:
    assert isinstance(error_of("look", refusal(code, 400)), CloudUnavailable)


def test_every_error_of_the_service_models_is_one_of_ours() -> None:
    shapes = [*error_shapes()]
    assert len(shapes) > 100
    for service, code, status in shapes:
        error = error_of("look", refusal(code, status))
        assert isinstance(error, CloudError), service
        assert code in error.message


@pytest.mark.parametrize(
    "error",
    [
        sdk.LoginRefreshRequired(),
        sdk.UnauthorizedSSOTokenError(),
        sdk.RefreshWithMFAUnsupportedError(),
        RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired."),
    ],
    ids=repr,
)
def test_expired_credentials_are_reported_as_expired(region: Region, error: Exception) -> None:
    with pytest.raises(CredentialsExpired) as raised:
        region.ask("look", failing(error))
    mfa = isinstance(error, sdk.RefreshWithMFAUnsupportedError)
    assert ("asks for a new code" if mfa else "log in again") in str(raised.value)


def test_image_that_another_account_does_not_share_is_no_wrong_key() -> None:
    error = error_of("launch", refusal("AuthFailure", 403, "Not authorized for images: [ami-0123456789abcdef0]"))
    assert isinstance(error, BadImage)
    assert isinstance(
        error_of("launch", refusal("AuthFailure", 403, "AWS was not able to validate the access credentials")),
        CredentialsRefused,
    )


def test_encoded_reason_of_a_denial_is_left_out() -> None:
    words = "You are not authorized to perform this operation. User: arn:aws:iam::1:user/ada is not authorized."
    error = error_of(
        "launch",
        refusal("UnauthorizedOperation", 403, f"{words} Encoded authorization failure message: {'x7_-Kq' * 1000}"),
    )
    assert error.message.endswith(f"UnauthorizedOperation: {words} (AWS has encoded the reason)")


def test_region_in_which_sts_is_off_is_said() -> None:
    error = error_of("look", refusal("RegionDisabledException", 403, "STS is not activated in this region."))
    assert isinstance(error, AccessDenied)
    assert "activate STS" in str(error.hint)


def test_unnamed_error_is_transient_and_reported_with_its_count(region: Region) -> None:
    for first in (1, 1 + ATTEMPTS_MAX):
        with pytest.raises(Unexplained) as raised:
            region.ask("look", failing(ZeroDivisionError("of the SDK")))
        assert "ZeroDivisionError: of the SDK" in raised.value.message
        assert f"number {first + ATTEMPTS_MAX - 1} of its kind" in raised.value.message


def test_a_profile_that_is_gone_is_no_traceback(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CredentialsRefused, match="nobody"):
        assert region.ec2


PORTAL = b"<html><head><title>Welcome to the hotel</title></head><body>Log in</body></html>"


@pytest.mark.parametrize(
    "ask",
    [
        lambda region: region.ec2.describe_images(ImageIds=["ami-1"]),
        lambda region: region.ec2.terminate_instances(InstanceIds=["i-1"]),
        lambda region: region.ssm.get_parameter(Name="/a"),
        lambda region: region.sts.get_caller_identity(),
        lambda region: region.scheduler.create_schedule(
            Name="a",
            ScheduleExpression="at(1)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": "a", "RoleArn": "a" * 99},
        ),
    ],
)
def test_the_page_of_a_captive_portal_is_no_answer(
    region: Region, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Region], Any]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr(URLLib3Session, "send", lambda _, asked: AWSResponse(asked.url, 200, {}, Page(PORTAL)))
    with pytest.raises(CloudUnavailable):
        region.ask("look", lambda: ask(region))


@pytest.mark.parametrize("headers", [{}, {"x-amz-request-id": "1"}], ids=["a portal", "a store that speaks S3"])
def test_a_bucket_is_there_if_a_store_says_so_with_the_id_of_the_request(
    region: Region, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr(URLLib3Session, "send", lambda _, asked: AWSResponse(asked.url, 200, headers, Page(b"")))
    with nullcontext() if headers else pytest.raises(CloudUnavailable):
        region.ask("look", lambda: region.s3.head_bucket(Bucket="a-bucket"))


FAULT = b"<!DOCTYPE html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<p>The server was unable to.</p>"


@pytest.mark.parametrize(
    "ask",
    [lambda region: region.ec2.describe_vpcs(), lambda region: region.ssm.get_parameter(Name="/a")],
    ids=["XML", "JSON"],
)
def test_html_page_is_reported_by_its_title(
    region: Region, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Region], Any]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr(URLLib3Session, "send", lambda _, asked: AWSResponse(asked.url, 500, {}, Page(FAULT)))
    with pytest.raises(CloudUnavailable) as raised:
        region.ask("look", lambda: ask(region))
    assert raised.value.message.endswith("an HTML page, '500 Internal Server Error'")


class Page(io.BytesIO):
    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


# -- a role that needs an MFA code -----------------------------------------------------------------------------------

PROFILE = """
[profile trains]
role_arn = arn:aws:iam::123456789012:role/trains
mfa_serial = arn:aws:iam::123456789012:mfa/ada
source_profile = ada
region = us-east-1

[profile ada]
aws_access_key_id = AKIAEXAMPLE
aws_secret_access_key = test
"""
ASSUMED = """
<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>{expires:%Y-%m-%dT%H:%M:%SZ}</Expiration>
</Credentials><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/trains/a</Arn><AssumedRoleId>A:a</AssumedRoleId>
</AssumedRoleUser></AssumeRoleResult></AssumeRoleResponse>
"""
DENIED = b"<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>"


class Sts:
    """
    It gives a role out for an hour, and denies everything else, which was signed with the keys `signed`. The SDK
    believes that it is `later`.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.later = timedelta()
        self.given = 0
        self.signed: list[str] = []
        self.prompts: list[str] = []
        (folder / "config").write_text(PROFILE)
        settings = {"HOME": folder, "AWS_CONFIG_FILE": folder / "config", "AWS_PROFILE": "trains"}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(URLLib3Session, "send", self._send)
        monkeypatch.setattr("botocore.credentials._local_now", lambda: datetime.now(UTC) + self.later)
        monkeypatch.setattr(s3_login, "_asked", [])
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("getpass.getpass", self._prompt)

    def _prompt(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return "123456"

    def _send(self, asked: Any) -> AWSResponse:
        if "AssumeRole" not in str(asked.body):
            self.signed += re.findall(r"Credential=(\w+)/", str(asked.headers["Authorization"]))
            return AWSResponse(asked.url, 403, {}, Page(DENIED))
        assert "TokenCode=123456" in str(asked.body)
        self.given += 1
        answer = ASSUMED.format(number=self.given, expires=datetime.now(UTC) + timedelta(hours=1))
        return AWSResponse(asked.url, 200, {}, Page(answer.encode()))

    def asks_all(self) -> None:
        """A call by each of several clients: of services, of another region, and of a store."""
        for region in (Region(REGION, ManualClock()), Region("us-west-2", ManualClock())):
            for call in (region.ec2.describe_vpcs, region.iam.list_roles, region.aside.ec2.describe_vpcs):
                with pytest.raises(CloudError):
                    region.ask("look", call)
        with pytest.raises(StoreError):
            S3Store(BucketAddress("s3", "bucket", "runs")).get("key")


@pytest.fixture
def sts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sts:
    return Sts(tmp_path, monkeypatch)


def test_one_code_is_enough_for_all_clients_and_for_aws(sts: Sts, tmp_path: Path) -> None:
    sts.asks_all()
    assert (len(sts.prompts), sts.given) == (1, 1)
    assert len(sts.signed) >= 7
    assert set(sts.signed) == {"ASIA1"}
    assert len([*(tmp_path / ".aws/cli/cache").iterdir()]) == 1


def test_role_that_ended_is_read_again_once_aws_has_renewed_it(sts: Sts, tmp_path: Path) -> None:
    region = Region(REGION, ManualClock())
    with pytest.raises(AccessDenied):
        region.ask("look", region.ec2.describe_vpcs)
    store = S3Store(BucketAddress("s3", "bucket", "runs"))
    sts.later = timedelta(hours=1)
    with pytest.raises(CredentialsExpired, match="asks for a new code"):
        region.ask("look", lambda: region.ec2.describe_vpcs())
    with pytest.raises(LoginExpired, match="asks for a new code"):
        store.get("key")
    assert len(sts.prompts) == 1
    (cached,) = (tmp_path / ".aws/cli/cache").iterdir()
    renewed = json.loads(cached.read_text())
    renewed["Credentials"] |= {"AccessKeyId": "ASIA2", "Expiration": "2100-01-01T00:00:00Z"}
    cached.write_text(json.dumps(renewed))
    with pytest.raises(AccessDenied):
        region.ask("look", lambda: region.ec2.describe_vpcs())
    with pytest.raises(StoreError):
        store.get("key")
    assert sts.signed[-1] == "ASIA2"
    assert len(sts.prompts) == 1


# -- whose clock is wrong --------------------------------------------------------------------------------------------

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize(("off", "side"), [(10, "ahead of"), (-10, "behind")])
@pytest.mark.parametrize(
    "code", ["AuthFailure", "SignatureDoesNotMatch", "RequestExpired", "InvalidSignatureException"]
)
def test_clock_ten_minutes_off_is_reported_as_a_wrong_clock(
    region: Region, monkeypatch: pytest.MonkeyPatch, code: str, off: int, side: str
) -> None:
    monkeypatch.setattr(clock_skew, "system_clock", lambda: ManualClock(NOW + timedelta(minutes=off)))
    with pytest.raises(ClockWrong, match=f"this machine's clock is (599|600) s {side} AWS's") as raised:
        region.ask("look", failing(refusal(code, 403, date=format_datetime(NOW, usegmt=True))))
    assert "timedatectl" in str(raised.value)


def test_refused_signature_with_a_right_clock_is_a_fault_of_the_keys(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_skew, "system_clock", lambda: ManualClock(NOW))
    for date in ({}, {"date": "yesterday"}, {"date": format_datetime(NOW, usegmt=True)}):
        with pytest.raises(CredentialsRefused, match="SignatureDoesNotMatch"):
            region.ask("look", failing(refusal("SignatureDoesNotMatch", 403, **date)))


# -- how often, and for how long -------------------------------------------------------------------------------------


class Sessions:
    """Counts the clients that are made; none of them can do anything."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Sessions:
        return self

    def create_client(self, *_: object, **__: object) -> Any:
        self.made += 1
        return Inert()


class Inert:
    def __getattr__(self, _: str) -> Inert:
        return self

    def __call__(self, *_: object, **__: object) -> None:
        return None


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId"])
def test_credentials_that_are_refused_make_new_clients_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    clock, sessions = ManualClock(), Sessions()
    region = Region(REGION, clock)
    monkeypatch.setattr(calls, "_session", sessions)

    def look() -> None:
        assert region.ec2 is not None
        raise refusal(code)

    for _ in range(100):
        with pytest.raises((CredentialsExpired, CredentialsRefused)):
            region.ask("look", look)
        clock.advance(RENEWED_EVERY_S / 20)
    assert sessions.made == 6, "the first, and one for each of five minutes"


def test_a_call_aside_that_hangs_takes_some_seconds_and_is_not_repeated() -> None:
    clock = ManualClock()
    region = Region(REGION, clock).aside
    asked = []

    def hang() -> None:
        asked.append(clock.monotonic())
        clock.advance(ASIDE.read_s)
        raise sdk.ReadTimeoutError(endpoint_url="https://aws")

    with pytest.raises(CloudUnavailable):
        region.ask("look", hang)
    assert len(asked) == 1
    assert clock.monotonic() <= ASIDE.connect_s + ASIDE.read_s < 10


def test_an_account_is_known_although_the_first_region_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    aws = PlainAws(clock)
    aws.reach(monkeypatch)
    aws.hanging.add("us-west-2")
    assert account_number([Region("us-west-2", clock), Region(REGION, clock)])
    assert clock.monotonic() <= ASIDE.read_s


def test_a_call_aside_that_is_throttled_is_repeated(region: Region) -> None:
    answers = iter([refusal("Throttling"), None])

    def look() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "seen"

    assert region.aside.ask("look", look) == "seen"
