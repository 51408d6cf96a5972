"""News of a run: told once, to whom the job names, without a secret, and without ever holding the run up."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotrun.account.summary import summarise
from spotrun.agent.processes.trainer_process import user_environment
from spotrun.errors import SpecInvalid, StoreUnavailable
from spotrun.notify.delivery import TRIES, TRIES_EVER, letter
from spotrun.notify.news import News, news_of, night
from spotrun.notify.notifier import CLOSE_WITHIN_S, Notifier
from spotrun.notify.sinks import Command, Refused, Undelivered, Webhook, open_sink, require_sinks
from spotrun.policy.money import OUT_OF_BUDGET
from spotrun.report.why import decisions
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.runner.creation import new_uid
from spotrun.secrets.redaction import PIECE, Redactor, secrets_in
from spotrun.spec.model import RunSpec
from spotrun.spec.values import NEWS_KINDS
from tests.support.decisions import spec
from tests.support.eventually import eventually
from tests.support.histories import ON_DEMAND, START, History, random_runs
from tests.support.http_server import Request
from tests.support.memory_store import MemoryStore
from tests.support.sandbox import Sandbox, environment_of, processes_now
from tests.support.webhook_server import Answer, WebhookServer, dripping, hanging


def kinds(history: History) -> list[str]:
    return [news.kind for news in news_of(history.entries)]


def restless() -> History:
    """Spot, lost with a notice; on demand; spot again; the end."""
    history = History()
    launch = history.running()
    history.step = 40
    history.after(100).notice()
    history.after(15).drained(history.commit(final=True))
    history.after(100).gone(launch)
    history.running(ON_DEMAND, "3.60")
    history.after(600).drained(history.commit(final=True))
    history.running()
    history.step = 90
    history.after(60).epoch(0)
    history.completed(history.commit(final=True))
    return history


# -- what is told ----------------------------------------------------------------------------------------------------


def test_each_turn_of_a_run_is_sent_once() -> None:
    news = list(news_of(restless().entries))
    assert [each.kind for each in news] == ["started", "interrupted", "fallback", "returned", "done"]
    assert news[0].sentence == "training began on spot in local-a (sim-gpu) at $0.36/h"
    assert news[1].sentence == "the cloud will take spot in local-a (sim-gpu) in 2m"
    assert len({each.id for each in news}) == 5
    assert news[4].facts["epochs"] == 1
    assert float(news[4].facts["cost_usd"]) > 0


def test_loss_is_sent_once_with_or_without_a_notice() -> None:
    history = History()
    history.gone(history.running())
    launch = history.running()
    history.notice()
    history.gone(launch)
    assert kinds(history) == ["started", "interrupted", "interrupted"]


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (ev.RunFailed(cause=Cause.QUOTA, detail="none"), "failed"),
        (ev.RunStopped(reason=OUT_OF_BUDGET), "budget"),
        (ev.RunStopped(reason="stop requested"), "stopped"),
    ],
)
def test_each_end_has_its_word(end: ev.AnyEvent, kind: str) -> None:
    history = History()
    history.write(end)
    assert kinds(history) == [kind]


def test_lost_deadline_is_sent() -> None:
    history = History(deadline_at=START)
    history.after(60).write(ev.DeadlineOutOfReach(deadline_at=START, expected_at=history.now, work_left_s=60))
    assert [news.sentence for news in news_of(history.entries)] == [
        "the deadline cannot be met: even on demand the run would be 1m late"
    ]


def test_nearly_spent_budget_is_sent_before_its_end() -> None:
    history = History(budget_usd=Decimal(1000))
    history.running()
    history.write(ev.BudgetNearlySpent(spent_usd=Decimal(8)))
    assert kinds(history) == ["started", "budget"]
    assert [each.kind for each in decisions(history.entries, spec())][-1] == "budget"


def test_failing_standbys_of_a_living_training_are_sent_once() -> None:
    history = History()
    history.running()
    history.failed_standbys(5)
    assert kinds(history) == ["started", "standby"]
    assert list(news_of(history.entries))[-1].sentence.startswith("3 standbys in a row failed (the newest: instance i-")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs())
def test_news_of_any_ledger_are_of_the_known_kinds_and_have_an_identity_each(history: History) -> None:
    news = list(news_of(history.entries))
    assert {each.kind for each in news} <= set(NEWS_KINDS)
    assert len({each.id for each in news}) == len(news)
    for each in news:
        assert json.loads(letter(each, Redactor(())))["text"]


def test_the_summary_of_a_night_has_the_figures_of_its_report() -> None:
    history = restless()
    summary = summarise(history.state, history.now)
    news = night(history.state, summary)
    assert news.kind == "night"
    assert "the night is over (completed): $" in news.sentence
    assert "1 epoch at $" in news.sentence
    assert news.facts["cost_usd"] == f"{summary.total.cost_usd:.9f}"


def test_json_has_an_id_and_a_text_without_slack_mentions() -> None:
    news = News(7, "failed", START, "demo-1", "ended: <!channel> & <https://x|y>", {"cost_usd": "1.5"})
    body = json.loads(letter(news, Redactor(())))
    assert body["text"] == "demo-1: ended: &lt;!channel&gt; &amp; &lt;https://x|y&gt;"
    assert {key: body[key] for key in ("id", "event", "entry", "at", "cost_usd")} == {
        "id": "demo-1-7-failed",
        "event": "failed",
        "entry": 7,
        "at": START.isoformat(),
        "cost_usd": "1.5",
    }


# -- one try ---------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_json_under_the_id_of_the_news() -> None:
    with WebhookServer() as hook:
        Webhook("HOOK", f"{hook.url}?token=abc").deliver(b'{"a": 1}', "demo-1-7-failed")
    (posted,) = hook.posted
    assert posted.target.endswith("/path-that-is-secret?token=abc")
    assert posted.json == {"a": 1}
    assert posted.headers["content-type"] == "application/json"
    assert posted.headers["idempotency-key"] == "demo-1-7-failed"


@pytest.mark.parametrize(("status", "final"), [(500, False), (429, False), (302, True), (400, True), (404, True)])
def test_a_status_says_whether_another_try_can_help(status: int, final: bool) -> None:
    with WebhookServer(lambda _, __: status) as hook:
        with pytest.raises(Undelivered, match=str(status)) as told:
            Webhook("HOOK", hook.url).deliver(b"{}", "id")
        assert isinstance(told.value, Refused) is final
        assert len(hook.posted) == 1, "no redirect is followed"


@pytest.mark.parametrize("answer", [hanging, dripping])
def test_no_server_holds_a_try_longer_than_it_may_last(answer: Answer) -> None:
    with WebhookServer(answer) as hook:
        began = time.monotonic()
        with pytest.raises(Undelivered):
            Webhook("HOOK", hook.url, try_s=0.5).deliver(b"{}", "id")
        assert time.monotonic() - began < 3


def test_refused_connection_is_reported_without_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Undelivered) as told:
        Webhook("HOOK", f"http://127.0.0.1:{port}/secret-path").deliver(b"{}", "id")
    assert "ConnectionRefusedError" in str(told.value)
    assert "secret-path" not in str(told.value)


def test_a_command_has_the_json_on_its_standard_input(tmp_path: Path) -> None:
    Command(f"cat > {tmp_path}/news; echo $SPOTRUN_NEWS_ID >> {tmp_path}/news", 0).deliver(b'{"a": 1}', "demo-1")
    assert (tmp_path / "news").read_text() == '{"a": 1}demo-1\n'


def test_a_command_that_reads_nothing_is_no_failure() -> None:
    Command("exec true", 0).deliver(b"x" * 1_000_000, "id")


def test_a_command_that_never_ends_is_killed_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEWS_TEST_MARK", mark := f"mark-{os.getpid()}")
    with pytest.raises(Undelivered, match=r"not finish within 0\.5 s, and was killed"):
        Command("sleep 600 & sleep 600", 0, limit_s=0.5).deliver(b"{}", "id")
    eventually(lambda: not [pid for pid in processes_now() if environment_of(pid).get("NEWS_TEST_MARK") == mark])


def test_a_command_whose_runner_is_killed_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEWS_TEST_MARK", mark := f"orphan-{os.getpid()}")
    deliver = "from spotrun.notify.sinks import Command; Command('sleep 600', 0, limit_s=1).deliver(b'', 'id')"
    runner = subprocess.Popen([sys.executable, "-c", deliver])

    def there() -> list[int]:
        return [pid for pid in processes_now() if environment_of(pid).get("NEWS_TEST_MARK") == mark]

    eventually(lambda: len(there()) >= 3)
    runner.kill()
    runner.wait()
    eventually(lambda: not there(), within_s=10)


def test_a_command_that_fails_says_how() -> None:
    with pytest.raises(Undelivered, match="ended with 3"):
        Command("exit 3", 0).deliver(b"{}", "id")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "http://example.org/x",
        "ftp://a/b",
        "https://",
        "https://[x",
        "https://a/b\r\nc",
        "https://me:cNry@a/b",
    ],
)
def test_unsafe_webhook_address_is_refused_and_not_shown(address: str) -> None:
    wanted = spec(notify=[{"webhook": "$HOOK"}]).notify[0]
    with pytest.raises(SpecInvalid) as told:
        open_sink(wanted, 0, {"HOOK": address})
    assert "$HOOK" in told.value.message
    assert len(address) < 10 or address not in str(told.value)


# -- trying again, once, and never for ever --------------------------------------------------------------------------


class Fate:
    """The statuses that a server answers with, one after another; the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)

    def __call__(self, _: WebhookServer, __: Request) -> int:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]


