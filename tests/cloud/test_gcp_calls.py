"""What becomes of a call to Google: repeated, given up, or answered by somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from spotrun.clouds.error_kinds import ClockWrong, CredentialsExpired, CredentialsRefused, NotThere
from spotrun.clouds.gcp.calls import BILLING, COMPUTE, OVERRIDES, Call, Google
from spotrun.clouds.patience import ATTEMPTS_MAX, PAUSE_MAX_S, RENEWED_EVERY_S, Patience
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, StoreError
from spotrun.store.opening import open_store
from tests.support.answering_server import TOKENS, Answer, AnsweringServer, Cut, Hang, How
from tests.support.gce_catalog import PROJECT
from tests.support.google_login import federate, impersonate, log_in, log_out
from tests.support.manual_clock import AheadClock, ManualClock

PATIENT = Patience(connect_s=20.0, read_s=20.0, tries_for_s=20.0)
HASTY = PATIENT._replace(read_s=0.1)
"""For a server that hangs. Where none does, a busy machine would have each call asked twice."""
ZONES = Call(COMPUTE, "GET", "projects/p/zones")
RUNNER = "runner@acme.iam.gserviceaccount.com"
PORTAL = "<html><head><title>Welcome to the hotel</title></head><body>Log in</body></html>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AnsweringServer]:
    """It is Compute Engine, and who gives tokens."""
    with AnsweringServer(Answer(body={"kind": "compute#zoneList"})) as found:
        log_in(monkeypatch, tmp_path / "login.json", f"{found.url}{TOKENS}")
        monkeypatch.setenv(f"{OVERRIDES}COMPUTE", found.url)
        yield found


class Pausing(ManualClock):
    """It keeps how long it was slept for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)


def error(status: int, reason: str) -> Answer:
    found = {"code": status, "message": f"{reason} by the test", "errors": [{"reason": reason}]}
    return Answer(status, {"error": found})


def asked(google: Google, call: Call = ZONES) -> dict[str, Any]:
    return google.ask("list zones", call)


def refusal(google: Google, call: Call = ZONES) -> CloudError:
    with pytest.raises(CloudError) as raised:
        google.ask("list zones", call)
    return raised.value


def answering(server: AnsweringServer, *answers: How) -> Google:
    server.answers = answers
    return Google(ManualClock(), HASTY if Hang in answers else PATIENT)


# -- asking, and asking again ------------------------------------------------------------------------------------------


def test_a_call_has_its_body_its_query_and_the_callers_token(server: AnsweringServer) -> None:
    google = answering(server, Answer(body={"name": "operation-1"}))
    call = Call(COMPUTE, "POST", "projects/p/zones/z/instances", {"requestId": "1"}, {"name": "a"})
    assert asked(google, call) == {"name": "operation-1"}
    (found,) = server.asked
    assert (found.method, found.token, found.body) == ("POST", "token-1", {"name": "a"})
    assert found.path == "/projects/p/zones/z/instances?prettyPrint=false&requestId=1"


@pytest.mark.parametrize(
    "trouble", [error(503, "backendError"), error(403, "rateLimitExceeded"), error(429, "rateLimitExceeded"), Cut]
)
def test_transient_error_is_retried(server: AnsweringServer, trouble: How) -> None:
    assert asked(answering(server, trouble, trouble, Answer(body={"items": []}))) == {"items": []}
    assert len(server.asked) == 3


def test_between_the_tries_are_pauses_of_which_no_two_are_alike(server: AnsweringServer) -> None:
    server.answers = [error(503, "backendError")]
    clock = Pausing()
    google = Google(clock, PATIENT)
    for _ in range(3):
        assert isinstance(refusal(google), CloudUnavailable)
    assert len(server.asked) == 3 * ATTEMPTS_MAX
    assert len(clock.pauses) == 3 * (ATTEMPTS_MAX - 1)
    assert all(0 <= pause <= PAUSE_MAX_S for pause in clock.pauses)
    assert len(set(clock.pauses)) == len(clock.pauses)


