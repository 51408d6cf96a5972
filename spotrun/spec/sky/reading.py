"""Reads a SkyPilot task file. Returns the translated job, and how each key of the file was translated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotrun.spec.file import Draft, PlacedProblem, read_text, require_file, resolve
from spotrun.spec.model import RunSpec
from spotrun.spec.problems import OWN, Key, dotted
from spotrun.spec.sky.job import differences
from spotrun.spec.yaml import Position, read_yaml, write_yaml

AS_IT_IS = "it is"
IN_PARTS = "resources"
"""The section whose keys are shown one by one. Any other section is shown as a whole."""


@dataclass(frozen=True)
class SkyKey:
    """
    One row of the result: a key, with its translation or the reason why it was refused. `line` is None if the job needs
    a key that the file lacks.
    """

    line: int | None
    key: str
    taken: str | None = None
    problem: PlacedProblem | None = None

    def __str__(self) -> str:
        if self.problem is None:
            return f"taken as {self.taken}"
        what = "not taken" if self.line is not None else "needed"
        told = f"{what}: {self.problem.message}"
        return f"{told}; {self.problem.suggestion}" if self.problem.suggestion else told

    def to_dict(self) -> dict[str, object]:
        problem = self.problem
        return {
            "line": self.line,
            "key": self.key,
            "taken": self.taken,
            "error": None if problem is None else problem.message,
            "fix": None if problem is None else problem.suggestion,
        }


@dataclass(frozen=True)
class Reading:
    """
    The result of reading a SkyPilot task file. `job` is the translated job, without the keys that were refused. `spec`
    is None if a key was refused or is missing.
    """

    rows: tuple[SkyKey, ...]
    notes: tuple[str, ...]
    job: dict[str, Any]
    spec: RunSpec | None

    @property
    def refused(self) -> int:
        return sum(row.problem is not None for row in self.rows)

    @property
    def names_cloud(self) -> bool:
        return "cloud" in self.job.get("resources", {})

    def text(self) -> str:
        """
        Return the text of a job file that means the same as SkyPilot's file. The job file must be in the same folder as
        SkyPilot's file, and can have any name.
        """
        assert self.spec is not None
        job = {"name": self.spec.name, **self.job}
        if isinstance(secrets := job.get("secrets"), dict) and not any(secrets.values()):
            job["secrets"] = [*secrets]
        resources = job.get("resources", {})
        if isinstance(kinds := resources.get("accelerators"), dict) and not all(map(_is_count, kinds.values())):
            job["resources"] = {**resources, "accelerators": [*map(str, self.spec.resources.kinds)]}
        return write_yaml(job)


def _is_count(value: object) -> bool:
    return isinstance(value, int)


def read_sky(path: Path, default_store: str) -> Reading:
    """
    Read a SkyPilot task file. If some keys are refused, the result still has a row for each key that was accepted.

    Raises:
        SpecFileInvalid: there is no file at `path`, or it is not text.
    """
    require_file(path, "name a task file of SkyPilot's, like task.yaml")
    draft = Draft(path, read_yaml(read_text(path)))
    written = {key: at for key, at in draft.document.positions.items() if _has_row(draft, key)}
    spec = resolve(draft, {}, default_store, ())
    rows = _rows(draft, written)
    notes = tuple(differences(draft.ours)) if draft.ours else ()
    return Reading(rows, notes, draft.ours, spec)


def same_job(path: Path, text: str, default_store: str) -> RunSpec | None:
    """Return the job that a file at `path` with this `text` would describe; None if that is not a valid job."""
    return resolve(Draft(path, read_yaml(text)), {}, default_store, ())


def _has_row(draft: Draft, key: Key) -> bool:
    parts = isinstance(draft.data.get(IN_PARTS), dict)
    in_parts = parts and key[:1] == (IN_PARTS,)
    return len(key) == (2 if in_parts else 1) and not str(key[-1]).startswith(OWN)


def _rows(draft: Draft, written: dict[Key, Position]) -> tuple[SkyKey, ...]:
    problems = draft.placed()
    found: list[tuple[int, int, SkyKey]] = []
    for key, at in written.items() if not draft.hopeless() else ():
        name = dotted(key)
        if not any(_is_below(problem.key, name) for problem in problems):
            found.append((at.line, at.column, SkyKey(at.line, name, draft.taken.get(key, AS_IT_IS))))
    for problem in problems:
        line, column = problem.line or 0, problem.column or 0
        missing = problem.key != "" and not any(_is_below(problem.key, dotted(key[:1])) for key in written)
        found.append(
            (1 << 30 if missing else line, column, SkyKey(None if missing else line, problem.key, None, problem))
        )
    return tuple(row for _, _, row in sorted(found, key=lambda each: each[:2]))


def _is_below(name: str, above: str) -> bool:
    return name == above or name.startswith((f"{above}.", f"{above}["))