def wanted(**more: Any) -> RunSpec:
    return spec(notify=[{"webhook": "$HOOK", **more}])


def tell(history: History, hook: WebhookServer, store: MemoryStore, job: RunSpec | None = None) -> list[str]:
    """One runner's life; what it could not tell."""
    notifier = Notifier(job or wanted(), store, None, {"HOOK": hook.url}, pause_s=0.001)
    with notifier:
        for cut in range(1, len(history.entries) + 1):
            notifier.show(history.entries[:cut])
    return notifier.failures


def test_failed_delivery_is_retried_under_the_same_id() -> None:
    with WebhookServer(Fate(500, 503, 200)) as hook:
        assert tell(restless(), hook, MemoryStore()) == []
    assert hook.events == ["started", "started", "started", "interrupted", "fallback", "returned", "done"]
    assert len({posted.json["id"] for posted in hook.posted}) == 5


def test_only_subscribed_events_are_sent() -> None:
    with WebhookServer() as hook:
        tell(restless(), hook, MemoryStore(), wanted(on=["done", "failed"]))
    assert hook.events == ["done"]


def test_another_runner_tells_only_what_was_not_delivered() -> None:
    history, store = restless(), MemoryStore()
    first = History()
    first.entries = history.entries[:6]
    with WebhookServer() as hook:
        tell(first, hook, store)
        assert hook.events == ["started"]
        tell(history, hook, store)
        tell(history, hook, store)
    assert hook.events == ["started", "interrupted", "fallback", "returned", "done"]


