"""Formats the result of `spotrun verify-resume` as text, for a job that runs a command."""

from __future__ import annotations

from spotrun.report.describe import span
from spotrun.report.tables import plain
from spotrun.units import count_of
from spotrun.verify.command import CommandVerification
from spotrun.verify.report import LINE_MAX, NO_RESUME, describe, named_by_the_run, others, uncompared


def text(seen: CommandVerification) -> str:
    parts = [verdict(seen), *others(seen.differences), *named_by_the_run(seen.not_carried), *uncompared(seen)]
    parts += [_kills(seen)]
    if not seen.deterministic:
        parts += [NOT_DETERMINISTIC]
    if seen.likely_cause is not None:
        parts += [f"likely cause: {seen.likely_cause}"]
    parts += [f"uninterrupted {span(seen.straight_s)}, interrupted {span(seen.interrupted_s)} (seed {seen.seed})"]
    if seen.folder is not None:
        parts += [f"kept: {seen.folder}"]
    return "\n".join(plain(part, LINE_MAX) for part in parts)


NOT_DETERMINISTIC = (
    "note: the command is not deterministic: two runs without interruptions leave different files. For these files "
    "spotrun cannot determine whether a resume is exact; an interruption costs the time of the repeated work"
)


def verdict(seen: CommandVerification) -> str:
    count = sum(each.count for each in seen.compared)
    if seen.differences.first is not None:
        return f"not identical: {describe(seen.differences.first)}"
    if not count:
        return "not compared: no file is the same in two uninterrupted runs"
    if not seen.resumes_from_checkpoint:
        return f"not compared: {NO_RESUME}"
    same = "1 file is" if count == 1 else f"{count:,} files are"
    return f"identical by content: {same} the same as without interruptions, killed {count_of(seen.kills, 'time')}"


def _kills(seen: CommandVerification) -> str:
    killed = f"  its instance was taken away {count_of(seen.kills, 'time')} without a warning"
    if seen.kills < seen.kills_planned:
        killed += f" (not {seen.kills_planned}: a kill comes after a checkpoint, and the command ended earlier)"
    if not seen.kills:
        return f"{killed}: let the command save its state more often, and pause for a second after each save"
    anew = seen.kills - seen.resumes_from_checkpoint
    began = f", {anew} of them from the start" if anew else ""
    again = span(seen.redone_s) if seen.redone_s else "none"
    return f"{killed}; the command resumed{began}, and repeated {again} of its work (rework)"
