"""
Explains each decision of a run, and its reason, in one sentence that is computed from the run's ledger.

The ledger records the reason why a launch was chosen (`LaunchIntended.reason`). The reason for a wait, and the effect
of a notice, are inferred from the entries around them. If no reason can be found in the ledger, the sentence says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET

from spotrun.account.outcome import is_plain
from spotrun.clock import zone
from spotrun.offering import CapacityType, Offering
from spotrun.policy.launches import NO_CAPACITY, why_refused
from spotrun.policy.patience import tick
from spotrun.policy.pool_cooldown import LASTING_REST, POOL_REST
from spotrun.policy.standbys import failing_standbys
from spotrun.report.describe import SENTENCE_MAX, describe
from spotrun.report.tables import plain
from spotrun.run import events as ev
from spotrun.run.events import Cause, Entry
from spotrun.run.fold import replay
from spotrun.run.gang import MemberName
from spotrun.run.reasons import in_one_line
from spotrun.run.state import Attempt, RunState
from spotrun.spec.model import RunSpec
from spotrun.units import count_of, plain_usd, to_the_second

TICKS_WAITED = 5
"""
Minimum time between two decisions, in ticks, that counts as a wait. A runner makes a decision at each tick, so a
shorter time is normal.
"""
PAIRS_MAX = 3
"""
Maximum number of refused requests in a row that are all shown. Each is a pair of decisions: the request, and its
refusal. If there are more pairs in a row, `briefly` shortens them.
"""
REFUSED = "refused"
"""The value of `Decision.kind` if the cloud refused a launch."""


@dataclass(frozen=True)
class Decision:
    """
    A decision of a run. `number` is the number of the ledger entry that records the decision or its cause. `kind` is a
    word that programs can compare.
    """

    number: int
    at: datetime
    kind: str
    sentence: str


def decisions(entries: Sequence[Entry], spec: RunSpec) -> list[Decision]:
    """Return the decisions in a ledger, oldest first."""
    last = deque(replay(entries), maxlen=1)  # keeping all states would take memory quadratic in the number of entries
    if not last:
        return []
    resumed = [entry.number for entry in entries if isinstance(entry.event, ev.ResumeRequested)]
    narrator = _Narrator(spec, last[0][2], resumed)
    made = []
    for before, entry, after in replay(entries):
        if (narrated := narrator.tell(before, entry, after)) is not None:
            kind, sentence = narrated
            made.append(Decision(entry.number, entry.at, kind, plain(" ".join(sentence.split()), SENTENCE_MAX)))
    return made


def briefly(made: list[Decision]) -> list[Decision]:
    """
    Shorten the list of decisions. If more than PAIRS_MAX requests in a row were refused, keep only the first and the
    last of them, and replace the others with one line that says how many there were.
    """
    shortened: list[Decision] = []
    rest = made
    while rest:
        pairs = _refused_in_a_row(rest)
        if pairs > PAIRS_MAX:
            first, left_out = rest[:2], rest[2 : 2 * pairs - 2]
            entries = f"entries {left_out[0].number} to {left_out[-1].number}"
            words = f"asked {count_of(pairs - 2, 'more time')}, and was refused each time ({entries})"
            shortened += [*first, Decision(left_out[0].number, left_out[0].at, REFUSED, words)]
            rest = rest[2 * pairs - 2 :]
        shortened += rest[:2] if pairs else rest[:1]
        rest = rest[2:] if pairs else rest[1:]
    return shortened


def _refused_in_a_row(made: list[Decision]) -> int:
    """
    Count the refused requests at the start of the list, up to the first other decision. A refused request makes two
    decisions: the request and its refusal.
    """
    pairs = 0
    while [each.kind for each in made[2 * pairs : 2 * pairs + 2]][1:] == [REFUSED]:
        pairs += 1
    return pairs


def offering_text(offering: Offering) -> str:
    """Describe an offering: `spot in local-a (sim-v100)`, or `box at home`."""
    if offering.capacity_type is CapacityType.OWN:
        return str(offering)
    return f"{capacity_text(offering)} in {offering.zone} ({offering.instance_type})"


def _where(state: RunState, name: MemberName) -> str:
    """Describe an instance by its offering. In a gang, the member's name comes first."""
    where = offering_text(state.launches[name.launch].intent.offering)
    return f"member {name} on {where}" if state.of_gangs else where


def _noticed(attempt: Attempt, notice: ev.NoticeSeen) -> MemberName:
    """Return the member whose instance the cloud will take according to the notice."""
    return attempt.names[0] if notice.member is UNSET else notice.member