def test_call_past_its_time_limit_is_sent_once(server: AnsweringServer) -> None:
    server.answers = [error(503, "backendError")]
    clock = ManualClock()
    clock.advance(100.0)
    assert isinstance(refusal(Google(clock, PATIENT._replace(tries_for_s=0.0))), CloudUnavailable)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(403, "forbidden"), AccessDenied),
        (error(403, "quotaExceeded"), CloudError),
        (error(404, "notFound"), NotThere),
        (error(400, "invalid"), CloudError),
    ],
)
def test_permanent_error_is_not_retried(server: AnsweringServer, answer: How, kind: type[CloudError]) -> None:
    assert isinstance(refusal(answering(server, answer)), kind)
    assert len(server.asked) == 1


def test_a_server_that_hangs_is_left(server: AnsweringServer) -> None:
    found = refusal(answering(server, Hang))
    assert isinstance(found, CloudUnavailable)
    assert "list zones" in found.message
    assert len(server.asked) == ATTEMPTS_MAX


def test_a_server_of_tokens_that_hangs_is_left(server: AnsweringServer) -> None:
    server.login = Hang
    assert type(refusal(Google(ManualClock(), HASTY._replace(tries_for_s=0.0)))) is CloudUnavailable
    assert server.asked == []


def test_a_list_is_read_to_its_end(server: AnsweringServer) -> None:
    pages = [{"items": ["a", "b"], "nextPageToken": "1/x"}, {"nextPageToken": "2"}, {"items": ["c"]}]
    google = answering(server, *(Answer(body=page) for page in pages))
    assert google.items("list zones", ZONES._replace(query={"filter": "a"})) == ["a", "b", "c"]
    queries = [each.path.partition("?")[2] for each in server.asked]
    assert [query.partition("filter=a")[2] for query in queries] == ["", "&pageToken=1%2Fx", "&pageToken=2"]


def test_page_that_fails_for_a_while_is_requested_again(server: AnsweringServer) -> None:
    first, second = Answer(body={"items": ["a"], "nextPageToken": "2"}), Answer(body={"items": ["b"]})
    google = answering(server, first, error(503, "backendError"), second)
    assert google.items("list zones", ZONES) == ["a", "b"]


# -- the login ---------------------------------------------------------------------------------------------------------


def test_a_token_that_is_refused_is_renewed_at_once(server: AnsweringServer) -> None:
    google = answering(server, error(401, "authError"), Answer(body={"items": []}))
    assert asked(google) == {"items": []}
    assert [each.token for each in server.asked] == ["token-1", "token-2"]


