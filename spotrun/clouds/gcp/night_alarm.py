"""
Calls a night's runner every minute, through a Cloud Scheduler job, until the night's run has ended. The runner resumes
this job when a run begins and pauses it when the run has ended.

https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.gcp.calls import SCHEDULER, Call, Google
from spotrun.errors import CloudError

TICK = "tick"
ENABLED, PAUSED = "ENABLED", "PAUSED"
_VERBS = {ENABLED: "resume", PAUSED: "pause"}


def name_of(night: str) -> str:
    """Return the name of a night's service, which is also the prefix of its jobs' names."""
    return f"spotrun-night-{night}"


def job_of(night: str, kind: str) -> str:
    return f"{name_of(night)}-{kind}"


class GcpAlarm:
    """
    An Alarm that consists of a Cloud Scheduler job, `job`, which fires each minute. `others` are the jobs that fire
    when a night is due.

    Google sends a notice only to the instance itself. The agent there writes it into the ledger, where the runner reads
    it at its next call, within a minute. That is early enough, because Google gives notice two minutes before it takes
    the instance.
    """

    def __init__(self, google: Google, job: str, others: Sequence[str] = ()) -> None:
        self._google = google
        self._job = job
        self._others = others
        self._is_on: bool | None = None

    def on(self, *, again: bool = False) -> None:
        if again or self._is_on is not True:
            self._switch(ENABLED)
            self._is_on = True

    def off(self) -> None:
        self._switch(PAUSED)
        self._is_on = False

    def hear(self, instance_ids: Collection[str]) -> None:
        """Do nothing, because Google sends no events about instances."""

    def wrong(self) -> str:
        for job in self._others:
            title = job.rpartition("/")[2]
            try:
                state = self._state(job)
            except NotThere:
                return f"the job {title} is gone"
            if state != ENABLED:
                return f"the job {title} is {state}"
        return ""

    def _switch(self, state: str) -> None:
        """Pause or resume the job. Do nothing if it is in this state already, because Google would refuse the call."""
        if self._state(self._job) == state:
            return
        verb = _VERBS[state]
        try:
            self._google.ask(f"{verb} the job {self._name}", Call(SCHEDULER, "POST", f"v1/{self._job}:{verb}", body={}))
        except CloudError:
            if self._state(self._job) != state:
                raise

    def _state(self, job: str) -> str:
        found = self._google.ask(f"read the job {job.rpartition('/')[2]}", Call(SCHEDULER, "GET", f"v1/{job}"))
        return str(found.get("state", ""))

    @property
    def _name(self) -> str:
        return self._job.rpartition("/")[2]
