"""
Installs a night: checks the job, shows its cost, and deploys the function that starts the job's run at the set time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spotrun.clouds.cloud import RentalFlags
from spotrun.clouds.registry import cloud_of
from spotrun.errors import CloudUnavailable, Mistakes, SpecInvalid, SpotrunError
from spotrun.folder.night import Night, pin_for
from spotrun.folder.night_record import NightRecord, NumberedNight
from spotrun.night.rows import HOURS, NIGHTS_A_MONTH
from spotrun.night.times import next_due, read_at, read_days, shortest_gap, winter_offset_s
from spotrun.notify.sinks import require_https
from spotrun.report.tables import dollars
from spotrun.runs.asking import say
from spotrun.runs.offline_checks import check_files, check_kinds
from spotrun.runs.open_run import OpenRun, default_store
from spotrun.runs.prepared import prepare_later
from spotrun.spec.file import load_spec, placed
from spotrun.spec.model import RunSpec
from spotrun.units import shown
from spotrun.version import __version__


class Installation:
    """
    A night that is about to be installed. It starts the job in the file `path`, changed by `overrides`. `at` is the
    time of day at which the night begins, and `days` are its days of the week, both as the user typed them.

    Raises:
        SpecInvalid, CloudError, StoreError, SecretUnreadable: the night cannot be installed.
    """

    def __init__(self, path: Path, overrides: Mapping[str, object], at: str, days: str) -> None:
        def check(spec: RunSpec) -> None:
            self._check_offline(spec, at, days)

        spec = load_spec(path, overrides, default_store(), check=check)
        with placed(path, overrides):
            mistakes = Mistakes()
            with mistakes:
                self._check_webhooks(spec)
            with mistakes:
                self._nights.require(spec.name, spec.checkpoint.uri)
            with mistakes:
                prepared = prepare_later(spec, self._cloud)
            mistakes.refuse()
        self._spec = prepared.spec
        self._record = NightRecord(spec.checkpoint.uri, spec.name)
        self._before = self._nights.pinned(spec.name)
        left = left_alone(self._record.newest(), prepared.earlier) if self._before is None else []
        self._prepared = prepared._replace(notes=(*prepared.notes, *left))

    def _check_offline(self, spec: RunSpec, at: str, days: str) -> None:
        """
        Read the flags of the night, and make all checks that need no network.

        Raises:
            SpotrunError: a check failed; SeveralInvalid if several did.
        """
        mistakes = Mistakes()
        with mistakes:
            self._time_of_day, self._zone = read_at(at)
        with mistakes:
            self._days = read_days(days)
        with mistakes:
            _refuse_what_needs_a_machine(spec)
        with mistakes:
            check_files(spec)
        with mistakes:
            check_kinds(spec)
        with mistakes:
            self._cloud = cloud_of(spec)
            self._region = next(iter(self._cloud.regions(spec, RentalFlags())), "")
            self._nights = self._cloud.nights(self._region, spec)
            self._check_name(spec.name)
        mistakes.refuse()

    def _check_name(self, name: str) -> None:
        nights = self._nights
        if len(name) > nights.name_max:
            raise SpecInvalid(
                f"{shown(name)} is too long for a night: {nights.name_limit}",
                hint=f"use --name to give a name of at most {nights.name_max} characters",
                key=("name",),
            )

    def _check_webhooks(self, spec: RunSpec) -> None:
        places, mistakes = spec.webhook_references, Mistakes()
        addresses = self._nights.addresses(places) if places else {}
        for variable, place in places.items():
            with mistakes:
                require_https(variable, addresses[variable], place.name, hint=self._nights.put_address(place))
        mistakes.refuse()

    @property
    def name(self) -> str:
        return self._spec.name

    def show(self) -> None:
        """
        Print the machines that a night would request, the times at which it begins, and the cost of calling its runner.
        """
        self._prepared.show()
        limit = self._spec.policy.deadline
        hours = limit.total_seconds() / 3600 if isinstance(limit, timedelta) else HOURS
        usd = self._nights.usd(hours)
        say(f"{self.name}: {','.join(self._days)} at {self._time_of_day} {self._zone}, from {self._region}.")
        say(
            f"The calls of the runner cost about {dollars(usd)} in a night of {hours:g} h, "
            f"and {dollars(usd * NIGHTS_A_MONTH)} in {NIGHTS_A_MONTH} nights."
        )
        if timedelta(hours=hours) > shortest_gap(self._days):
            say(
                "note: a run may last until the next night is due; that night then continues it and begins no other run"
            )

    def install(self, progress: Callable[[str], None]) -> datetime | None:
        """
        Deploy the function, and record the night. Return the time at which the next night is due; None if that time is
        unknown.

        Raises:
            SpotrunError: the night was not installed. After CloudUnavailable, it is unknown whether it was installed.
        """
        function = self._nights.build()
        record, now = self._record, datetime.now(UTC)
        night = self._night(now)
        is_new = not record.is_installed
        if is_new:
            record.install(night)  # so that `night ls` and `night rm` find the deployed parts after an interruption
        try:
            self._nights.install(pin_for(night, self._before), self._spec.checkpoint.uri, function, progress)
        except CloudUnavailable:
            raise
        except SpotrunError:
            if is_new:
                record.remove()
            raise
        record.install(night)  # not earlier: until now the deployed function has rejected this record
        self._nights.look(night.name)
        return next_due(night, now)

    def _night(self, now: datetime) -> Night:
        spec = self._spec
        return Night(
            name=spec.name,
            # Where the deployed function runs, the work folder has a different path.
            spec=spec.model_copy(update={"workdir": "/"}).to_dict(),
            workdir_sha256=self._record.upload(Path(spec.workdir)),
            at=self._time_of_day,
            zone=self._zone,
            days=self._days,
            winter_offset_s=winter_offset_s(self._zone, now),
            cloud=self._cloud.name,
            region=self._region,
            installed_at=now,
            spotrun=__version__,
            webhooks=tuple(sorted({place.name for place in spec.webhook_references.values()})),
        )


def left_alone(begun: Sequence[NumberedNight], runs: Sequence[OpenRun]) -> list[str]:
    """
    Return a note if the newest night in `begun` has an unfinished run among `runs`. The note warns that the function
    that is being installed will not take care of that run, because it has a new pin.
    """
    newest = {each.begun.run for each in begun[-1:]}
    return [
        f"{run.id} is not finished, and the function that is installed now has not made it, so it will not take care "
        f"of this run: `spotrun resume {run.typed}` continues the run, `spotrun down {run.typed}` ends it"
        for run in runs
        if run.created.uid in newest and run.ledger.refresh().terminal is None
    ]


def _refuse_what_needs_a_machine(spec: RunSpec) -> None:
    """
    Check that a night can start the job while the user's machine is off.

    Raises:
        SpecInvalid: the job names something that exists only on its user's machine.
    """
    mistakes = Mistakes()
    with mistakes:
        for number, receiver in enumerate(spec.notify):
            if receiver.command is not None:
                raise SpecInvalid(
                    "a night does not use any machine of yours, so it cannot run this command",
                    hint="write webhook: $SLACK_WEBHOOK, and store the webhook's address in the cloud (docs/night.md)",
                    key=("notify", number, "command"),
                )
    with mistakes:
        if spec.policy.deadline is not None and not isinstance(spec.policy.deadline, timedelta):
            raise SpecInvalid(
                "a night's deadline has to be a duration, counted from the night's beginning",
                hint="write --deadline 8h",
                key=("policy", "deadline"),
            )
    with mistakes:
        advisor = spec.aws.advisor
        if advisor is not None and "://" not in advisor:
            raise SpecInvalid(
                f"{advisor} is a file on this machine, which a night cannot read",
                hint="give the file's URL",
                key=("aws", "advisor"),
            )
    mistakes.refuse()
