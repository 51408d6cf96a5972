"""
Checks a job before prices and offerings are read: its script, its work folder, its bucket, and the packages and
environment variables that it needs on this machine.
"""

from __future__ import annotations

import ast
import contextlib
import os
import platform
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from spotrun.clouds.cloud import Cloud
from spotrun.doctor.machine import LIGHTNINGS, is_installed
from spotrun.errors import (
    AccessDenied,
    CloudUnavailable,
    Mistakes,
    NotInstalled,
    SpecInvalid,
    StoreError,
    StoreUnavailable,
    command_for,
    installer,
)
from spotrun.folder.travelling import to_upload, told
from spotrun.secrets.values import require_variables
from spotrun.spec.model import RunSpec
from spotrun.store.local import LocalStore
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.units import format_duration, plain_usd, to_the_cent

SAVED = re.compile("lightning|transformers|from spotrun import|import spotrun", re.IGNORECASE)
"""
Words in a script which show that spotrun can make checkpoints of its training. Without checkpoints, a run starts over
after each loss, and `verify-resume` has nothing to resume from.
"""

TORCH = re.compile(r"^\s*(?:import|from)\s+(?:torch|accelerate)\b", re.MULTILINE)
"""The imports of a script whose training a `Loop` can make resumable."""


class CheckedJob(NamedTuple):
    """
    The result of checking a job. `notes` are for the user, and include a note for each check that was not possible.
    `runs` is the store of the job's runs; None if the store could not be opened, or if its bucket could not be listed.
    """

    notes: list[str]
    runs: Store | None


def check_job(spec: RunSpec, cloud: Cloud, *, all_left_behind: bool = False) -> CheckedJob:
    """
    Check what a launch of the job needs: its script, its work folder, its bucket, and the resources of the cloud that
    it names. What it needs on this machine is checked by `check_machine`. The checks change nothing.

    A note names the files of the work folder that are not uploaded: all of them with `all_left_behind`, otherwise only
    the first ones.

    Raises:
        SpecInvalid, StoreError, CloudError: something is missing; or the bucket or a resource that the job names does
            not exist, or this user is not allowed to use it. SeveralInvalid if there are several errors.
    """
    mistakes, notes, runs = Mistakes(), list[str | None](), None
    with mistakes:
        notes.append(check_script(spec, here=spec.cloud.here))
    with mistakes:
        notes.append(left_behind(spec, all_of_them=all_left_behind))
    with mistakes, _noted(notes):
        runs = open_runs(spec)
    with mistakes, _noted(notes):
        notes += cloud.require_named(spec)
    mistakes.refuse()
    return CheckedJob([each for each in notes if each is not None], runs)


@contextlib.contextmanager
def _noted(notes: list[str | None]) -> Iterator[None]:
    """Add a note that the check in the block was not possible, if the store or the cloud does not answer it."""
    try:
        yield
    except (StoreUnavailable, CloudUnavailable, AccessDenied) as error:
        notes.append(f"not checked: {error.one_line}")


def check_machine(spec: RunSpec) -> None:
    """
    Check that this machine has what a launch of the job needs.

    Raises:
        NotInstalled: the job trains here, and a package that its script imports is missing.
        SecretUnreadable: a secret is missing.
    """
    if spec.cloud.here:
        require_framework(spec)
    check_variables(spec)


def check_variables(spec: RunSpec) -> None:
    """
    Check that this machine has each environment variable from which a secret of the job is read.

    Raises:
        SecretUnreadable: a variable is missing; SeveralInvalid if several are.
    """
    require_variables(spec.secret_references, os.environ)