def capacity_text(offering: Offering) -> str:
    return offering.capacity_type.in_words


Narrated = tuple[str, str]
"""The kind of a decision, and its sentence."""


class _Narrator:
    """
    Describes the entries of a ledger in sentences, one entry after another. `end` is the run's state after the last
    entry. It is needed because the sentence about an entry can also say what happened later, such as which instance
    took over. `resumed` are the numbers of the entries in which a user asked to resume the run.
    """

    def __init__(self, spec: RunSpec, end: RunState, resumed: Sequence[int]) -> None:
        self._spec = spec
        self._end = end
        self._resumes = resumed
        self._ordinals = end.ordinals()
        self._wanted_since: datetime | None = None
        self._idle_since: datetime | None = None
        self._newest: ev.Event | None = None
        self._after = end

    def tell(self, before: RunState, entry: Entry, after: RunState) -> Narrated | None:
        event, self._after = entry.event, after
        narrated = _NARRATED[type(event)](self, before, entry, event) if type(event) in _NARRATED else None
        if _wants_an_instance(after) and not _wants_an_instance(before):
            self._wanted_since = entry.at
        if _may_ask(after) and not _may_ask(before):
            self._idle_since = entry.at
        self._newest = event
        return narrated

    def _created(self, _: RunState, entry: Entry, event: ev.RunCreated) -> Narrated:
        self._wanted_since = self._idle_since = entry.at
        wishes = [_capacity_wish(self._spec)]
        if event.budget_usd is not None:
            wishes.append(f"for ${plain_usd(event.budget_usd)} at most")
        if event.price_cap_usd_per_hour is not None:
            wishes.append(f"never above ${plain_usd(event.price_cap_usd_per_hour)} an hour")
        if event.deadline_at is not None:
            by = f"{event.deadline_at:%Y-%m-%d %H:%M} {zone(event.time_scale)}"
            wishes.append(f"done by {by}, strategy {self._spec.policy.strategy}")
        return "wish", f"asked for: {', '.join(wishes)}"

    def _intended(self, before: RunState, entry: Entry, event: ev.LaunchIntended) -> Narrated:
        offering = event.offering
        price = f"${plain_usd(offering.price_usd_per_hour)}/h" + (" simulated" if offering.simulated else "")
        below = event.on_demand_usd_per_hour - offering.price_usd_per_hour
        cheaper = f", ${plain_usd(below)} an hour below on-demand" if below > 0 else ""
        what = f"{'' if event.instances == 1 else f'{event.instances} x '}{offering_text(offering)} at {price}"
        sentence = f"asked for {what}{cheaper}{self._after_wait(before, entry)}: {event.reason}"
        return _kind_of_launch(before, event), sentence

    def _after_wait(self, before: RunState, entry: Entry) -> str:
        if not _may_ask(before) or self._idle_since is None or self._wanted_since is None:
            return ""
        waited = entry.at - self._idle_since
        if waited < TICKS_WAITED * tick(before):
            return ""
        return f", after a wait of {to_the_second(waited)} ({self._why_it_waited(before, self._wanted_since)})"

    def _why_it_waited(self, before: RunState, since: datetime) -> str:
        told = list(_refusals(before, since))
        if told:
            return "; ".join(told)
        if isinstance(self._newest, ev.InstanceGone) and before.created.budget_usd is not None:
            return "the budget was reserved until the previous instance had ended"
        if not before.launches or isinstance(self._newest, ev.ResumeRequested):
            return "until a runner had read the cloud's offerings"
        return "the ledger does not say why: perhaps there was no runner, or none that could reach the cloud"

    def _closed(self, before: RunState, entry: Entry, event: ev.LaunchClosed) -> Narrated:
        offering = before.launches[event.launch].intent.offering
        detail = f": {in_one_line(event.detail)}" if event.detail else ""
        kind = REFUSED if event.refused else "give-up"
        return kind, f"gave up asking for {offering_text(offering)} ({event.cause}){detail}{self._pause(before)}"

    def _notice(self, before: RunState, entry: Entry, event: ev.NoticeSeen) -> Narrated:
        attempt = self._end.attempts[event.attempt]
        where = _where(before, _noticed(attempt, event))
        if event.deadline_at is None:
            return "notice", f"the cloud said that it might take {where} ({event.kind}); training continues"
        given = to_the_second(max(timedelta(), event.deadline_at - entry.at))
        saved = _saved_after(self._end, attempt, entry.at)
        return "notice", f"the cloud gave {given} of notice for {where}: {saved}{self._what_followed(attempt)}"

    def _gone(self, before: RunState, entry: Entry, event: ev.InstanceGone) -> Narrated | None:
        current, name = before.current, ev.name_of(event)
        if current is None or name not in current.names:
            return self._gone_before_it_trained(before, event)
        attempt = self._end.attempts[current.number]
        where = _where(before, name)
        told = attempt.notice is not None and _noticed(attempt, attempt.notice) == name
        if told and attempt.notice_at is not None and attempt.notice_at <= entry.at:
            return None  # part of the notice's sentence
        taken = attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED
        how = "was taken without a notice" if taken else _how_it_ended(before, event)
        return "loss", f"{where} {how} ({event.evidence}){self._what_followed(attempt)}"

    def _gone_before_it_trained(self, before: RunState, event: ev.InstanceGone) -> Narrated | None:
        launch = before.launches[event.launch]
        if not launch.pending:
            return None
        where, how = offering_text(launch.intent.offering), _how_it_ended(before, event)
        what = where if before.current is None else f"the standby, {where},"
        return "give-up", f"{what} {how} before it took over ({event.evidence}){self._pause(before)}"

    def _what_followed(self, attempt: Attempt) -> str:
        """
        Describe what happened after an attempt ended: how many steps had to be repeated, and which instance took over.
        If no later attempt has begun yet, say that nothing has taken over.
        """
        end = self._end
        successor = next((later for number, later in end.attempts.items() if number > attempt.number), None)
        if attempt.end is None or successor is None:
            return "; nothing has taken over yet" if end.terminal is None else ""
        parts = []
        if is_plain(end) and successor.trainers:
            parts.append(_time_lost(end, attempt.end.stopped_at, successor.trainers[0].commit))
        elif attempt.end.last_step is not None and successor.trainers:
            lost = max(0, attempt.end.last_step - successor.trainers[0].step)
            parts.append(f"{count_of(lost, 'step')} had to be done again" if lost else "no step was lost")
        since = attempt.notice_at or attempt.end.known_at
        took = to_the_second(max(timedelta(), successor.started_at - since))
        if any(attempt.number < number < successor.number for number in self._resumes):
            return "; ".join(["", *parts, f"the run had ended, and was resumed: it trained again after {took}"])
        return "; ".join(["", *parts, f"{_who_took_over(end, attempt, successor)} after {took}"])

    def _pause(self, before: RunState) -> str:
        """
        Describe how long spotrun will wait before it launches another standby, because several standbys have failed in
        a row. Return "" if this entry does not change the wait.
        """
        failing = failing_standbys(self._after)
        if failing is None or failing == failing_standbys(before):
            return ""
        return f"; {failing.count} standbys have failed in a row, so the next standby is requested at {failing.when}"

    def _resumed(self, before: RunState, entry: Entry, event: ev.ResumedFrom) -> Narrated | None:
        if event.commit is None:
            return None
        if event.in_place:
            return "resume", "continued with the files that were on this instance"
        skipped = f", because newer ones could not be used ({len(event.skipped)})" if event.skipped else ", the newest"
        commit = before.commit(event.commit)
        if commit is not None and not commit.event.has_image:
            return "resume", f"continued with the files as of {commit.event.taken_at:%H:%M:%S}{skipped}"
        return "resume", f"continued from the checkpoint of step {event.step:,}{skipped}"

    def _started(self, _: RunState, entry: Entry, event: ev.TrainingStarted) -> Narrated | None:
        return ("unprotected", describe(entry, self._ordinals)) if event.unprotected else None

    def _as_described(self, before: RunState, entry: Entry, event: ev.Event) -> Narrated:
        return _WORDS[type(event)], describe(entry, self._ordinals)


