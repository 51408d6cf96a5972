"""Reads a CostStudy from a YAML file, or lists every problem in the file with its line number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from spotrun.errors import SpotrunError
from spotrun.estimate.cost_study import CostStudy, loose_ends
from spotrun.spec.file import SpecFileInvalid, in_file, read_text, require_file
from spotrun.spec.problems import Problem, problems_of
from spotrun.spec.yaml import Document, Position, read_yaml
from spotrun.units import shown

BEGIN = "title: My study"


def load_study(path: Path) -> CostStudy:
    """
    Read a study from its file.

    Raises:
        SpecFileInvalid: the file has problems; the error lists each with its key, line and suggestion.
    """
    require_file(path, "name a study file; docs/estimate.md shows one")
    document = read_yaml(read_text(path), BEGIN)
    if {"train", "run"} & document.data.keys() and "places" not in document.data:
        told = in_file(
            path, document, None, Problem((), "is a job, but a cost study was expected", "see docs/estimate.md")
        )
        raise SpecFileInvalid(path, (told,), f"spotrun plan {shown(path, 200)}")
    study, found = _read(document) if document.data or not document.problems else (None, [])
    if study is not None and not document.problems:
        return study
    problems: list[tuple[Position | None, Problem]] = [*document.problems]
    problems += [(None, problem) for problem in found if not document.follows(problem)]
    placed = dict.fromkeys(in_file(path, document, at, problem) for at, problem in problems)
    in_order = sorted(placed, key=lambda each: (each.line or 0, each.column or 0))
    raise SpecFileInvalid(path, tuple(in_order), f"correct the file, then run `spotrun estimate {shown(path, 200)}`")


@contextlib.contextmanager
def placed_in(path: Path, name: str) -> Iterator[None]:
    """
    Add to an error of the `with` block its place in the study: the file's name, and the line of `name` under `places`.
    """
    try:
        yield
    except SpotrunError as error:
        found = in_file(path, read_yaml(read_text(path), BEGIN), None, Problem(("places", name), error.message))
        error.place, error.message = found.to_dict(), str(found)
        raise


def _read(document: Document) -> tuple[CostStudy | None, list[Problem]]:
    try:
        study = CostStudy.model_validate(document.data)
    except ValidationError as error:
        return None, problems_of(error, CostStudy)
    loose = list(loose_ends(study))
    return (None, loose) if loose else (study, [])