def test_a_runner_that_is_killed_before_it_could_note_it_tells_again_under_the_same_id() -> None:
    class Forgetful(MemoryStore):
        def put_status(self, key: str, data: bytes | memoryview) -> None:
            raise StoreUnavailable("killed")

    store = Forgetful()
    with WebhookServer() as hook:
        failures = tell(restless(), hook, store, wanted(on=["done"]))
        tell(restless(), hook, store, wanted(on=["done"]))
    (first, second) = [posted.json["id"] for posted in hook.posted]
    assert first == second
    assert "it may arrive twice" in failures[0]


def test_a_sink_that_never_takes_anything_is_given_up_after_a_number_of_tries() -> None:
    store = MemoryStore()
    with WebhookServer(Fate(500)) as hook:
        failures = tell(restless(), hook, store)
        assert len(hook.posted) == TRIES + 4, "after one was tried in vain, the next are tried once"
        assert "webhook $HOOK did not receive 'started': the server answered 500" in failures
        for _ in range(20):
            tell(restless(), hook, store, wanted(on=["started"]))
        assert len([each for each in hook.events if each == "started"]) == TRIES_EVER


def test_refused_delivery_is_not_retried() -> None:
    store = MemoryStore()
    with WebhookServer(Fate(404)) as hook:
        for _ in range(3):
            tell(restless(), hook, store, wanted(on=["done"]))
    assert len(hook.posted) == 1


