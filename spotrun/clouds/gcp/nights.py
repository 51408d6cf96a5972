"""
Installs, describes and removes nights on Google Cloud. A night is a job that a runner in the cloud begins at a time of
day, even if the user's machine is off.

The runner of a night is a Cloud Run service, which uses a processor only while it is called. Three Cloud Scheduler jobs
call it: one at the night's time, one after that in case the night could not begin, and one each minute until the
night's run has ended. The service needs no container image of its own: Google's Python image runs night_start.py, which
fetches spotrun from the store.

All nights of a project share two service accounts, which infra/gcp/nights creates. The service runs as one of them. The
Cloud Scheduler jobs use the other to call the service.

https://cloud.google.com/run/docs/reference/rest/v2/projects.locations.services
https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from importlib.resources import files
from typing import Any

import requests

from spotrun import address
from spotrun.clock import Clock
from spotrun.clouds.archive import FunctionRuntime, archive_for
from spotrun.clouds.error_kinds import AlreadyThere, BadImage, CredentialsRefused, NotThere
from spotrun.clouds.gcp.calls import CREDENTIALS, IAM, RUN, SCHEDULER, Call, Google
from spotrun.clouds.gcp.config import account_address
from spotrun.clouds.gcp.control_plane import MEMORY_MB, usd_of_a_night
from spotrun.clouds.gcp.error_codes import PerimeterForbids, ServiceOff
from spotrun.clouds.gcp.night_alarm import ENABLED, TICK, GcpAlarm, job_of, name_of
from spotrun.clouds.gcp.night_checks import (
    INGRESS,
    RUNTIMES,
    Places,
    call_trouble,
    job_trouble,
    require_region,
    service_trouble,
)
from spotrun.clouds.gcp.secret_checks import grant_command
from spotrun.clouds.night_archives import NightArchives
from spotrun.clouds.nights import ANEW, Alarm, Function, ScheduleTimes, when_due, when_due_again
from spotrun.clouds.patience import CHECK_NETWORK
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    InsufficientCapacity,
    SpecInvalid,
    StoreUnavailable,
)
from spotrun.folder.night import DAYS, VARIABLE, Night, Pin, pinned
from spotrun.folder.night_record import NightRecord, names
from spotrun.secrets.reference import SECRETS, Reference, add_command
from spotrun.secrets.secret_manager import read_at_once

BEGIN, AGAIN = "begin", "again"
RUNNER, CLOCK = "night", "clock"
"""
Ids of the service accounts that infra/gcp/nights makes, without their prefix `spotrun-`: the account of the service,
and the account that calls it.
"""
FUNCTION_S = 300.0
POLL_S = 3.0
DEPLOYED_WITHIN = timedelta(minutes=15)
CLOUD_RUN = FunctionRuntime(
    name="Cloud Run",
    extra="gcp",
    glibc_of={(3, 11): (2, 35), (3, 12): (2, 35), (3, 13): (2, 35)},
    size_max_bytes=50 * 1000 * 1000,
)
"""
Cloud Run's Python versions, on Ubuntu 22.04: https://cloud.google.com/docs/buildpacks/base-images. The archive has no
bytecode. night_start.py unpacks the archive at each cold start, and unpacking the bytecode of all modules took longer
than compiling only the modules that are imported.
"""
STACK = "google-22"
MACHINE = "x86_64"
_RETRIES = {
    BEGIN: {"retryCount": 5, "minBackoffDuration": "60s", "maxBackoffDuration": "240s", "maxDoublings": 2},
    AGAIN: {"retryCount": 2, "minBackoffDuration": "60s", "maxBackoffDuration": "120s", "maxDoublings": 1},
    TICK: {"retryCount": 0},
}
_STORE, _ARCHIVE = "SPOTRUN_STORE", "SPOTRUN_ARCHIVE"
_RIGHT = re.compile(r"""['"(]((?:run|cloudscheduler|iam)\.\w+\.\w+)['")]""")
_RIGHTS = "infra/gcp/README.md, under Nights, says how to make the accounts and roles of nights"
_CONNECT_S = 10.0