def check_script(spec: RunSpec, *, here: bool) -> str | None:
    """
    Check that this machine's Python can compile the script. If it cannot, and the job trains on other machines, return
    a note rather than raise an error, because those machines may have a newer Python.

    Raises:
        SpecInvalid: the script cannot be compiled, and the training would run with this machine's Python (`here`).
    """
    script = spec.train.source(Path(spec.workdir))
    if script is None:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            compile((Path(spec.workdir) / script).read_bytes(), script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        at = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = f"{script}{at}: {error.msg if isinstance(error, SyntaxError) else error}"
        if here:
            raise SpecInvalid(reason, hint=f"correct {script}", key=spec.train.key) from None
        return f"{reason}, says Python {platform.python_version()} of this machine"
    return None


def left_behind(spec: RunSpec, *, all_of_them: bool = False) -> str | None:
    """
    Return a note that names files of the work folder that are not uploaded: the first ones, or all of them. Return None
    if all files are uploaded.

    Raises:
        SpecInvalid: the script is not uploaded, the files are too large, or an ignore file cannot be read.
    """
    folder = Path(spec.workdir)
    found = to_upload(folder, spec.checkpoint.uri, spec.train.source(folder), spec.workdir_max_gb)
    return told(found, sys.maxsize) if all_of_them else told(found)


def without_checkpoints(spec: RunSpec) -> str | None:
    """
    Return a note if the job may get no checkpoints, else None. spotrun makes checkpoints only if the training uses a
    framework that it supports, or if the job names files as state.
    """
    if spec.train.state or spec.elastic is not None or _names(spec, SAVED):
        return None
    source = spec.train.source(Path(spec.workdir)) or spec.train.module
    what = "The job is a plain command" if spec.train.run else f"{source} names no framework that spotrun knows"
    loop = "To make a PyTorch loop resumable, use spotrun's Loop (docs/loops.md); to" if _names(spec, TORCH) else "To"
    return (
        f"{what}: unless it trains with Lightning, transformers or a Loop, each interruption starts it again from the "
        f"beginning. {loop} continue from files that it writes, add train: {{state: [out/]}}."
    )


def _names(spec: RunSpec, words: re.Pattern[str]) -> bool:
    script = spec.train.source(Path(spec.workdir))
    return script is not None and bool(words.search((Path(spec.workdir) / script).read_text(errors="replace")))


def about_home(spec: RunSpec) -> str | None:
    """Describe the hourly cost of the user's own machine. Return None if the job does not use one."""
    name, home = spec.resources.home, spec.home
    if home is None:
        return None
    elsewhere = "" if home.is_here else f" It is {home.host}; only a runner there can use it."
    return f"{name} costs ${plain_usd(home.price_usd_per_hour)} an hour: {home.price_in_words}.{elsewhere}"


def alone_at_home(spec: RunSpec) -> str | None:
    """
    Estimate the cost and time of the whole training on the user's own machine, because the forecast covers only the
    cloud. Return None if the job does not use such a machine.
    """
    name, home, work = spec.resources.home, spec.home, spec.policy.expected_work
    if home is None:
        return None
    told = f"The forecast is for the cloud only. {about_home(spec)}"
    if work is None:
        return told
    takes = work / float(home.speed)
    usd = to_the_cent(float(home.price_usd_per_hour) * (takes / timedelta(hours=1)))
    return f"{told} Only on {name}, the work takes {format_duration(takes)} and costs {usd}."


def require_framework(spec: RunSpec) -> None:
    """
    Check that PyTorch and Lightning are installed on this machine, if the script imports them. Skip the check if the
    job has a `setup`, a PYTHONPATH or an image, because these may provide the packages.

    Raises:
        NotInstalled: a package that the script imports is missing.
    """
    source = spec.train.source(Path(spec.workdir))
    if source is None or spec.setup is not None or "PYTHONPATH" in spec.envs or spec.image is not None:
        return
    script = Path(spec.workdir, source)
    for package in ("torch", *LIGHTNINGS):
        own = any(script.with_name(name).exists() for name in (package, f"{package}.py"))
        if package in _imports_of(script) and not own and not is_installed(package):
            unified = shlex.join([*installer(), "lightning"])
            raise NotInstalled(
                f"{source} imports {package}, which is not installed for {sys.executable}",
                hint=unified if package == "lightning" else command_for("lightning"),
            )


def _imports_of(script: Path) -> set[str]:
    """Return the packages that a script imports at its top level; none if it is not valid Python."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    modules = [each.module or "" for each in tree.body if isinstance(each, ast.ImportFrom) and each.level == 0]
    modules += [name.name for each in tree.body if isinstance(each, ast.Import) for name in each.names]
    return {module.partition(".")[0] for module in modules}


def open_runs(spec: RunSpec) -> Store:
    """
    Open the store of the job's runs. To check that it works, list a bucket; in a local folder, or in the one in which
    the launch creates it, create a temporary file and remove it.

    Raises:
        StoreError: the store cannot be opened, the bucket cannot be listed, or nothing can be written to the folder.
            The error names the key of the job.
    """
    try:
        runs = open_store(spec.checkpoint.uri)
        if isinstance(runs, LocalStore):
            runs.require_writable()
        else:
            runs.folders()
    except StoreError as error:
        error.key = error.key or ("checkpoint", "uri")
        raise
    return runs
