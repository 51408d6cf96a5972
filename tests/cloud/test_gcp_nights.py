"""
Nights on Google Cloud: what `spotrun night` asks for, and what becomes of a night. In virtual time whatever happens to
the runner; and once with the archive as it is installed, as a process that has the rights of its account alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spotrun.clock import ScaledClock, system_clock
from spotrun.clouds.archive import archive_for
from spotrun.clouds.gcp import night_start, nights
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.cloud import Gcp
from spotrun.clouds.gcp.control_plane import usd_of_a_night
from spotrun.clouds.gcp.night_alarm import GcpAlarm
from spotrun.clouds.gcp.nights import CLOUD_RUN, GcpNights, schedule
from spotrun.clouds.nights import Function, ScheduleTimes
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, SpecInvalid
from spotrun.folder.ledger import Ledger
from spotrun.folder.night import pin_for
from spotrun.folder.night_record import NightRecord
from spotrun.night import news as night_news
from spotrun.night.server import reply_to
from spotrun.runs.open_run import OpenRun
from spotrun.secrets.reference import Reference, SecretUnreadable
from tests.batteries.night_faults import live
from tests.support.called_spotrun import Spotrun, spotrun  # noqa: F401
from tests.support.cloud_run import CloudRun
from tests.support.eventually import eventually
from tests.support.gce_answers import RpcRefusal
from tests.support.gce_catalog import PROJECT
from tests.support.gce_metadata import gce_metadata
from tests.support.gcp_night_world import JOB, REGION, GcpNightWorld
from tests.support.gcp_templates import permissions
from tests.support.google_api import Asked
from tests.support.google_login import write_login
from tests.support.google_nights import ID_TOKEN, GoogleNights
from tests.support.google_server import GoogleServer
from tests.support.manual_clock import ManualClock
from tests.support.night_world import require_one_clean_night, utc
from tests.support.object_stores import BUCKET, RunningServer
from tests.support.plain_google import PlainGoogle
from tests.support.played_agent import Agent
from tests.support.webhook_server import WebhookServer

NIGHT = "resnet50"
STORE = f"gs://{BUCKET}/runs"
SERVICE = f"projects/{PROJECT}/locations/{REGION}/services/spotrun-night-{NIGHT}"
CLOCK, RUNNER = (f"spotrun-{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("clock", "night"))
ACCESS = "secretmanager.projects.secrets.versions.access"
OF_A_RUNNER = ("spotrunRunner", "spotrunEnd", "spotrunBucket", "spotrunFolder", "spotrunChange")


# -- in virtual time -------------------------------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GcpNightWorld:
    """A Monday at noon, with a night installed for 22:00 in Berlin."""
    found = GcpNightWorld(monkeypatch, tmp_path / "work", utc("2026-11-23T12:00:00"), work_hours=1.0)
    found.install()
    return found


@pytest.mark.parametrize("operation", [3, 22, 41])
def test_a_runner_that_is_killed_anywhere_while_it_begins_leaves_one_night(
    world: GcpNightWorld, operation: int
) -> None:
    world.is_quiet_until(world.next_due())
    world.kill_in = operation
    world.passes(120)
    require_one_clean_night(world)


def test_next_call_of_the_minute_replaces_a_preempted_instance(world: GcpNightWorld) -> None:
    world.is_quiet_until(world.next_due())
    world.install(policy={"on_demand_after": "10m", "return_to_spot": False})
    world.passes(20)
    assert world.is_interrupted()
    world.passes(1)
    state = world.state(world.uids()[0])
    assert state.current is not None
    assert state.current.notice_at is not None
    replacement = state.launches[max(state.launches)]
    assert replacement.number != state.current.launch
    assert replacement.intended_at - state.current.notice_at <= timedelta(seconds=60)
    world.passes(120)
    require_one_clean_night(world)


@pytest.mark.parametrize(
    ("start", "began_at"),
    [
        ("2026-10-24T12:00:00", "2026-10-25T00:30:00"),  # 02:30 comes twice, and the job fires twice
        ("2027-03-27T12:00:00", "2027-03-28T01:00:00"),  # 02:30 does not exist: at 03:00
    ],
)
def test_a_night_at_a_time_that_exists_twice_or_never_begins_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: str, began_at: str
) -> None:
    world = GcpNightWorld(monkeypatch, tmp_path / "work", utc(start), work_hours=0.5)
    world.install(at="02:30")
    world.is_quiet_until(world.next_due())
    world.passes(200)
    require_one_clean_night(world)
    assert world.nights()[0].at == utc(began_at)


def test_three_nights_with_faults_at_random_keep_every_promise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start = utc("2026-10-24T12:00:00")
    results = live(monkeypatch, tmp_path / "work", nights=3, seed=5, start=start, at="02:30", of=GcpNightWorld)
    assert results.trouble == []
    assert sum(results.faults.values()) > 3


def test_the_jobs_of_a_night_fire_when_it_is_due() -> None:
    assert schedule(ScheduleTimes((0,), 22, ("mon", "fri", "sun"))) == "0 22 * * 1,5,0"
    assert schedule(ScheduleTimes((5, 20, 35, 50), 0, ("sat",))) == "5,20,35,50 0 * * 6"


def test_a_month_of_nights_costs_what_the_page_says(world: GcpNightWorld) -> None:
    world.work = timedelta(hours=7.9)
    world.is_quiet_until(world.next_due())
    world.passes(8 * 60 + 10)
    require_one_clean_night(world)
    counted = Gcp().runner_calls(world.calls(world.uids()[0]))
    assert (counted.calls.memory_mb, counted.prices_read) == (512, "2026-11-28")
    assert f"{counted.usd * 22:.2f}" == "0.21"
    assert f"{usd_of_a_night(8.0) * 22:.4f}" == "0.2792"


# -- what is asked for -----------------------------------------------------------------------------------------------


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> PlainGoogle:
    found = PlainGoogle(ManualClock())
    found.reach(monkeypatch)
    return found


def test_minutely_call_is_resumed_and_paused_once_by_two_callers(google: PlainGoogle) -> None:
    called = GoogleNights(google)
    called.jobs[JOB] = {"name": JOB, "state": "PAUSED"}
    alarm = GcpAlarm(Google(google.clock), JOB)
    alarm.on()
    alarm.on()
    alarm.hear(["an instance"])
    assert google.counts["cloudscheduler.projects.locations.jobs.resume"] == 1
    alarm.on(again=True)
    assert called.state_of("tick") == "ENABLED"

    def another_was_first(method: str) -> RpcRefusal | None:
        if method.endswith("pause"):
            called.jobs[JOB]["state"] = "PAUSED"
        return None

    google.fault = another_was_first
    alarm.off()
    assert called.state_of("tick") == "PAUSED"


def test_scheduler_job_that_cannot_be_switched_is_reported(google: PlainGoogle) -> None:
    called = GoogleNights(google)
    called.jobs[JOB] = {"name": JOB, "state": "DISABLED"}
    with pytest.raises(CloudError, match="resume the job spotrun-night-resnet50-tick"):
        GcpAlarm(Google(google.clock), JOB).on()


def test_a_right_that_is_missing_is_named(world: GcpNightWorld, google: PlainGoogle) -> None:
    GoogleNights(google)
    words = "Permission 'run.services.get' denied on resource (or it may not exist)."
    denied = RpcRefusal(403, "PERMISSION_DENIED", words)
    google.fault = lambda method: denied if method.startswith("run.") else None
    with pytest.raises(AccessDenied) as refused:
        GcpNights(REGION, google.clock).wrong(world.night, STORE)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("ask for run.services.get; infra/gcp/README.md")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Image 'us-central1-docker.pkg.dev/serverless-runtimes/google-22/runtimes/python312' not found.", None),
        ("Service account spotrun-night@acme-training.iam.gserviceaccount.com does not exist.", "infra/gcp/README.md"),
    ],
)
def test_refusal_of_cloud_run_has_no_advice_on_instances(google: PlainGoogle, words: str, advice: str | None) -> None:
    refusal = RpcRefusal(400, "INVALID_ARGUMENT", words)
    google.fault = lambda method: refusal if method.endswith("services.patch") else None
    with pytest.raises(CloudError) as refused:
        GcpNights(REGION, google.clock)._deploy(NIGHT, "python3.12", {})
    assert words in refused.value.message
    assert (refused.value.hint or "").partition(",")[0] == (advice or "")


def test_a_night_that_is_not_there_is_neither_begun_nor_removed_twice(
    world: GcpNightWorld, google: PlainGoogle
) -> None:
    GoogleNights(google)
    found = GcpNights(REGION, google.clock)
    assert found.wrong(world.night, STORE).startswith("the service spotrun-night-resnet50 is gone")
    found.remove(NIGHT, STORE, print)
    with pytest.raises(CloudError, match="us-central1 has no Cloud Run service spotrun-night-resnet50"):
        found.begin(NIGHT, datetime.now(UTC))


# -- what is wrong with it -------------------------------------------------------------------------------------------


@pytest.fixture
def installed(world: GcpNightWorld) -> GcpNights:
    """The night of `world`, whose service and jobs are as spotrun makes them."""
    world.google.iam.has_nights()
    found = GcpNights(REGION, world.clock)
    found.install(world.pin, STORE, Function(b"an archive", "python3.12", "x86_64"), lambda _: None)
    return found


def job_of(world: GcpNightWorld, kind: str) -> dict[str, Any]:
    return next(job for name, job in world.called.jobs.items() if name.endswith(f"-{kind}"))


def container_of(world: GcpNightWorld) -> dict[str, Any]:
    return world.called.services[SERVICE]["template"]["containers"][0]


Breaks = Callable[[GcpNightWorld], Any]
FAILED = {"type": "Ready", "state": "CONDITION_FAILED", "message": "Image not found."}


@pytest.mark.parametrize(
    ("breaks", "words", "advice"),
    [
        (lambda it: job_of(it, "begin").update(state="PAUSED"), "begin is paused", "gcloud scheduler jobs resume"),
        (lambda it: job_of(it, "again").update(state="DISABLED"), "again is DISABLED", "night install"),
        (lambda it: job_of(it, "tick").update(state="UPDATE_FAILED"), "tick is UPDATE_FAILED", "night install"),
        (
            lambda it: job_of(it, "begin")["httpTarget"].update(uri="https://example.com"),
            "begin calls another address, https://example.com",
            "night install",
        ),
        (
            lambda it: job_of(it, "begin")["httpTarget"].update(body="e30="),
            "begin does not make the call that was installed",
            "night install",
        ),
        (lambda it: failed_call(it, "begin", 13), "begin, at 2026-11-23 21:00 UTC, failed (INTERNAL)", "services logs"),
        (lambda it: failed_call(it, "again", 7), "again, at 2026-11-23 21:00 UTC, failed (PERMISSION", "infra/gcp"),
        (
            lambda it: it.called.services[SERVICE].update(ingress="INGRESS_TRAFFIC_NONE"),
            "TRAFFIC_NONE",
            "night install",
        ),
        (lambda it: it.called.services[SERVICE].update(defaultUriDisabled=True), "is disabled, so no job", "install"),
        (
            lambda it: container_of(it).update(image="docker.io/a/b:latest"),
            "runs the image docker.io/a/b",
            "night install",
        ),
        (lambda it: setattr(it.called, "failure", FAILED["message"]), "newest revision of the service", "Image not"),
        (lambda it: it.google.iam.accounts[CLOCK].update(disabled=True), f"{CLOCK} is disabled", "accounts enable"),
        (lambda it: it.google.iam.accounts.pop(RUNNER), f"{RUNNER} is gone", "infra/gcp/README.md"),
        (lambda it: forget_archives(it), "the code of the service, is gone from the store", "night install"),
    ],
)
def test_night_that_nobody_would_begin_is_reported_with_what_to_type(
    world: GcpNightWorld, installed: GcpNights, breaks: Breaks, words: str, advice: str
) -> None:
    assert installed.wrong(world.night, STORE) == ""
    breaks(world)
    wrong = installed.wrong(world.night, STORE)
    assert words in wrong
    assert advice in wrong


def test_last_night_that_is_removed_leaves_no_archive(world: GcpNightWorld, installed: GcpNights) -> None:
    """Another night that is being installed has its record already, and may need the archive."""
    other = NightRecord(STORE, "other")
    other.install(msgspec.structs.replace(world.night, name="other"))
    installed.remove(NIGHT, STORE, lambda _: None)
    assert archives(world)
    other.remove()
    installed.remove(NIGHT, STORE, lambda _: None)
    assert archives(world) == []


def failed_call(world: GcpNightWorld, kind: str, code: int) -> None:
    job_of(world, kind).update(status={"code": code}, lastAttemptTime="2026-11-23T21:00:00.5Z")


def forget_archives(world: GcpNightWorld) -> None:
    for name in archives(world):
        del world._objects.objects[name]


def archives(world: GcpNightWorld) -> list[str]:
    return [name for name in world._objects.objects if name.startswith("runs/nights/function-")]


def test_failed_call_is_forgotten_after_a_later_one_or_a_new_installation(
    world: GcpNightWorld, installed: GcpNights
) -> None:
    failed_call(world, "begin", 13)
    job_of(world, "again").update(lastAttemptTime="2026-11-23T22:00:00Z")
    failed_call(world, "tick", 13)
    job_of(world, "tick").update(state="PAUSED")
    assert installed.wrong(world.night, STORE) == "", "a call after it succeeded, and no more ticks are due"
    job_of(world, "tick").update(state="ENABLED")
    assert "tick" in installed.wrong(world.night, STORE)
    later = msgspec.structs.replace(world.night, installed_at=utc("2026-11-24T00:00:00"))
    assert installed.wrong(later, STORE) == ""


def test_region_without_a_scheduler_is_refused_before_anything_is_made(google: PlainGoogle) -> None:
    GoogleNights(google)
    with pytest.raises(SpecInvalid, match="europe-west4 has no Cloud Scheduler") as refused:
        GcpNights("europe-west4", google.clock).require(NIGHT, STORE)
    assert "gcp.regions, such as europe-west" in (refused.value.hint or "")
    assert set(google.counts) == {"login", "cloudscheduler.projects.locations.list"}


# -- what the service executes -----------------------------------------------------------------------------------------


def test_changed_archive_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_ARCHIVE", "bucket/runs/nights/function-0.zip")
    monkeypatch.setenv("SPOTRUN_ARCHIVE_SHA256", "0" * 64)
    monkeypatch.setattr(night_start, "_asked", lambda address, headers: b'{"access_token": "t"}')
    with pytest.raises(SystemExit, match="is not what was installed"):
        night_start.main()


def test_a_call_that_fails_is_answered_so_that_it_is_repeated(
    world: GcpNightWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTRUN_NIGHT", NIGHT)
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path))
    monkeypatch.setenv("SPOTRUN_MEMORY_MB", "512")
    status, told = reply_to(b'{"kind": "begin"}', "2026-11-27T21:00:00Z")
    assert (status, told["errorType"]) == (500, "NotPinned"), "an earlier spotrun has installed it"
    assert "install the night again: spotrun night install" in told["errorMessage"]
    monkeypatch.setenv("SPOTRUN_NIGHT_PIN", world.pin.text)
    status, told = reply_to(b'{"kind": "begin"}', "2026-11-27T21:00:00Z")
    assert (status, told["errorType"]) == (500, "RunNotFound")
    assert "no night 'resnet50' is installed" in told["errorMessage"]
    assert reply_to(b"no event", None).status == 500


# -- the archive as it is installed ----------------------------------------------------------------------------------


class Project:
    """All of Google that a night meets: Compute Engine, IAM, a bucket, Cloud Scheduler, and Cloud Run as a process."""

    def __init__(self, google: GoogleServer, called: GoogleNights, run: CloudRun) -> None:
        self.google, self.called, self.run = google, called, run

    @property
    def alive(self) -> list[str]:
        return [vm.name for vm in self.google.project.vms.values() if vm.off is None]


@pytest.fixture(scope="module")
def function() -> Function:
    """Of the packages that are installed here, also where these run on this machine alone."""
    return archive_for(CLOUD_RUN, portable=False)


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], RunningServer], function: Function
) -> Iterator[Project]:
    clock = ScaledClock(datetime.now(UTC), 1.0)
    gs = servers("gs")
    with ExitStack() as stack:
        google = stack.enter_context(GoogleServer(clock, gs.endpoint))
        account = google.iam.has_nights()
        metadata = stack.enter_context(gce_metadata(account=account, token=google.token_of(account)))
        metadata.change("project/project-id", PROJECT)
        google.permits = partial(_permits, google, f"serviceAccount:{account}")
        for name in ("queued", "decided", "boot"):
            setattr(google.project.timings, name, timedelta())
        (tmp_path / "run").mkdir()
        surroundings = {**google.environment, "GCE_METADATA_HOST": metadata.host, "GCE_METADATA_IP": metadata.host}
        run = stack.enter_context(CloudRun(tmp_path / "run", ID_TOKEN, lambda: called.services[SERVICE], surroundings))
        called = GoogleNights(google, uri=run.uri)
        google.reach(monkeypatch, tmp_path)
        monkeypatch.setattr(nights, "archive_for", lambda _: function)
        monkeypatch.setattr(nights, "POLL_S", 0.01)
        yield Project(google, called, run)
        assert google.denied == []


def _permits(google: GoogleServer, account: str, asked: Asked, permission: str) -> bool:
    """The account of nights has what infra/gcp grants it, and whoever installs has that of an installer beside."""
    if permission.startswith(("iam.", "storage.", "secretmanager.")):
        return google.iam.may(asked, permission)
    of_nights = "spotrunNight" if asked.who == account else "spotrunNightInstall"
    if permission == "cloudscheduler.projects.locations.list":
        return "cloudscheduler.locations.list" in permissions(of_nights)
    method = permission.removeprefix("cloudscheduler.projects.locations.").removeprefix("run.projects.locations.")
    if method == permission:
        return asked.who != account or permission in permissions(*OF_A_RUNNER)
    verb = {"patch": "update", "resume": "enable"}.get(method.partition(".")[2], method.partition(".")[2])
    service = "run" if permission.startswith("run.") else "cloudscheduler"
    return f"{service}.{method.partition('.')[0]}.{verb}" in permissions(of_nights)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("import lightning\n")
    path = tmp_path / "job.yaml"
    path.write_text(
        f"name: {NIGHT}\nworkdir: work\ntrain: {{script: train.py}}\n"
        f"resources: {{cloud: gcp}}\ncheckpoint: {{uri: '{STORE}'}}\n"
        f"gcp: {{regions: [{REGION}], instance_types: [g2-standard-4]}}\n"
    )
    return path


INSTALL = ("--at", "22:00 Europe/Berlin", "--days", "mon-fri", "--deadline", "8h", "--budget", "15", "-y")


@pytest.mark.timeout(900)
def test_a_night_is_installed_begun_completed_and_removed(
    project: Project,
    job: Path,
    function: Function,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    assert len(function.data) < CLOUD_RUN.size_max_bytes
    said = spotrun("night", "install", job, *INSTALL)
    assert said.code == 0, said.err + project.run.log
    assert "installed resnet50; the next night is due at" in said.out
    what_is_installed_is_what_was_asked_for(project)

    begun = project.run.call({"kind": "begin"}, due_at="2026-11-27T21:00:00Z")
    assert (begun["night"], begun["state"]) == ("2026-11-27", "starting"), begun
    assert "trouble" not in begun, begun
    assert project.called.state_of("tick") == "ENABLED"
    first = project.alive
    assert len(first) == 1
    again = project.run.call({"kind": "begin"}, due_at="2026-11-27T21:00:00Z")
    assert again["run"] == begun["run"], "the call came twice"
    project.run.is_cold()
    assert project.run.call({"kind": "tick"})["run"] == begun["run"]
    assert project.alive == first

    run = OpenRun(f"{STORE}/{begun['run']}", "test")
    agent = Agent(Ledger(run.store, run.created.uid, "agent", run.clock), run.store, run.clock)  # type: ignore[arg-type]
    agent.completes()
    project.google.project.power_off(agent.instance_id)
    # A look at the cloud may be left out while a run is still, so that its end is seen by a later call.
    ended = eventually(lambda: next((told for told in [project.run.call({"kind": "tick"})] if told["done"]), None))
    assert ended["state"] == "completed"
    assert project.called.state_of("tick") == "PAUSED"
    assert project.alive == []
    assert sorted(project.google.iam.accounts) == [CLOCK, RUNNER]

    reported = spotrun("report", begun["run"], "--store", STORE, "--json").json["runner_calls"]
    assert (reported["memory_mb"], reported["by_events"], reported["starts"]) == (512, 0, 2)
    assert reported["reads"] > reported["calls"] > 3
    listed = spotrun("night", "ls", "--store", STORE, "--json").json
    assert [(each["run"], each["state"], each["last"]) for each in listed] == [
        (begun["run"], "completed", "2026-11-27")
    ]
    by_hand = spotrun("night", "run", NIGHT, "--store", STORE)
    assert by_hand.code == 0, by_hand.err
    assert by_hand.out.endswith(": starting\n")
    assert spotrun("night", "rm", NIGHT, "--store", STORE, "-y").out == f"removed {NIGHT}\n"
    assert (project.called.jobs, project.called.services) == ({}, {})
    gone = spotrun("night", "run", NIGHT, "--store", STORE)
    assert gone.code == 3
    assert "no night 'resnet50' is installed" in gone.err


def what_is_installed_is_what_was_asked_for(project: Project) -> None:
    jobs = {name.rpartition("-")[2]: job for name, job in project.called.jobs.items()}
    assert {kind: job["schedule"] for kind, job in jobs.items()} == {
        "begin": "0 22 * * 1,2,3,4,5",
        "again": "0,15,30,45 23 * * 1,2,3,4,5",
        "tick": "* * * * *",
    }
    assert {job["timeZone"] for job in jobs.values()} == {"Europe/Berlin"}
    assert {job["state"] for kind, job in jobs.items() if kind != "tick"} == {"ENABLED"}
    assert jobs["tick"]["state"] == "PAUSED", "the first call has paused it"
    clock = {"serviceAccountEmail": f"spotrun-clock@{PROJECT}.iam.gserviceaccount.com", "audience": project.run.uri}
    assert all(job["httpTarget"]["oidcToken"] == clock for job in jobs.values())
    template: dict[str, Any] = project.called.services[SERVICE]["template"]
    assert template["serviceAccount"] == f"spotrun-night@{PROJECT}.iam.gserviceaccount.com"
    assert template["maxInstanceRequestConcurrency"] == 1
    assert template["containers"][0]["resources"]["cpuIdle"] is True, "it costs something only while it is called"


def test_service_that_does_not_start_is_reported_with_the_reason(
    project: Project,
    job: Path,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    project.called.failure = "The user-provided container failed to start and listen on the port."
    said = spotrun("night", "install", job, *INSTALL)
    assert said.code == 7
    assert "failed to start and listen" in said.err
    assert "gcloud run services logs read spotrun-night-resnet50" in said.err
    assert project.called.jobs == {}


def test_function_for_other_processors_is_refused_before_any_call(world: GcpNightWorld, google: PlainGoogle) -> None:
    with pytest.raises(SpecInvalid, match="are built for aarch64"):
        GcpNights(REGION, google.clock).install(world.pin, STORE, Function(b"", "python3.12", "aarch64"), print)


# -- who is told -----------------------------------------------------------------------------------------------------

HOOK = "spotrun-SLACK_WEBHOOK"
ALL = ["started", "done", "night"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    monkeypatch.setattr(night_news, "WITHIN_S", 60.0)
    with WebhookServer() as server:
        yield server


def told(server: WebhookServer) -> list[str]:
    return [each.json["event"] for each in server.posted]


def test_a_night_tells_what_becomes_of_it_at_an_address_that_is_in_secret_manager_alone(
    world: GcpNightWorld, server: WebhookServer
) -> None:
    held = world.google.iam.secrets
    held.put(HOOK, f"{server.url}services/T0/B0/cNryAddress")
    world.install(notify=[{"webhook": "$SLACK_WEBHOOK"}])
    world.is_quiet_until(world.next_due())
    world.passes(6)
    address = held.versions.pop(HOOK)
    world.passes(60)
    assert any(f"there is no secret {HOOK}" in each.get("unheard", "") for each in world.answers)
    held.versions[HOOK] = address
    held.put(HOOK, f"{server.url}services/T0/B1/cNryAnother")
    world.passes(60)
    require_one_clean_night(world)
    assert told(server) == ALL
    assert [each.target.rpartition("/")[2] for each in server.posted][-1] == "cNryAnother", "the newest address is used"
    for kept in (b"".join(world._objects.objects.values()), str(world.answers).encode(), repr(world.night).encode()):
        assert b"cNry" not in kept
    assert world.google.counts[ACCESS] <= 20, "only where there is news"


def test_paused_job_is_reported_once_while_another_job_still_calls(world: GcpNightWorld, server: WebhookServer) -> None:
    world.google.iam.secrets.put(HOOK, f"{server.url}services/T0/B0/cNryAddress")
    world.install(notify=[{"webhook": "$SLACK_WEBHOOK"}])
    job_of(world, "again").update(state="PAUSED")
    world.is_quiet_until(world.next_due())
    world.passes(130)
    require_one_clean_night(world)
    (warning,) = [each.json["sentence"] for each in server.posted if "may not begin" in each.json["sentence"]]
    assert "the job spotrun-night-resnet50-again is PAUSED; `spotrun night ls` says" in warning


def test_foreign_record_is_reported_to_the_webhooks_of_the_installed_one(
    world: GcpNightWorld, server: WebhookServer
) -> None:
    world.google.iam.secrets.put(HOOK, f"{server.url}services/T0/B0/cNryAddress")
    world.install(notify=[{"webhook": "$SLACK_WEBHOOK"}])
    world._objects.objects[f"runs/nights/{NIGHT}/night.json"] = b"{}"
    world.is_quiet_until(world.next_due())
    world.passes(100)
    (news,) = server.posted
    assert "night.json is not what was installed" in news.json["sentence"]
    assert world.uids() == []


def test_account_of_nights_reads_addresses_and_the_installer_gets_the_missing_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GoogleServer(system_clock(), objects="http://127.0.0.1:9") as google:
        google.reach(monkeypatch, tmp_path)
        account = google.iam.has_nights()
        for name in (HOOK, "team-slack"):
            google.iam.secrets.put(name, f"https://example.com/{name}")
        here = GcpNights(REGION, ManualClock())
        places = {"SLACK_WEBHOOK": Reference("gsm", HOOK)}
        with pytest.raises(SecretUnreadable, match=HOOK) as refused:
            here.addresses(places)
        assert str(refused.value.hint).startswith("ask for secretmanager.versions.access")
        google.fail(ACCESS, RpcRefusal(503, "UNAVAILABLE", "not now"))
        with pytest.raises(CloudUnavailable, match="not now"):
            here.addresses(places)
        write_login(tmp_path / "login.json", google.token_of(account))
        assert here.addresses(places) == {"SLACK_WEBHOOK": f"https://example.com/{HOOK}"}
        with pytest.raises(SecretUnreadable, match="team-slack"):
            here.addresses({"OTHER": Reference("gsm", "team-slack")})


def test_address_that_the_account_of_nights_may_not_read_is_noted_with_the_grant(world: GcpNightWorld) -> None:
    said = list[str]()
    pin = pin_for(msgspec.structs.replace(world.night, webhooks=(HOOK, "team-slack")), None)
    GcpNights(REGION, world.clock).install(pin, STORE, Function(b"an archive", "python3.12", "x86_64"), said.append)
    (note,) = [line for line in said if line.startswith("note: ")]
    assert note.startswith(
        "note: grant team-slack to the account of nights: gcloud secrets add-iam-policy-binding team"
    )
    assert note.endswith(f"--member=serviceAccount:spotrun-night@{PROJECT}.iam.gserviceaccount.com")


def test_an_address_that_is_none_is_refused_with_what_to_type_before_anything_is_deployed(
    google: PlainGoogle,
    job: Path,
    spotrun: Spotrun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nights = GoogleNights(google)
    monkeypatch.setattr("spotrun.night.installation.prepare_later", lambda *_: None)  # this project serves no objects
    job.write_text(job.read_text() + "notify: [{webhook: $SLACK_WEBHOOK}]\n")
    said = spotrun("night", "install", job, *INSTALL)
    assert said.code == SpecInvalid.exit_code
    assert f"there is no secret {HOOK} in {PROJECT}" in said.err
    google.iam.secrets.put(HOOK, "http://example.com/cNry")
    said = spotrun("night", "install", job, *INSTALL)
    assert said.code == SpecInvalid.exit_code
    assert f"gcloud secrets versions add {HOOK} --data-file=- --project={PROJECT}" in said.err
    assert "cNry" not in said.err + said.out
    assert not nights.services
    assert not nights.jobs
