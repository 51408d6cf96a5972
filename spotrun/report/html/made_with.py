"""Shows what a run was made from: its job, the Git commit of its work folder, and the versions of the programs."""

from __future__ import annotations

from typing import Any

from spotrun.errors import SpecInvalid
from spotrun.report.html.markup import Markup, element, head, join, row, table
from spotrun.run.events import Revision
from spotrun.run.state import RunState
from spotrun.secrets.named_values import is_secret
from spotrun.secrets.redaction import HIDDEN, Redactor
from spotrun.spec.leaks import plain_secrets
from spotrun.spec.model import RunSpec
from spotrun.spec.yaml import write_yaml

PROGRAMS = ("spotrun", "python", "torch", "framework", "lightning", "driver")
"""
The names under which a checkpoint's entry has the versions that are shown. The version under `framework` begins with
the framework's name. Entries of spotrun 0.1 have Lightning's version under `lightning`.
"""


def made_with(state: RunState) -> Markup:
    """Return a table of the versions, followed by the job. Fields that spotrun has added to the job are left out."""
    return join(_versions(state), _job(state))


def _versions(state: RunState) -> Markup:
    found = {name: dict.fromkeys([state.created.spotrun] if name == "spotrun" else []) for name in PROGRAMS}
    for commit in state.commits:
        for name in PROGRAMS if not commit.cut_off else ():
            found[name].setdefault(commit.event.versions.get(name, ""))
    told = {name: ", then ".join(filter(None, each)) for name, each in found.items()}
    told["git commit"] = _revision(state.created.revision)
    rows = [row(name, [version]) for name, version in told.items() if version]
    heads = [head("made with"), head("version")]
    return table("Versions", heads, rows, class_="words") if rows else join()


def _revision(revision: Revision | None) -> str:
    if revision is None:
        return ""
    changes = {True: ", and changes that are not committed", False: "", None: "; whether files had changed is unknown"}
    return revision.commit + changes[revision.changed]


def _job(state: RunState) -> Markup:
    lines = job_yaml(state.created.spec).splitlines()
    text = join(*(join(line, Markup("\n")) for line in lines))
    return element("pre", text) if lines else element("p", "This spotrun cannot read the job of this run.")


def job_yaml(stored: dict[str, Any]) -> str:
    """
    Return the job as a file would contain it, without defaults and without secrets. Return "" if this version of
    spotrun cannot read the job.
    """
    try:
        spec = RunSpec.from_dict(stored)
    except SpecInvalid:
        return ""
    told = spec.to_dict(with_defaults=False)
    told.get("envs", {}).update({str(problem.key[-1]): HIDDEN for problem in plain_secrets(spec.envs, "")})
    return write_yaml(_clean(told, Redactor(())))


def _clean(value: Any, redactor: Redactor) -> Any:
    """
    Return a copy of plain data in which secrets are hidden. In a list of arguments, the value that follows a flag such
    as `--token` is hidden too.
    """
    if isinstance(value, str):
        return redactor.clean(value)
    if isinstance(value, dict):
        return {redactor.clean(key): _clean(item, redactor) for key, item in value.items()}
    if isinstance(value, list):
        pairs = zip([None, *value], value, strict=False)
        return [HIDDEN if _is_secret(before, item) else _clean(item, redactor) for before, item in pairs]
    return value


def _is_secret(before: Any, item: Any) -> bool:
    return isinstance(before, str) and isinstance(item, str) and before.startswith("-") and is_secret(before, item)
