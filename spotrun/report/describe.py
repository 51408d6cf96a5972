"""
Describes each event of a ledger in a sentence. Some events contain text that spotrun did not write; control characters
in it are made visible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET

from spotrun.clock import zone
from spotrun.report.budget import passing
from spotrun.report.tables import NOTHING, dollars, plain, short_duration
from spotrun.run import events as ev
from spotrun.run.events import Entry
from spotrun.run.protection import UNPROTECTED
from spotrun.run.reasons import in_one_line
from spotrun.units import count_of, plain_usd

_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SENTENCE_MAX = 3000
"""Maximum length of a sentence, in characters. It is enough for the whole reason of a failure."""


def describe(entry: Entry, ordinals: Mapping[int, int] = {}) -> str:
    """
    Return the event as a sentence, without its time and entry number. `ordinals` are the attempts' numbers as shown to
    users (`RunState.ordinals`).
    """
    event = entry.event
    sentence = " ".join(SENTENCES[type(event)](event).split())
    if isinstance(event, _BEGINS_WITH_ATTEMPT):
        number = ordinals.get(entry.number if isinstance(event, ev.AttemptStarted) else event.attempt)
        sentence = sentence if number is None else sentence.replace("attempt", f"attempt {number}", 1)
    return plain(sentence, SENTENCE_MAX)


def timestamp(at: datetime) -> str:
    """Format a time as it appears at the start of each line about a run: `11-22 02:10:05`."""
    return f"{at:%m-%d %H:%M:%S}"


def dated(what: str, time_scale: float) -> str:
    """Return the heading of a column of times, such as `started (UTC)` or `started (run time)`."""
    return f"{what} ({zone(time_scale).removeprefix('of ')})"


def about_times(time_scale: float) -> str:
    """
    Return a line that explains the times of a run's events, to be printed below the events. Return "" if the run's
    times are wall-clock times, which need no explanation.
    """
    return "" if time_scale == 1 else f"Times are run time, {time_scale:g} times as fast as the wall clock."


EVENT_INDENT = 22
"""The column at which the sentence of `event_line` begins."""


def event_line(entry: Entry, ordinals: Mapping[int, int]) -> str:
    return line_of(entry, describe(entry, ordinals))


def line_of(entry: Entry, sentence: str) -> str:
    return f"{timestamp(entry.at)}  {entry.number:4}  {sentence}"


def gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:.1f} MB"


def size(size_bytes: int) -> str:
    """Format a size in bytes: `312 bytes`, `4.1 kB`, `98.0 MB`."""
    if size_bytes < 1000:
        return "1 byte" if size_bytes == 1 else f"{size_bytes} bytes"
    return f"{size_bytes / 1e3:.1f} kB" if size_bytes < 100_000 else gigabytes(size_bytes)


def span(seconds: float) -> str:
    """Format a duration for a sentence, such as `3m05s`."""
    text = short_duration(timedelta(seconds=seconds))
    return "0s" if text == NOTHING else text


def _detail(text: str) -> str:
    return f": {in_one_line(text)}" if text else ""


def _intended(event: ev.LaunchIntended) -> str:
    price = f"${plain_usd(event.offering.price_usd_per_hour)}/h" + (" simulated" if event.offering.simulated else "")
    if event.count is UNSET:
        return f"launching {event.offering} at {price} ({event.reason})"
    return f"launching {count_of(event.count, 'member')} of {event.offering} at {price} each ({event.reason})"


def _whose(event: ev.OfMember) -> str:
    """Return the launch, or the member of a gang, that the event is about: `launch 17`, `member 17.1`."""
    return f"launch {event.launch}" if event.member is UNSET else f"member {ev.name_of(event)}"


def _of_member(event: ev.NoticeSeen | ev.NoticesUnseen) -> str:
    return "" if event.member is UNSET else f" of member {event.member}"


def _recorded(event: ev.LaunchRecorded) -> str:
    alone = f", and only its own timer would end it: {event.unguarded}" if event.unguarded else ""
    member = "" if event.member is UNSET else f", member {ev.name_of(event)},"
    return f"instance {event.instance_id}{member} is running{alone}"


def _gone(event: ev.InstanceGone) -> str:
    member = "" if event.member is UNSET else f", member {ev.name_of(event)},"
    whose = f"instance {event.instance_id}{member}" if event.instance_id else _whose(event)
    return f"{whose} is gone: {event.evidence}"


def _started(event: ev.AttemptStarted) -> str:
    if event.gang is UNSET:
        return f"attempt started on {event.instance_id}"
    return f"attempt started on members {', '.join(map(str, event.gang.names))}"


def _ended(event: ev.AttemptEnded) -> str:
    missing = () if event.missing is UNSET else event.missing
    without = f", without {', '.join(map(str, missing))}" if missing else ""
    return f"attempt ended ({event.cause}){without}{_detail(event.detail)}"


def _corrected(event: ev.EndCorrected) -> str:
    ended_at = f"{event.ended_at:%Y-%m-%d %H:%M:%S}"
    return f"the instance of {_whose(event)} ended at {ended_at}, by {event.evidence} ({event.by})"


def _deadline_lost(event: ev.DeadlineOutOfReach) -> str:
    if not event.work_left_s:
        return "the deadline has passed"
    late = span((event.expected_at - event.deadline_at).total_seconds())
    return (
        f"the deadline cannot be met: {span(event.work_left_s)} of work is left, and even on demand it ends {late} late"
    )


def nearly_spent(event: ev.BudgetNearlySpent, clock: str = "") -> str:
    """
    Return the event as a sentence. `clock`, such as " UTC", is appended to the time in the sentence; "" if the times
    next to the sentence do not name a clock either.
    """
    return f"{dollars(event.spent_usd)} is spent{passing(event.passes_at, event.epoch, 'the budget', clock)}"


def _resumed(event: ev.ResumedFrom) -> str:
    if event.commit is None:
        return "beginning at the start: there is no checkpoint to resume from"
    skipped = f"; {len(event.skipped)} of the newer checkpoints could not be used" if event.skipped else ""
    if event.in_place:
        return "beginning again with the files that are on this instance"
    if not event.step:
        return f"resuming with the files of checkpoint {event.commit}{skipped}"
    return f"resuming from step {event.step:,} (epoch {event.epoch + 1}){skipped}"


def _notice(event: ev.NoticeSeen) -> str:
    if event.deadline_at is None:
        return f"notice{_of_member(event)}: {event.kind}"
    return f"interruption notice: the cloud takes the instance{_of_member(event)} at {event.deadline_at:%H:%M:%S}"


def _committed(event: ev.CheckpointCommitted) -> str:
    if event.files is not None and not event.has_image:
        return _state_committed(event, event.files)
    marks = (" (final)" if event.final else "") + (" SUSPECT: holds NaN or Inf" if event.suspect else "")
    size = gigabytes(event.size_bytes) + (f" ({gigabytes(event.stored_bytes)} sent)" if event.borrows else "")
    found = event.files if event.files is not None and event.files.files else None
    files = f" and {count_of(found.files, 'file')} of {gigabytes(found.size_bytes)}" if found is not None else ""
    return f"checkpoint durable: step {event.step:,}, {size}{files}, {span(event.durable_s)} after the snapshot{marks}"


def _state_committed(event: ev.CheckpointCommitted, files: ev.CommittedFiles) -> str:
    sent = f"{count_of(files.files, 'file')} of {size(files.size_bytes)}, {size(files.sent_bytes)} sent"
    final = " (final)" if event.final else ""
    return f"state of the command durable: {sent}, {span(event.durable_s)} after its files stopped changing{final}"


def _training_started(event: ev.TrainingStarted) -> str:
    if event.unprotected:
        return f"unprotected: {UNPROTECTED}"
    if event.began_at is not None:
        return "the command runs, and reports no steps"
    return f"training: first new step {event.step:,} is done"


def _stopped(event: ev.InstanceStopped) -> str:
    at = f"{event.stopped_at:%Y-%m-%d %H:%M:%S}"
    return f"the instance of {_whose(event)} shut down at {at}, and its disk is still billed"


def _not_carried(event: ev.StateNotCarried) -> str:
    named = ", ".join(f"{one.place} ({one.what})" for one in event.places)
    changed = f"changed by step {event.step:,} and " if event.step else ""  # a command has no steps
    return f"{changed}in no checkpoint: {named}"


def _outputs(event: ev.OutputsStored) -> str:
    left = f"; {event.left_out:,} left out" if event.left_out else ""
    sent = f"{size(event.size_bytes)} ({size(event.sent_bytes)} sent)"
    return f"files of the script stored: {count_of(event.files, 'file')}, {sent}{left}"


def _epoch(event: ev.EpochCompleted) -> str:
    metrics = "".join(f", {name} {value:.4g}" for name, value in sorted(event.metrics.items())[:4])
    return f"epoch {event.epoch + 1} trained to step {event.step:,}{metrics}"


def _exited(event: ev.TrainerExited) -> str:
    where = f" at step {event.step:,}" if event.step else ""
    return f"trainer ended{where} with code {event.exit_code} ({event.cause}){_detail(event.detail)}"


def _completed(event: ev.RunCompleted) -> str:
    if not event.step:
        return "run completed: its command succeeded"
    return f"training completed at step {event.step:,}"


_BEGINS_WITH_ATTEMPT = (ev.AttemptStarted, ev.DrainRequested, ev.AttemptDrained, ev.AttemptEnded)
SENTENCES: dict[type, Callable[[Any], str]] = {
    ev.RunCreated: lambda event: f"run {event.name}-{event.uid} created",
    ev.StopRequested: lambda event: f"stop requested by {event.by}",
    ev.ResumeRequested: lambda event: f"resume requested by {event.by}",
    ev.PruneRequested: lambda event: f"{event.by} asks to keep at most {event.keep} of these checkpoints",
    ev.EndCorrected: _corrected,
    ev.LaunchIntended: _intended,
    ev.LaunchRecorded: _recorded,
    ev.GuardArmed: lambda event: f"the instance of {_whose(event)} now has its guard",
    ev.InstanceStopped: _stopped,
    ev.LaunchClosed: lambda event: f"launch {event.launch} given up ({event.cause}){_detail(event.detail)}",
    ev.DrainRequested: lambda event: f"attempt has to hand over ({event.reason})",
    ev.InstanceCondemned: lambda event: f"the instance of {_whose(event)} has to end{_detail(event.detail)}",
    ev.MemberReleased: lambda event: f"{_whose(event)} is no longer needed: it has to end{_detail(event.reason)}",
    ev.InstanceGone: _gone,
    ev.DeadlineOutOfReach: _deadline_lost,
    ev.BudgetNearlySpent: nearly_spent,
    ev.RunStopped: lambda event: f"run stopped: {event.reason}",
    ev.RunFailed: lambda event: f"run failed ({event.cause}){_detail(event.detail)}",
    ev.AttemptStarted: _started,
    ev.MemberReady: lambda event: f"{_whose(event)} is ready on {event.instance_id}",
    ev.ResumedFrom: _resumed,
    ev.TrainingStarted: _training_started,
    ev.NoticeSeen: _notice,
    ev.NoticesUnseen: lambda event: f"interruption notices{_of_member(event)} cannot be seen{_detail(event.detail)}",
    ev.CheckpointCommitted: _committed,
    ev.CheckpointFailed: lambda event: f"checkpoint of step {event.step:,} failed{_detail(event.detail)}",
    ev.CheckpointRetired: lambda event: f"checkpoint {event.commit} retired",
    ev.StateNotCarried: _not_carried,
    ev.OutputsStored: _outputs,
    ev.EpochCompleted: _epoch,
    ev.TrainerExited: _exited,
    ev.AttemptDrained: lambda event: f"attempt handed over{_detail(event.reason)}",
    ev.AttemptEnded: _ended,
    ev.RunCompleted: _completed,
}


def printable(text: str) -> str:
    """Return `text` without characters that could move a cursor or change a colour, but with tabs and line ends."""
    return _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
