"""Shows the progress and the result of `spotrun verify-resume` as text and as JSON."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.spinner import Spinner

from spotrun.exactness.difference import Difference, DifferenceKind, Differences
from spotrun.report.describe import span
from spotrun.report.tables import plain
from spotrun.report.view import Screen, View
from spotrun.run.events import Uncarried
from spotrun.units import count_of
from spotrun.verify.command import CommandVerification
from spotrun.verify.rehearsal import RehearsalProgress
from spotrun.verify.verification import Verification

PLAIN_EVERY_S = 10.0
"""Seconds of system time between two lines about the same training. A line about a kill is printed immediately."""


def view() -> View[RehearsalProgress]:
    """Return a view that shows the progress on stderr: one changing line on a terminal, otherwise several lines."""
    return LiveView() if sys.stderr.isatty() else PlainView()


class PlainView(View[RehearsalProgress]):
    """Prints a line when a training begins, at each kill, and at intervals in between."""

    def __init__(self) -> None:
        self._printed: tuple[str, int] | None = None
        self._printed_at = 0.0

    def show(self, update: RehearsalProgress) -> None:
        now = (update.name, update.kills)
        if now == self._printed and time.monotonic() - self._printed_at < PLAIN_EVERY_S:
            return
        self._printed, self._printed_at = now, time.monotonic()
        print(progress_line(update), file=sys.stderr, flush=True)


class LiveView(Screen[RehearsalProgress]):
    def __init__(self) -> None:
        super().__init__(Console(stderr=True), refresh_per_second=8, transient=True)

    def render(self, update: RehearsalProgress) -> RenderableType:
        return Spinner("dots", text=progress_line(update))


def progress_line(progress: RehearsalProgress) -> str:
    parts = [f"{progress.name} training"] if progress.step is not None else [f"{progress.name} run"]
    if progress.step is not None:
        parts.append(f"step {progress.step:,}")
    if progress.kills_planned:
        parts.append(f"{progress.kills} of {count_of(progress.kills_planned, 'kill')}")
    if progress.elapsed_s >= 1:
        parts.append(span(progress.elapsed_s))
    if progress.held_up:
        parts.append(plain(progress.held_up))
    return ", ".join(parts)


def text(seen: Verification) -> str:
    parts = [verdict(seen), *others(seen.differences), *named_by_the_run(seen.not_carried)]
    parts += [*_scope(seen), *_outside(seen.written_outside), *_kills(seen), _times(seen)]
    if seen.identical:
        parts += [f"sha256 of {name}: {digest}" for name, digest in msgspec.to_builtins(seen.straight).items()]
    elif seen.likely_cause is not None:
        parts += [f"likely cause: {seen.likely_cause}"]
    if seen.kills and not seen.resumes_from_checkpoint:
        parts += [
            "note: no trainer began from a checkpoint, all began from the start; kill later (--at) or train longer"
        ]
    if seen.folder is not None:
        parts += [f"kept: {seen.folder}"]
    return "\n".join(plain(part, LINE_MAX) for part in parts)


LINE_MAX = 1000
NO_RESUME = "the interrupted training has resumed from no checkpoint"


def verdict(seen: Verification) -> str:
    first = seen.differences.first
    if first is None and not seen.resumes_from_checkpoint:
        return f"not compared: {NO_RESUME}"
    if first is None:
        steps, kills = count_of(seen.steps, "step"), count_of(len(seen.kills), "time")
        worlds = f", with {joined(seen.worlds)} processes" if seen.worlds else ""
        return f"bit-identical: {steps}, killed {kills}, {seen.batches_redone:,} redone{worlds}"
    return f"not identical: {describe(first)}"


def joined(numbers: Sequence[int]) -> str:
    return " and ".join(part for part in (", ".join(map(str, numbers[:-1])), str(numbers[-1])) if part)


def as_json(seen: Verification | CommandVerification) -> dict[str, Any]:
    """Return the result as JSON. Epochs, batches and steps count from 1, as in all output."""
    told: dict[str, Any] = msgspec.to_builtins(seen)
    told.pop("differences")
    return told | _told_differences(seen.differences, told.pop("likely_cause"))


def _told_differences(found: Differences, cause: str | None) -> dict[str, Any]:
    first, counted = None, dict(found.counts)
    named = [_counted_from_1(each) for each in msgspec.to_builtins(found.named)]
    if found.first is not None:
        first = named.pop(0) | {"likely_cause": cause}
        counted[found.first.kind] -= 1
    counts = {str(kind): count for kind, count in counted.items() if count}
    more = {"count": sum(counts.values()), "counts": counts, "named": named}
    return {"first_difference": first, "other_differences": more}


def _counted_from_1(found: dict[str, Any]) -> dict[str, Any]:
    return found | {key: found[key] + 1 for key in ("epoch", "batch") if found[key] is not None}


def describe(found: Difference) -> str:
    """Describe the first difference `found` in one sentence."""
    values = f"{_readable(found, found.straight)} uninterrupted, {_readable(found, found.interrupted)} interrupted"
    return f"the first difference is in {_place(found)}: {values}"


def _place(found: Difference) -> str:
    """
    Return a text that names the value that differs, and its place: rank, epoch and batch. Epochs and batches count from
    1.
    """
    what = _WHAT[found.kind] + (f" {found.name}" if found.name is not None else "")
    where = "" if found.where is None else f" ({found.where})"
    if found.rank is not None:
        where += f" of rank {found.rank}"
    if found.epoch is not None and found.batch is not None:
        where += f" at epoch {found.epoch + 1}, batch {found.batch + 1} (step {found.step})"
    return what + where


def others(found: Differences) -> list[str]:
    """
    Summarise all differences except the first, in a list with one line; empty if there is only one difference. Later
    differences may be consequences of the first, so the line names only some of them, and counts the others.
    """
    shown = found.named[1 : 1 + NAMED_MAX]
    if not shown:
        return []
    rest = Counter(found.counts)
    rest.subtract(Counter(each.kind for each in found.named[: 1 + NAMED_MAX]))
    counted = ", ".join(count_of(rest[kind], *_DIFFERENT[kind]) for kind in DifferenceKind if rest[kind])
    more = f"; and {counted}" + (" (--json names more)" if len(found.named) > 1 + NAMED_MAX else "") if counted else ""
    return [f"  also different: {'; '.join(_place(each) for each in shown)}{more}"]


def named_by_the_run(not_carried: Sequence[Uncarried]) -> list[str]:
    if not not_carried:
        return []
    named = _listed([f"{one.place} ({one.what})" for one in not_carried])
    return [f"  in no checkpoint, as the run reported: {named}"]


def _scope(seen: Verification) -> list[str]:
    compared = ", ".join(count_of(each.count, *_COUNTED[each.what]) for each in seen.compared if each.what in _COUNTED)
    return [f"  the same in: {compared}", *uncompared(seen)] if seen.identical else uncompared(seen)


def uncompared(seen: Verification | CommandVerification) -> list[str]:
    names: dict[str, list[str]] = {}
    for each in seen.not_compared:
        names.setdefault(each.why, []).append(each.name)
    return [f"  not compared: {_listed(found)}, as {why}" for why, found in names.items()]


def _outside(paths: Sequence[str]) -> list[str]:
    """Return a line about the files that no checkpoint holds, because the script wrote them outside its work folder."""
    if not paths:
        return []
    return [f"  not compared: {count_of(len(paths), 'file')} outside the work folder: {_listed(list(paths))}"]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more (--json has all)" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


NAMED_MAX = 5
_COUNTED: dict[str, tuple[str, ...]] = {
    "ranks": ("process", "processes"),
    "validations": ("validation",),
    "weights": ("weight",),
    "optimizer": ("part of optimizers", "parts of optimizers"),
    "rng": ("generator",),
    "metrics": ("metric",),
    "state": ("value of Python objects", "values of Python objects"),
    "results": ("result of test, validate or predict", "results of test, validate and predict"),
    "files": ("file",),
}


_DIFFERENT: dict[DifferenceKind, tuple[str, ...]] = {
    DifferenceKind.SAMPLES: ("batch with different samples", "batches with different samples"),
    DifferenceKind.DATA: ("batch with different content", "batches with different content"),
    DifferenceKind.LR: ("learning rate",),
    DifferenceKind.LOSS: ("loss", "losses"),
    DifferenceKind.RNG: ("batch with different generators", "batches with different generators"),
    DifferenceKind.STEPS: ("step",),
    DifferenceKind.VALIDATION: ("metric of a validation", "metrics of validations"),
    DifferenceKind.WEIGHTS: ("weight",),
    DifferenceKind.OPTIMIZER: ("part of optimizers", "parts of optimizers"),
    DifferenceKind.END_RNG: ("generator at the end", "generators at the end"),
    DifferenceKind.METRICS: ("metric at the end", "metrics at the end"),
    DifferenceKind.STATE: ("value of Python objects", "values of Python objects"),
    DifferenceKind.RESULTS: ("result",),
    DifferenceKind.FILES: ("file",),
}
_WHAT = {
    DifferenceKind.SAMPLES: "the sample ids",
    DifferenceKind.DATA: "the content of the samples",
    DifferenceKind.LR: "the learning rate",
    DifferenceKind.LOSS: "the loss",
    DifferenceKind.RNG: "the generators",
    DifferenceKind.STEPS: "the steps",
    DifferenceKind.WEIGHTS: "the weight",
    DifferenceKind.OPTIMIZER: "the optimizer state",
    DifferenceKind.END_RNG: "the generator at the end,",
    DifferenceKind.VALIDATION: "the validation: metric",
    DifferenceKind.METRICS: "the metric at the end,",
    DifferenceKind.STATE: "the value at",
    DifferenceKind.RESULTS: "the result",
    DifferenceKind.FILES: "the file",
}
_DIGESTS = frozenset(
    {DifferenceKind.DATA, DifferenceKind.RNG, DifferenceKind.WEIGHTS, DifferenceKind.OPTIMIZER, DifferenceKind.END_RNG}
)
_NUMBERS = frozenset(
    {
        DifferenceKind.LOSS,
        DifferenceKind.VALIDATION,
        DifferenceKind.METRICS,
        DifferenceKind.STATE,
        DifferenceKind.RESULTS,
    }
)
_HEXADECIMAL = re.compile(r"-?0x[01]\.[0-9a-f]+p[+-]\d+")
_DIGEST = re.compile(r"(?:sha256 )?[0-9a-f]{64}")
_SHOWN_MAX = 60


def _readable(found: Difference, value: str) -> str:
    if found.kind in _DIGESTS:
        return f"sha256 {value[:12]}…" if len(value) > len("absent") else value
    if found.kind in _NUMBERS and _HEXADECIMAL.fullmatch(value):
        return repr(float.fromhex(value))
    if _DIGEST.fullmatch(value):
        return f"sha256 {value.removeprefix('sha256 ')[:12]}…"
    if found.kind is DifferenceKind.LR:
        return "; ".join(
            ", ".join(repr(float.fromhex(rate)) for rate in rates.split(", ") if rate) for rates in value.split("; ")
        )
    return value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…"


def _kills(seen: Verification) -> list[str]:
    return [
        f"  {kill.victim} killed after step {kill.step:,}, "
        + (f"resumed from step {kill.resumed_from:,}" if kill.resumed_from else "began from the start")
        for kill in seen.kills
    ]


def _times(seen: Verification) -> str:
    return f"uninterrupted {span(seen.straight_s)}, interrupted {span(seen.interrupted_s)} (seed {seen.seed})"