def _wants_an_instance(state: RunState) -> bool:
    if state.terminal is not None:
        return False
    return state.current is None or state.current.leaving


def _may_ask(state: RunState) -> bool:
    return _wants_an_instance(state) and state.pending_launch is None


def _capacity_wish(spec: RunSpec) -> str:
    home = spec.resources.home
    return _rented_wish(spec) if home is None else f"{home} while it is free, else {_rented_wish(spec)}"


def _rented_wish(spec: RunSpec) -> str:
    policy = spec.resources.spot_policy
    if policy != "auto":
        return f"{policy} only"
    if spec.policy.deadline is not None:
        return "spot and on-demand as the deadline allows"
    return f"spot where possible, on-demand after {to_the_second(spec.policy.on_demand_after)} without spot"


def _kind_of_launch(before: RunState, event: ev.LaunchIntended) -> str:
    head = event.reason.partition(":")[0]
    if head == "return to spot":
        return "return"
    if event.offering.capacity_type is not CapacityType.SPOT:
        return "on-demand" if event.offering.capacity_type is CapacityType.ON_DEMAND else "home"
    return "standby" if before.current is not None else "spot"


def _refusals(before: RunState, since: datetime) -> Iterator[str]:
    """
    Describe the refusals from the time `since` on. There is one sentence for each reason. It names the reason, the
    pools that refused for it, and the time for which spotrun does not request an instance from these pools.
    """
    refused: dict[str, dict[str, None]] = {}
    for launch in before.launches.values():
        if launch.intended_at >= since and (why := why_refused(launch)):
            refused.setdefault(why, {})[offering_text(launch.intent.offering)] = None
    for why, pools in refused.items():
        rest = to_the_second(POOL_REST) if why == NO_CAPACITY else f"{to_the_second(LASTING_REST)} at least"
        yield f"{why}: {', '.join(pools)}; such a pool is not asked again for {rest}"