def test_expired_login_is_reported_and_not_retried(server: AnsweringServer) -> None:
    server.login = Answer(400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    google = Google(ManualClock(), PATIENT)
    found = refusal(google)
    assert isinstance(found, CredentialsExpired)
    assert "expired or revoked" in found.message
    assert "gcloud auth application-default login" in (found.hint or "")
    assert (server.asked, server.tokens) == ([], 1)


def test_next_call_uses_a_new_login(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.answers = [Answer(body={"items": []})]
    server.login = Answer(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
    clock = ManualClock()
    google = Google(clock, PATIENT)
    assert isinstance(refusal(google), CredentialsExpired)
    with AnsweringServer() as other:
        log_in(monkeypatch, tmp_path / "other.json", f"{other.url}{TOKENS}")
        clock.advance(RENEWED_EVERY_S)
        assert asked(google) == {"items": []}


def test_a_clock_that_is_wrong_is_blamed_and_not_the_login(server: AnsweringServer) -> None:
    told = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
    server.login = Answer(400, {"error": "invalid_grant", "error_description": told})
    found = refusal(Google(ManualClock(), PATIENT))
    assert isinstance(found, ClockWrong)
    assert "timedatectl" in (found.hint or "")


REJECTED = {"error": "unauthorized_client", "error_description": "Rejected by the attribute condition."}
BUSY = {"error": {"code": 503, "message": "The service is unavailable.", "status": "UNAVAILABLE"}}


@pytest.mark.parametrize(
    ("token", "login", "kind", "words", "advice"),
    [
        ("", None, CredentialsExpired, "got no token from its identity provider: File", "credential_source in"),
        ("t", Answer(400, REJECTED), CredentialsExpired, "does not accept the federated login: Error code", "pool"),
        ("t", Answer(503, BUSY), CloudUnavailable, "The service is unavailable", None),
        ("t", Answer(502, PORTAL), CloudUnavailable, "a program in between has answered", "HTTPS_PROXY"),
    ],
)
def test_federated_login_is_diagnosed_as_one(
    server: AnsweringServer,
    tmp_path: Path,
    token: str,
    login: How | None,
    kind: type[CloudError],
    words: str,
    advice: str | None,
) -> None:
    federate(tmp_path / "login.json", server.url, tmp_path / "token")
    if token:
        (tmp_path / "token").write_text(token)
    server.login = login
    found = refusal(Google(ManualClock(), PATIENT))
    assert type(found) is kind
    assert words in found.message
    assert (advice or "") in (found.hint or "")
    assert "application-default login" not in (found.hint or "")
    assert "network" not in (found.hint or "")


NO_TOKEN = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)."
DENIED = "PERMISSION_DENIED"
DETAILS = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED"}]


@pytest.mark.parametrize(
    ("answer", "kind", "advice"),
    [
        (
            Answer(403, {"error": {"code": 403, "message": NO_TOKEN, "status": DENIED, "details": DETAILS}}),
            CredentialsRefused,
            "roles/iam.serviceAccountTokenCreator",
        ),
        (
            Answer(404, {"error": {"code": 404, "message": "Gaia id not found for email", "status": "NOT_FOUND"}}),
            CredentialsRefused,
            "roles/iam.serviceAccountTokenCreator",
        ),
        (Answer(503, BUSY), CloudUnavailable, ""),
        (Answer(502, PORTAL), CloudUnavailable, "HTTPS_PROXY"),
    ],
)
def test_login_that_may_not_impersonate_its_account_gets_the_missing_role(
    server: AnsweringServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: How,
    kind: type[CloudError],
    advice: str,
) -> None:
    impersonate(monkeypatch, tmp_path / "login.json", server.url, RUNNER)
    found = refusal(answering(server, answer))
    assert type(found) is kind
    assert advice in (found.hint or "")
    assert "expired" not in found.message


def test_expired_login_behind_an_impersonated_account_is_renewed_for_that_account(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    impersonate(monkeypatch, tmp_path / "login.json", server.url, RUNNER)
    server.login = Answer(400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    found = refusal(Google(ManualClock(), PATIENT))
    assert isinstance(found, CredentialsExpired)
    assert f"login --impersonate-service-account={RUNNER}`" in (found.hint or "")


def test_bucket_behind_a_perimeter_is_not_reported_as_a_missing_role(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    words = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: eYhDkfYCu"
    server.answers = [Answer(403, {"error": {"code": 403, "message": words, "errors": [{"reason": "forbidden"}]}})]
    with pytest.raises(StoreError, match="eYhDkfYCu") as raised:
        open_store("gs://bucket/runs").get("a")
    assert "perimeter" in (raised.value.hint or "")


def test_call_without_a_login_sends_nothing(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log_out(monkeypatch, tmp_path)
    found = refusal(Google(ManualClock(), PATIENT))
    assert isinstance(found, CredentialsRefused)
    assert "no login to Google Cloud" in found.message
    assert "gcloud auth application-default login" in (found.hint or "")
    assert server.asked == []


def test_the_project_is_that_of_the_login_unless_one_is_named(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    google = Google(ManualClock(), PATIENT)
    assert google.project("named") == "named"
    assert google.project(None) == PROJECT
    log_in(monkeypatch, tmp_path / "bare.json", f"{server.url}{TOKENS}", project="")
    with pytest.raises(CloudError, match="no project is named") as raised:
        Google(ManualClock(), PATIENT).project(None)
    assert "gcp.project" in (raised.value.hint or "")


def test_google_names_the_caller_and_no_url_has_the_token(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{OVERRIDES}OAUTH2", server.url)
    server.answers = [Answer(body={"email": "ada@example.com", "scope": "email"}), Answer(body={"scope": "none"})]
    assert Google(ManualClock(), PATIENT).caller() == "ada@example.com"
    assert Google(ManualClock(), PATIENT).caller() == ""
    assert server.asked[0].path == "/tokeninfo?prettyPrint=false"
    assert server.asked[0].body == "access_token=token-1"
    server.login = Answer(400, {"error": "invalid_scope"})
    assert Google(ManualClock(), PATIENT).caller() == ""


def test_no_token_is_in_what_a_failure_tells(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{OVERRIDES}OAUTH2", server.url)
    for trouble in (error(401, "authError"), error(503, "backendError"), Hang, Cut):
        google = answering(server, trouble)
        assert "token-" not in str(refusal(google))
        with pytest.raises(CloudError) as raised:
            google.caller()
        assert "token-" not in str(raised.value)


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
def test_the_date_of_an_answer_puts_the_clock_right(server: AnsweringServer, ahead_s: int) -> None:
    clock = ManualClock()
    machine = AheadClock(clock, timedelta(seconds=ahead_s))
    server.answers = [Answer(headers={"Date": format_datetime(clock.now(), usegmt=True)})]
    asked(Google(machine, PATIENT))
    assert abs(machine.now() - clock.now()) <= timedelta(seconds=1)


@pytest.mark.parametrize("date", ["", "yesterday", "2026-01-01T00:00:00Z", "Thu, 99 Foo 20260 99:99:99 GMT"])
def test_unreadable_date_changes_no_clock(server: AnsweringServer, date: str) -> None:
    clock = ManualClock()
    server.answers = [Answer(headers={"Date": date})]
    asked(Google(clock, PATIENT))
    assert clock.ahead == timedelta()


def test_date_of_a_captive_portal_changes_no_clock(server: AnsweringServer) -> None:
    clock = ManualClock()
    server.answers = [Answer(body=PORTAL, headers={"Date": "Mon, 01 Jan 2001 00:00:00 GMT"})]
    refusal(Google(clock, PATIENT))
    assert clock.ahead == timedelta()


# -- somebody else on the way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [PORTAL, "", "[]", '"text"', '{"cut": '])
def test_answer_of_a_proxy_is_reported_as_no_answer_of_google(server: AnsweringServer, body: str) -> None:
    found = refusal(answering(server, Answer(body=body)))
    assert type(found) is CloudUnavailable
    assert "a program in between has answered" in found.message


def test_deletion_has_an_empty_answer(server: AnsweringServer) -> None:
    google = answering(server, Answer(204, ""))
    assert asked(google, Call(COMPUTE, "DELETE", "projects/p/zones/z/instances/a")) == {}


@pytest.mark.parametrize("status", [301, 302, 303, 307])
def test_a_redirect_is_not_followed(server: AnsweringServer, status: int) -> None:
    with AnsweringServer(Answer(body={"items": []})) as elsewhere:
        found = refusal(answering(server, Answer(status, PORTAL, {"Location": f"{elsewhere.url}/a"})))
        assert elsewhere.asked == []
    assert type(found) is CloudUnavailable
    assert f"HTTP {status}" in found.message


@pytest.mark.parametrize("status", [302, 304])
def test_a_redirect_without_a_word_is_no_success(server: AnsweringServer, status: int) -> None:
    assert type(refusal(answering(server, Answer(status, "")))) is CloudUnavailable


def test_a_portal_that_answers_who_logs_in_ends_no_login(server: AnsweringServer) -> None:
    server.answers = [Answer(body=PORTAL)]
    for login in (Answer(body=PORTAL), Answer(403, PORTAL), Answer(302, PORTAL, {"Location": "/elsewhere"})):
        server.login = login
        found = refusal(Google(ManualClock(), PATIENT))
        assert isinstance(found, CloudUnavailable)
        assert not isinstance(found, CredentialsExpired)
        assert "<" not in found.message


@pytest.mark.parametrize("address", ["http://compute.invalid", "https://compute.invalid"])
def test_proxy_that_requires_a_password_is_reported(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(f"{OVERRIDES}COMPUTE", address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with AnsweringServer(Answer(407, "<html>Proxy Authentication Required</html>")) as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        found = refusal(Google(ManualClock(), PATIENT))
        assert len(proxy.asked) == ATTEMPTS_MAX
    assert type(found) is CloudUnavailable
    assert "407" in found.message


# -- where the services are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_service_is_where_the_variable_says(
    server: AnsweringServer, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    monkeypatch.setenv(f"{OVERRIDES}CLOUDBILLING", f"{server.url}/billing{slash}")
    asked(Google(ManualClock(), PATIENT), Call(BILLING, "GET", "v1/services"))
    assert server.asked[0].path.startswith("/billing/v1/services?")


def test_without_the_variable_a_service_is_googles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"{OVERRIDES}COMPUTE", raising=False)
    assert COMPUTE.address == "https://compute.googleapis.com/compute/v1/"
    monkeypatch.setenv(f"{OVERRIDES}COMPUTE", "")
    assert COMPUTE.address == "https://compute.googleapis.com/compute/v1/"
