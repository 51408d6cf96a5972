"""How somebody gets what an ended run has made: its weights, the files of its script, its report."""

from __future__ import annotations

from collections.abc import Iterator


def how_to_get(name: str, reference: str, *, weights: bool, files: int) -> list[str]:
    """
    A line for each result, with the command that gets it. `reference` is what the commands find the run by, as a
    shell reads it, and `name` its name; it has weights or not, and so many stored files.
    """
    return [f"{what:8} {command}" for what, command in _results(name, reference, weights, files)]


def _results(name: str, run: str, weights: bool, files: int) -> Iterator[tuple[str, str]]:
    if weights:
        yield "weights:", f"spotrun checkpoints export {run} {name}.ckpt"
    if files:
        yield "files:", f"spotrun fetch {run}"
    yield "report:", f"spotrun report {run} --html {name}.html"