def schedule(due: ScheduleTimes) -> str:
    """Return the times of a schedule in unix-cron format, which Cloud Scheduler needs. Sunday is 0."""
    days = ",".join(str((DAYS.index(day) + 1) % len(DAYS)) for day in due.days)
    return f"{','.join(map(str, due.minutes))} {due.hour} * * {days}"


class GcpNights:
    """
    Installs, describes and removes the nights in one region of a Google Cloud project. `named` is the project's name.
    If it is None, the login determines the project.
    """

    name_max = 35  # a service's name has fewer than 50 characters, including `spotrun-night-`
    name_limit = f"its service name, {name_of('…')}, would exceed Google's limit"

    def __init__(self, region: str, clock: Clock, named: str | None = None) -> None:
        self._region = region
        self._clock = clock
        self._named = named
        self._google = Google(clock)

    def build(self) -> Function:
        return archive_for(CLOUD_RUN)

    def require(self, name: str, store: str) -> None:
        there = Call(SCHEDULER, "GET", f"v1/projects/{self._project}/locations")
        with self._explained():
            known = self._google.items("list the regions of Cloud Scheduler", there, "locations")
        require_region(self._region, (str(each["locationId"]) for each in known))
        found = self._described(name)
        if found is not None and not _is_of(found, store):
            other = _environment(found)[_STORE]
            raise SpecInvalid(
                f"{self._region} already has a night {name}, which uses the store {other}",
                hint=f"give this one another --name, or: spotrun night rm {name} --store {other}",
            )

    def addresses(self, places: Mapping[str, Reference]) -> dict[str, str]:
        wanted = sorted({each.name for each in places.values()})
        try:
            found = read_at_once(wanted, self._project)
        except StoreUnavailable as error:
            raise CloudUnavailable(error.message) from error
        return {variable: found[place.name] for variable, place in places.items()}

    def put_address(self, place: Reference) -> str:
        return add_command(place.name, self._project)

    def pinned(self, name: str) -> Pin | None:
        found = self._described(name)
        return None if found is None else pinned(_environment(found))

    def install(self, pin: Pin, store: str, function: Function, say: Callable[[str], None]) -> None:
        if function.machine != MACHINE:
            raise SpecInvalid(
                f"this machine's packages are built for {function.machine}, but the night's service needs {MACHINE}",
                hint=f"install the night from a machine with {MACHINE} processors",
            )
        say("Cloud Scheduler gets three jobs: free if the billing account has no others, else $0.10 a month for each.")
        night = pin.night
        for name in night.webhooks:
            if not name.startswith(SECRETS):
                account = f"serviceAccount:{account_address(RUNNER, self._project)}"
                say(f"note: grant {name} to the account of nights: {grant_command(name, self._project, account)}")
        archives = NightArchives(store, self._clock)
        environment = {
            _ARCHIVE: "/".join(archives.upload(function.data)),
            f"{_ARCHIVE}_SHA256": hashlib.sha256(function.data).hexdigest(),
            _STORE: store,
            "SPOTRUN_NIGHT": night.name,
            VARIABLE: pin.text,
        }
        say(f"deploying the service {name_of(night.name)} in {self._region}")
        uri = self._deploy(night.name, function.python, environment)
        for job in self._jobs(night, uri):
            self._have_job(job)
        archives.forget(lambda: self._archives_needed(store), say)

    def look(self, name: str) -> None:
        self._call(name, self._uri(name), {"kind": "look"})

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        event = {"kind": BEGIN, "by_hand": now.isoformat(timespec="seconds")}
        return self._call(name, self._uri(name), event)

    def wrong(self, night: Night, store: str) -> str:
        service = name_of(night.name)
        found = self._described(night.name)
        if found is None:
            return f"the service {service} is gone: {ANEW}"
        if not _is_of(found, store):
            other = _environment(found)[_STORE]
            return f"the service {service} calls a night of {other}; `spotrun night rm` removes this night's record"
        return (
            service_trouble(found, service)
            or self._account_trouble()
            or self._archive_trouble(found, store)
            or self._jobs_trouble(night, str(found.get("uri", "")))
        )

    def _account_trouble(self) -> str:
        for account in (account_address(each, self._project) for each in (RUNNER, CLOCK)):
            try:
                found = self._ask(
                    f"read the account {account}", Call(IAM, "GET", f"v1/projects/-/serviceAccounts/{account}")
                )
            except NotThere:
                return f"the account {account} is gone: {_RIGHTS}"
            except AccessDenied:
                continue  # without the right to read it, trust the account
            if found.get("disabled", False):
                return f"the account {account} is disabled: gcloud iam service-accounts enable {account}"
        return ""

    def _archive_trouble(self, service: Mapping[str, Any], store: str) -> str:
        name = _environment(service)[_ARCHIVE].rpartition("/")[2]
        if NightArchives(store, self._clock).has(name):
            return ""
        return f"{name}, the code of the service, is gone from the store: {ANEW}"

    def _jobs_trouble(self, night: Night, uri: str) -> str:
        jobs: dict[str, Mapping[str, Any]] = {}
        for kind, wanted in zip((BEGIN, AGAIN, TICK), self._jobs(night, uri), strict=True):
            job = self._found_job(str(wanted["name"]))
            if job is None:
                return f"the job {job_of(night.name, kind)} is gone: {ANEW}"
            if trouble := job_trouble(job, wanted, kind == TICK, self._places):
                return trouble
            jobs[kind] = job
        calls = [[jobs[BEGIN], jobs[AGAIN]], *([[jobs[TICK]]] if jobs[TICK]["state"] == ENABLED else [])]
        told = (call_trouble(each, night.installed_at, name_of(night.name), self._places) for each in calls)
        return next(filter(None, told), "")

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        """
        Remove the night `name`. Its Cloud Scheduler jobs are deleted first, then the service that they call, so no job
        calls a deleted service.
        """
        found = self._described(name)
        if found is None:
            say(f"note: {self._region} had no service {name_of(name)}")
        if found is None or _is_of(found, store):
            for kind in (BEGIN, AGAIN, TICK):
                self._delete(f"the job {job_of(name, kind)}", Call(SCHEDULER, "DELETE", f"v1/{self._job(name, kind)}"))
            service = Call(RUN, "DELETE", f"v2/{self._service(name)}")
            if self._delete(f"the service {name_of(name)}", service):
                self._wait(name, lambda found: found is None)
        NightArchives(store, self._clock).forget(lambda: self._archives_needed(store), say, removed=name)

    def alarm(self, name: str) -> Alarm:
        due = [self._job(name, kind) for kind in (BEGIN, AGAIN)]
        return GcpAlarm(self._google, self._job(name, TICK), due)

    def usd(self, hours: float) -> Decimal:
        return usd_of_a_night(hours)

    # -- Cloud Run service -------------------------------------------------------------------------------------------

    def _archives_needed(self, store: str) -> set[str]:
        """
        Return the file names of the archives that the services of nights use. A service fetches its archive from the
        store each time it starts.

        Raises:
            CloudError, StoreError: a night's service or record cannot be read, so the names are unknown.
        """
        needed = set()
        for name in names(store):
            night = NightRecord(store, name).read()
            found = GcpNights(night.region, self._clock, self._named)._described(name)
            if found is not None:
                needed.add(_environment(found)[_ARCHIVE].rpartition("/")[2])
        return needed

    def _uri(self, name: str) -> str:
        """
        Raises:
            CloudError: the service does not exist.
        """
        found = self._described(name)
        if found is None:
            hint = f"see `spotrun night ls`, or install it: spotrun night install JOB.yaml --name {name}"
            raise CloudError(f"{self._region} has no Cloud Run service {name_of(name)}", hint=hint)
        return str(found.get("uri", ""))

    def _deploy(self, name: str, python: str, environment: Mapping[str, str]) -> str:
        """
        Create or change the service, and return its address.

        Raises:
            CloudError: the service could not be deployed; the message says why.
        """
        query = {"allowMissing": "true"}
        call = Call(RUN, "PATCH", f"v2/{self._service(name)}", query, body=self._wanted(name, python, environment))
        self._ask(f"deploy the service {name_of(name)}", call)
        found = self._wait(name, _is_settled)
        condition = (found or {}).get("terminalCondition", {})
        if found is None or condition.get("state") != "CONDITION_SUCCEEDED":
            why = str(condition.get("message") or "Cloud Run does not say why")
            raise CloudError(
                f"the service {name_of(name)} could not be deployed: {why}", hint=self._places.logs(name_of(name))
            )
        return str(found["uri"])

    def _wanted(self, name: str, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
        runtime = python.replace(".", "")
        facts = {"SPOTRUN_HOST": name_of(name), "SPOTRUN_MEMORY_MB": str(MEMORY_MB), **environment}
        container = {
            "image": f"{self._region}{RUNTIMES}{STACK}/runtimes/{runtime}",
            "command": ["python3"],
            "args": ["-c", files(__package__).joinpath("night_start.py").read_text()],
            "env": [{"name": key, "value": text} for key, text in facts.items()],
            "ports": [{"containerPort": 8080}],
            "resources": {"limits": {"cpu": "1", "memory": f"{MEMORY_MB}Mi"}, "cpuIdle": True, "startupCpuBoost": True},
        }
        template = {
            "serviceAccount": account_address(RUNNER, self._project),
            "timeout": f"{FUNCTION_S:g}s",
            "maxInstanceRequestConcurrency": 1,
            "scaling": {"maxInstanceCount": 3},  # one call that hangs must not keep the next one out
            "containers": [container],
        }
        return {
            "description": "Begins a night of spotrun, and attends to its run.",
            "labels": {"spotrun-night": name},
            "ingress": INGRESS,  # from any address, for callers with the role run.invoker
            "template": template,
        }

    def _wait(self, name: str, over: Callable[[Mapping[str, Any] | None], bool]) -> Mapping[str, Any] | None:
        """
        Wait until `over` returns True for the service's description, and return that description.

        Raises:
            CloudUnavailable: Cloud Run has not finished the change in time.
        """
        until_s = self._clock.monotonic() + DEPLOYED_WITHIN.total_seconds()
        while not over(found := self._described(name)):
            if self._clock.monotonic() >= until_s:
                raise CloudUnavailable(
                    f"Cloud Run is still changing the service {name_of(name)}",
                    hint="https://console.cloud.google.com/run shows its state",
                )
            self._clock.sleep(POLL_S)
        return found

    def _described(self, name: str) -> Mapping[str, Any] | None:
        try:
            return self._ask(f"read the service {name_of(name)}", Call(RUN, "GET", f"v2/{self._service(name)}"))
        except NotThere:
            return None

    # -- Cloud Scheduler jobs ----------------------------------------------------------------------------------------

    def _jobs(self, night: Night, uri: str) -> Iterator[dict[str, Any]]:
        yield self._job_for(night, BEGIN, schedule(when_due(night)), uri)
        yield self._job_for(night, AGAIN, schedule(when_due_again(night)), uri)
        yield self._job_for(night, TICK, "* * * * *", uri)

    def _job_for(self, night: Night, kind: str, when: str, uri: str) -> dict[str, Any]:
        return {
            "name": self._job(night.name, kind),
            "description": f"spotrun, the night {night.name}: {kind}",
            "schedule": when,
            "timeZone": night.zone,
            "attemptDeadline": f"{FUNCTION_S + 30.0:g}s",
            "retryConfig": _RETRIES[kind],
            "httpTarget": {
                "uri": uri,
                "httpMethod": "POST",
                "headers": {"Content-Type": "application/json"},
                "body": base64.b64encode(json.dumps({"kind": kind}).encode()).decode(),
                "oidcToken": {"serviceAccountEmail": account_address(CLOCK, self._project), "audience": uri},
            },
        }

    def _have_job(self, job: Mapping[str, Any]) -> None:
        """
        Create or change a job. Each new job is enabled, even the job that fires each minute and is needed only during a
        run. If there is no run when that job first calls the service, the service pauses the job.
        """
        path = str(job["name"])
        name = path.rpartition("/")[2]
        try:
            self._ask(f"make the job {name}", Call(SCHEDULER, "POST", f"v1/{self._place}/jobs", body=job))
        except AlreadyThere:
            self._ask(f"change the job {name}", Call(SCHEDULER, "PATCH", f"v1/{path}", body=job))

    def _found_job(self, path: str) -> Mapping[str, Any] | None:
        try:
            return self._ask(f"read the job {path.rpartition('/')[2]}", Call(SCHEDULER, "GET", f"v1/{path}"))
        except NotThere:
            return None

    def _delete(self, what: str, call: Call) -> bool:
        """Delete a resource. Return False if it was already gone."""
        try:
            self._ask(f"delete {what}", call)
        except NotThere:
            return False
        return True

    # -- calls of the service and of Google --------------------------------------------------------------------------

    def _call(self, name: str, uri: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Call the service as Cloud Scheduler does, with a token of the account that is allowed to call it. Return its
        answer.

        Raises:
            CloudError: the service failed; the message quotes its error.
        """
        clock = account_address(CLOCK, self._project)
        path = f"v1/projects/-/serviceAccounts/{clock}:generateIdToken"
        asked = Call(CREDENTIALS, "POST", path, body={"audience": uri, "includeEmail": True})
        token = str(self._ask(f"get a token of {clock}", asked)["token"])
        headers = {"Authorization": f"Bearer {token}"}
        try:
            timeout = (_CONNECT_S, FUNCTION_S + 30.0)
            answer = requests.post(uri, json=event, headers=headers, timeout=timeout, allow_redirects=False)
        except requests.exceptions.RequestException as error:
            raise CloudUnavailable(f"{uri} cannot be reached: {str(error)[:200]}", hint=CHECK_NETWORK) from error
        if answer.status_code == requests.codes.forbidden:
            raise AccessDenied(f"the account {clock} may not call the service {name_of(name)}", hint=_RIGHTS)
        told = _json_of(answer)
        if answer.status_code != requests.codes.ok:
            said = f"{told.get('errorType', f'HTTP {answer.status_code}')}: {told.get('errorMessage', 'no message')}"
            raise CloudError(f"the service {name_of(name)} failed: {said}", hint=self._places.logs(name_of(name)))
        return told

    def _ask(self, action: str, call: Call) -> dict[str, Any]:
        with self._explained():
            return self._google.ask(action, call)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """If Google refuses the calls in the block, give advice about nights instead of advice about instances."""
        try:
            yield
        except (ServiceOff, PerimeterForbids, CredentialsRefused, NotThere, AlreadyThere):
            raise
        except AccessDenied as error:
            right = _RIGHT.search(error.message)
            raise AccessDenied(error.message, hint=f"ask for {right[1]}; {_RIGHTS}" if right else _RIGHTS) from error
        except IdentityUnknown as error:
            raise CloudError(error.message, hint=_RIGHTS) from error
        except (BadImage, InsufficientCapacity) as error:  # the advice is about instances
            raise CloudError(error.message) from error

    @cached_property
    def _project(self) -> str:
        return self._google.project(self._named)

    @property
    def _places(self) -> Places:
        return Places(self._region, self._project, _RIGHTS)

    @property
    def _place(self) -> str:
        return f"projects/{self._project}/locations/{self._region}"

    def _service(self, name: str) -> str:
        return f"{self._place}/services/{name_of(name)}"

    def _job(self, name: str, kind: str) -> str:
        return f"{self._place}/jobs/{job_of(name, kind)}"


def _environment(service: Mapping[str, Any]) -> dict[str, str]:
    (container,) = service["template"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def _is_of(service: Mapping[str, Any], store: str) -> bool:
    """
    Return True if the service belongs to the night in the store `store`, and not to a night of the same name in another
    store.
    """
    return address.parse(_environment(service)[_STORE]) == address.parse(store)


def _is_settled(service: Mapping[str, Any] | None) -> bool:
    """Return True if Cloud Run has finished the last change of the service, whether it succeeded or failed."""
    if service is None or service.get("reconciling", False):
        return False
    return service.get("observedGeneration") == service.get("generation")


def _json_of(answer: requests.Response) -> Mapping[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