def test_showing_an_entry_does_not_wait_for_webhooks() -> None:
    history = restless()
    with WebhookServer(hanging) as hook:
        notifier = Notifier(wanted(), MemoryStore(), None, {"HOOK": hook.url})
        notifier.__enter__()
        began = time.monotonic()
        for cut in range(1, len(history.entries) + 1):
            notifier.show(history.entries[:cut])
        assert time.monotonic() - began < 0.5
        eventually(lambda: hook.posted)
        hook.over.set()


def test_a_variable_that_is_missing_is_refused_at_launch_and_only_noted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(SpecInvalid, match=r"\$HOOK is not set on this machine"):
        require_sinks(wanted())
    notifier = Notifier(wanted(), MemoryStore(), None, {})
    with notifier:
        notifier.show(restless().entries)
    assert notifier.failures == ["notify: $HOOK is not set on this machine"]


# -- secrets ---------------------------------------------------------------------------------------------------------


def canary(number: int) -> str:
    return f"cNry{number:02d}Qx7vB2mK9pL4{number * 7919 % 1000:03d}"


def test_of_forty_canaries_none_is_in_what_leaves() -> None:
    """Planted in the job's variables, the runner's environment, the address, the run's name, and the words of a log."""
    canaries = [canary(number) for number in range(40)]
    own = {f"PLAIN_{n}": canaries[n] for n in range(10)}
    names = ("HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "X_AUTH", "MY_DSN")
    named = {name: canaries[10 + n] for n, name in enumerate(names)}
    named |= {"PRIVATE_PEM": "\n".join(canaries[15:20])}
    shapes = [
        f"ghp_{canaries[25]}", f"xoxb-1-{canaries[26]}", f"AKIA{canaries[27].upper()}", f"hf_{canaries[28]}",
        f"Bearer {canaries[29]}", f"https://me:{canaries[30]}@db.example.org/x", f"https://h/?sig={canaries[31]}",
        f"password={canaries[32]}", f"api_key: {canaries[33]}", f"eyJ{canaries[34]}.eyJ{canaries[35]}.s{canaries[36]}",
        f'"client_secret": "{canaries[37]}"', f"-----BEGIN PRIVATE KEY-----\n{canaries[38]}\n-----END PRIVATE KEY-----",
        f"https://hooks.slack.com/services/T0/{canaries[39]}",
    ]  # fmt: skip
    with WebhookServer() as hook:
        address = f"{hook.url}/{canaries[20]}/{canaries[21]}?k={canaries[22]}&z={canaries[23]}#{canaries[24]}"
        environment = {"HOOK": address, **named}
        known = canaries[:25]
        log = "\n".join(
            [*known, *shapes, *(quote(f"/{each}/") for each in known), f"cut at the start: {canaries[3][-PIECE:]}"]
            + [f"as base64: {base64.b64encode(each.encode()).decode()}" for each in known]
            + [f"the address was {address}"]
        )
        history = History(name=f"run-{canaries[4]}")
        history.running()
        history.ended()
        history.write(ev.RunStopped(reason=log))
        store = MemoryStore()
        job = spec(notify=[{"webhook": "$HOOK"}, {"command": "exit 1"}], envs=own)
        notifier = Notifier(job, store, None, environment, pause_s=0.001)
        with notifier:
            notifier.show(history.entries)
        assert hook.events == ["started", "stopped"]
        sent = [*(f"{posted.headers} {posted.body.decode()}" for posted in hook.posted), *notifier.failures]
        sent += [data.decode() for data in store.objects.values()]
        everything = "\n".join(sent)
    assert notifier.failures, "what could not be told is looked through too"
    forms = [form for each in canaries for form in (each, each.upper(), base64.b64encode(each.encode()).decode()[:16])]
    assert [form for form in [*forms, canaries[3][-PIECE:]] if form in everything] == []
    assert "***" in everything


@given(st.text("abcdefgh0123", min_size=PIECE, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_a_secret_is_found_wherever_it_stands_and_what_is_around_it_stays(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    assert secret not in redactor.clean(before + secret + after)
    plain = "the run failed (user_error): no such file"
    assert redactor.clean(plain) == plain


def test_plain_words_and_numbers_are_no_secrets() -> None:
    found = secrets_in({"LR": "0.1", "MODE": "train", "TOKEN": "abcd"}, {"HOME": "/home/me-and-you"}, ())
    assert found == {"abcd"}


def test_the_training_does_not_see_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://example.org/secret")
    monkeypatch.setenv("OTHER", "x")
    seen: Mapping[str, str] = user_environment(wanted(), tmp_path, "i-1", "0123456789")
    assert "HOOK" not in seen
    assert seen["OTHER"] == "x"


NAMES_FOR_LOGGERS = ("WANDB_RUN_ID", "WANDB_RESUME", "COMET_EXPERIMENT_KEY")


def test_loggers_see_one_run_across_attempts_unless_the_user_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen() -> list[str]:
        environment = user_environment(wanted(), tmp_path, "i-1", "0123456789")
        return [environment[name] for name in NAMES_FOR_LOGGERS]

    for name in NAMES_FOR_LOGGERS:
        monkeypatch.delenv(name, raising=False)
    assert seen() == ["spotrun-0123456789", "allow", "spotrun0000000000000000123456789"]
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("COMET_EXPERIMENT_KEY", "mine")
    assert seen() == ["mine", "allow", "mine"]


def test_comet_takes_the_key_of_a_run(tmp_path: Path) -> None:
    key = user_environment(wanted(), tmp_path, "i-1", new_uid())["COMET_EXPERIMENT_KEY"]
    assert key.isalnum()
    assert 32 <= len(key) <= 50, "comet_ml refuses others"


def commands_of(run: str) -> set[int]:
    return {pid for pid in processes_now() if environment_of(pid).get("SPOTRUN_NEWS_ID", "").startswith(run)}


# -- a real run ------------------------------------------------------------------------------------------------------


def test_a_run_whose_runner_is_killed_tells_each_thing_and_waits_for_no_bad_listener(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebhookServer() as good, WebhookServer(hanging) as bad, socket.create_server(("127.0.0.1", 0)) as free:
        for name, url in (("GOOD", good.url), ("BAD", bad.url)):
            monkeypatch.setenv(name, url)
        monkeypatch.setenv("GONE", f"http://127.0.0.1:{free.getsockname()[1]}/secret")
        free.close()
        notify = "notify: [{webhook: $GOOD}, {webhook: $BAD}, {webhook: $GONE}, {command: sleep 600}]\n"
        job = sandbox.folder / "told.yaml"
        job.write_text(
            f"name: told\nrun: test -e {sandbox.folder}/go || sleep 600\nworkdir: {sandbox.folder}\n"
            f"checkpoint: {{uri: '{sandbox.store}'}}\nlocal: {{time_scale: 60, boot: 10s}}\n{notify}"
        )
        launch = sandbox.start("launch", job, "-y")
        eventually(lambda: "started" in good.events, within_s=90)
        (sandbox.folder / "go").touch()
        sandbox.ask("chaos", "told", "--no-notice")  # while the runner that is killed has a command under way
        eventually(lambda: "interrupted" in good.events, within_s=90)
        launch.send_signal(signal.SIGKILL)
        launch.communicate()
        began, before = time.monotonic(), commands_of("told-")
        said = sandbox.call("resume", "told")
        assert "note: webhook $GONE did not receive 'started': ConnectionRefusedError" in said
        assert "/secret" not in said
        assert good.events.count("done") == 1
        ids = [posted.json["id"] for posted in good.posted]
        assert list(dict.fromkeys(good.events)) == ["started", "interrupted", "done"]
        assert len(set(ids)) == 3
        assert len(ids) <= 4, "only the one that was on its way when the runner died may come twice"
        assert "note: webhook $BAD" in said
        assert "note: command 3: some notifications have not been delivered yet" in said
        assert commands_of("told-") <= before, "what the killed runner left ends by itself"
        took_s = time.monotonic() - began
        for left in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    terminal = sandbox.state("told").terminal
    assert terminal is not None
    assert terminal.outcome == "completed"
    assert took_s < CLOSE_WITHIN_S + 60
    assert sandbox.left_running() == []
