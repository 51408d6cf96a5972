"""Makes all checks of a job that need neither a network nor a real cloud, and collects their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spotrun.errors import Mistakes, ProbableMistake, SeveralInvalid
from spotrun.market.accelerators import meant_by
from spotrun.notify.sinks import require_sinks
from spotrun.runs.command_files import require_command_files
from spotrun.runs.first_look import not_offered
from spotrun.runs.job_checks import check_script, check_variables, left_behind, open_runs, require_framework
from spotrun.runs.pinning import with_baseline_price
from spotrun.spec.kinds import ANY_OF, AnyOf
from spotrun.spec.model import RunSpec
from spotrun.spec.values import Accelerators


def check_job_offline(spec: RunSpec) -> None:
    """
    Check the job's script, its work folder, the files that its commands name, its store if that is a folder, and the
    variables from which it reads secrets on this machine. On a simulated cloud, check its resources and its baseline,
    too.

    Raises:
        SpotrunError: a check failed; SeveralInvalid if several did.
        ProbableMistake: spotrun does not know an accelerator of the job, and knows one with a similar name.
    """
    _check_all(spec, check_files, _check_store, check_variables, _check_baseline, _check_offer, check_kinds)


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


def check_files(spec: RunSpec) -> None:
    """
    Check the job's script, its work folder, and the files that its commands name.

    Raises:
        SpecInvalid: a check failed; SeveralInvalid if several did.
    """
    _check_all(spec, _check_script, left_behind, require_command_files)


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


def misspelled_kinds(spec: RunSpec) -> Iterator[ProbableMistake]:
    """
    Yield an error for each accelerator of the job that spotrun does not know, but whose name is similar to a known one.
    The cloud may have it nevertheless, because spotrun's table has only some accelerators.
    """
    key = ("resources", "accelerators")
    for index, kind in enumerate(spec.resources.kinds):
        if isinstance(kind, Accelerators) and (meant := meant_by(kind.name)) is not None:
            at = (*key, ANY_OF, index) if isinstance(spec.resources.accelerators, AnyOf) else key
            what = f"spotrun knows no accelerator {kind.name}"
            yield ProbableMistake(what, hint=f"did you mean {meant}:{kind.count}?", key=at)


def check_kinds(spec: RunSpec) -> None:
    """
    Check the names of the job's accelerators, unless the job is for a simulated cloud, whose accelerators are known.

    Raises:
        SeveralInvalid: it holds a ProbableMistake for each name that is probably misspelled.
    """
    if not spec.cloud.simulated and (found := [*misspelled_kinds(spec)]):
        raise SeveralInvalid(found)


def _check_framework(spec: RunSpec) -> None:
    if spec.cloud.here:
        require_framework(spec)
