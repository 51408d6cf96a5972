"""Makes all checks of a job that need neither a network nor a real cloud, and collects their errors."""

from __future__ import annotations

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
    mistakes = Mistakes()
    with mistakes:
        check_script(spec, here=spec.cloud.here)
    with mistakes:
        left_behind(spec)
    with mistakes:
        if not spec.checkpoint.in_bucket:
            open_runs(spec)
    with mistakes:
        check_variables(spec)
    with mistakes:
        if spec.cloud.simulated:
            with_baseline_price(spec)
    with mistakes:
        if spec.cloud.simulated and (mistake := not_offered(spec)) is not None:
            raise mistake
    mistakes.refuse()


def check_launch_offline(spec: RunSpec) -> None:
    """
    Make the checks of `check_job_offline`, and check that this machine can notify the job's receivers, and has the
    packages that a training here imports.

    Raises:
        SpotrunError: a check failed; SeveralInvalid if several did.
    """
    mistakes = Mistakes()
    with mistakes:
        check_job_offline(spec)
    with mistakes:
        require_sinks(spec)
    with mistakes:
        if spec.cloud.here:
            require_framework(spec)
    mistakes.refuse()
