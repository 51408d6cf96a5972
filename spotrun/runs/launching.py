"""Launches one job: prepares it, shows it, and creates its run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotrun.clouds.registry import cloud_of
from spotrun.run.events import RunCreated
from spotrun.runner.creation import prepare_run, would_be_created
from spotrun.runs.asking import say
from spotrun.runs.container_image import with_image
from spotrun.runs.first_look import with_baseline_price
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun, default_store, who
from spotrun.runs.prepared import prepare, show_start
from spotrun.runs.signals import Signalled
from spotrun.spec.file import load_spec, placed
from spotrun.spec.model import RunSpec


class Launch:
    """
    The launch of the job that `path`, `overrides` and `arguments` of the script describe. `start` is the Lightning
    checkpoint that it begins from.

    Raises:
        SpecInvalid, CloudError: the job cannot be read.
    """

    def __init__(
        self, path: Path, overrides: Mapping[str, object], arguments: Sequence[str], start: Path | None
    ) -> None:
        with placed(path, overrides):
            self.spec: RunSpec = with_baseline_price(load_spec(path, overrides, default_store(), arguments))
        self._path = path
        self._overrides = overrides
        self._start = start

    def show(self, others: Sequence[str] = (), *, dry_run: bool = False) -> None:
        """
        Prepare the job, and print its request. `others` are notes on runs of its name that go on.

        Raises:
            SpotrunError: it cannot run; nothing was written.
        """
        with placed(self._path, self._overrides):
            prepared = prepare(self.spec, all_left_behind=dry_run)
        self.spec = prepared.spec
        unchecked = [self._unchecked] if dry_run and not cloud_of(self.spec).here else []
        prepared._replace(notes=(*others, *prepared.notes, *unchecked)).show()
        if self._start is not None:
            show_start(self._start)

    @property
    def _unchecked(self) -> str:
        doctor = f"spotrun doctor {self.spec.resources.cloud} JOB.yaml"
        return f"rights, quotas and secrets are not looked at here: `{doctor}` does"

    def create(self) -> OpenRun:
        """
        Create the run in its store, remembered as ours.

        Raises:
            SpotrunError: it cannot be created.
            KeyboardInterrupt, Signalled: nothing was rented.
        """
        try:
            return create_known(prepare_run(self.spec, f"cli:{who()}", self._start))
        except (KeyboardInterrupt, Signalled):
            say("nothing was rented; `spotrun status` shows whether there is a run already")
            raise

    def as_now(self, last: OpenRun) -> RunCreated:
        """Return the first entry that a run of this job would have now, if it had the uid of `last`."""
        return would_be_created(with_image(self.spec, os.environ)[0], last.created.uid, self._start)
