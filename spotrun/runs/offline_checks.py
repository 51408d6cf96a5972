"""Makes all checks of a job that need neither a network nor a real cloud, and collects their errors."""

from __future__ import annotations

from collections.abc import Callable

from spotrun.errors import Mistakes
from spotrun.notify.sinks import require_sinks
from spotrun.runs.first_look import not_offered
from spotrun.runs.job_checks import check_script, check_variables, left_behind, open_runs, require_framework
from spotrun.runs.pinning import with_baseline_price
from spotrun.spec.model import RunSpec


def check_job_offline(spec: RunSpec) -> None:
    """
    Check the job's script, its work folder, its store if that is a folder, and the variables from which it reads
    secrets on this machine. On a simulated cloud, check its resources and its baseline, too.

    Raises:
        SpotrunError: a check failed; SeveralInvalid if several did.
    """
    _check_all(spec, _check_script, left_behind, _check_store, check_variables, _check_baseline, _check_offer)


def check_launch_offline(spec: RunSpec) -> None:
    """
    Make the checks of `check_job_offline`, and check that this machine can notify the job's receivers, and has the
    packages that a training here imports.

    Raises:
        SpotrunError: a check failed; SeveralInvalid if several did.
    """
    _check_all(spec, check_job_offline, require_sinks, _check_framework)


def _check_all(spec: RunSpec, *checks: Callable[[RunSpec], object]) -> None:
    mistakes = Mistakes()
    for check in checks:
        with mistakes:
            check(spec)
    mistakes.refuse()


def _check_script(spec: RunSpec) -> None:
    check_script(spec, here=spec.cloud.here)


def _check_store(spec: RunSpec) -> None:
    if not spec.checkpoint.in_bucket:
        open_runs(spec)


def _check_baseline(spec: RunSpec) -> None:
    if spec.cloud.simulated:
        with_baseline_price(spec)


def _check_offer(spec: RunSpec) -> None:
    if spec.cloud.simulated and (mistake := not_offered(spec)) is not None:
        raise mistake


def _check_framework(spec: RunSpec) -> None:
    if spec.cloud.here:
        require_framework(spec)