def _how_it_ended(before: RunState, event: ev.InstanceGone) -> str:
    return "was ended from outside spotrun" if before.ended_by_hand(event) else "ended"


def _saved_after(end: RunState, attempt: Attempt, notice_at: datetime) -> str:
    saved = [commit for commit in end.commits if commit.event.attempt == attempt.number and commit.at >= notice_at]
    if not saved:
        return ": ".join(filter(None, ["no checkpoint was made after it", _why_unsaved(end, attempt)]))
    newest = saved[-1]
    if not newest.event.has_image:
        return f"its state was durable {to_the_second(newest.at - notice_at)} later"
    return f"step {newest.event.step:,} was durable {to_the_second(newest.at - notice_at)} later"


def _why_unsaved(end: RunState, attempt: Attempt) -> str:
    """Return the known reasons why an attempt that got a notice made no last checkpoint; "" if none is known."""
    interrupted = attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED
    detail = attempt.end.detail.partition(": ")[2] if attempt.end is not None and interrupted else ""
    named = [one.what for one in end.not_carried] if is_plain(end) else []
    return in_one_line("; ".join(filter(None, [*named, detail])))


def _who_took_over(end: RunState, attempt: Attempt, successor: Attempt) -> str:
    if not end.of_gangs:
        return f"{offering_text(end.launch_of(successor).intent.offering)} took over"
    came = [str(name) for name in successor.names if name not in attempt.names]
    return f"{', '.join(came)} took over" if came else "the same members continued"


def _time_lost(end: RunState, stopped_at: datetime, number: int | None) -> str:
    """
    Describe the work that a command lost, for example "40 s had to be done again". All work after commit `number` was
    lost, because the next attempt began from that commit. If `number` is None, all work was lost.
    """
    commit = None if number is None else end.commit(number)
    if commit is None:
        return "all of its work had to be done again"
    lost = stopped_at - commit.event.taken_at
    return f"{to_the_second(lost)} had to be done again" if lost >= timedelta(seconds=1) else "nothing was lost"


_WORDS: dict[type, str] = {
    ev.StopRequested: "stop",
    ev.ResumeRequested: "reopen",
    ev.DrainRequested: "handover",
    ev.InstanceCondemned: "condemn",
    ev.NoticesUnseen: "blind",
    ev.DeadlineOutOfReach: "deadline",
    ev.StateNotCarried: "not carried",
    ev.BudgetNearlySpent: "budget",
    ev.TrainerExited: "crash",
    ev.AttemptEnded: "end of attempt",
    ev.RunStopped: "end",
    ev.RunFailed: "end",
    ev.RunCompleted: "end",
}
_NARRATED: dict[type, Callable[[_Narrator, RunState, Entry, Any], Narrated | None]] = {
    ev.RunCreated: _Narrator._created,
    ev.LaunchIntended: _Narrator._intended,
    ev.LaunchClosed: _Narrator._closed,
    ev.NoticeSeen: _Narrator._notice,
    ev.InstanceGone: _Narrator._gone,
    ev.ResumedFrom: _Narrator._resumed,
    ev.TrainingStarted: _Narrator._started,
    **dict.fromkeys(_WORDS, _Narrator._as_described),
}
