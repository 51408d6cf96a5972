"""Lists the commands that fetch the results of an ended run: its weights, its files and its report."""

from __future__ import annotations

from collections.abc import Iterator


def how_to_get(program: str, name: str, reference: str, *, weights: bool, files: int) -> list[str]:
    """
    Return a line for each result, with the command that fetches it.

    `program` is the command that starts spotrun in the shell, and `reference` is how the user refers to the run.
    `weights` is True if the run has weights, and `files` is the number of its stored files.
    """
    return [f"{what:8} {program} {command}" for what, command in _results(name, reference, weights, files)]


def _results(name: str, run: str, weights: bool, files: int) -> Iterator[tuple[str, str]]:
    if weights:
        yield "weights:", f"checkpoints export {run} {name}.ckpt"
    if files:
        yield "files:", f"fetch {run}"
    yield "report:", f"report {run} --html {name}.html"
