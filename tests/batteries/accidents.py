"""
Battery: each call that a runner makes to its cloud, with each error that may be its answer.

    make battery NAME=accidents                                           all of them, of AWS and of Google
    python -m tests.batteries.accidents --call run_instances --every 5
    python -m tests.batteries.accidents --cloud gcp --kept build/accidents    after a Ctrl-C: again, and it goes on

Each happens to a run that trains: once; for half a minute, also to a new runner, in a notice, and to the first runner
after a week without one; and for ever, with and without an interruption. And it happens from the start to a run that
begins. In none does a runner end, is an instance left, or does the ledger differ from what the account was charged.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
import pytest
import typer

from tests.support import accidents, aws_accidents, gcp_accidents
from tests.support.accidents import HALF_A_MINUTE_S
from tests.support.plain_run import PlainRun

Suffering = Callable[[PlainRun, str, Any], bool]
FROM_THE_START = "from the start"
HOWS: dict[str, Suffering] = {
    "once": partial(accidents.passes, seconds=0.0),
    "half a minute": partial(accidents.passes, seconds=HALF_A_MINUTE_S),
    "half a minute, for a new runner": partial(accidents.passes_for_a_new_runner, seconds=HALF_A_MINUTE_S),
    "half a minute, in a notice": partial(accidents.passes_in_a_notice, seconds=HALF_A_MINUTE_S),
    "half a minute, after a week": partial(accidents.passes_after_a_week, seconds=HALF_A_MINUTE_S),
    "for ever": accidents.stays,
    "for ever, and it completes": accidents.is_never_mended,
}
WITHIN_S = 60
"""Of computing: an accident takes a tenth of a second. On a busy machine that may be minutes."""
WAITS_S = 20 * WITHIN_S
"""Of this machine's time: whoever waits for ever computes nothing."""
CHUNK = 20


class CloudOfAccidents(NamedTuple):
    """What a run calls there, and how that fails, by name. `passes_soon` says whether such an error ends by itself."""

    calls: Sequence[str]
    new_run: Callable[[pytest.MonkeyPatch], PlainRun]
    errors_of: Callable[[str], Mapping[str, object]]
    passes_soon: Callable[[str, str], bool]


CLOUDS = {
    "aws": CloudOfAccidents(
        [call for calls in aws_accidents.CALLS.values() for call in calls],
        aws_accidents.new_run,
        aws_accidents.errors_of,
        aws_accidents.passes_soon,
    ),
    "gcp": CloudOfAccidents(
        gcp_accidents.CALLS, gcp_accidents.new_run, gcp_accidents.errors_of, gcp_accidents.passes_soon
    ),
}


class Accident(NamedTuple):
    """One that is not over within some seconds is a failure too."""

    cloud: str
    call: str
    error: str
    how: str


class Outcome(NamedTuple):
    """`met`: the run has made the call while it failed. `wrong`: what did not hold; "" if all did."""

    accident: Accident
    met: bool
    wrong: str


class TookTooLong(BaseException):
    """No Exception: those of a call are the SDK's to whoever made it."""


def accidents_of(cloud: str, call: str) -> Iterator[Accident]:
    for error in CLOUDS[cloud].errors_of(call):
        yield from (Accident(cloud, call, error, how) for how in (*HOWS, FROM_THE_START))


# -- one accident ----------------------------------------------------------------------------------------------------


def suffer(accident: Accident) -> Outcome:
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _give_up)
    signal.setitimer(signal.ITIMER_PROF, WITHIN_S)
    signal.alarm(WAITS_S)
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            return Outcome(accident, _happen(accident, CLOUDS[accident.cloud].new_run(monkeypatch)), "")
    except (Exception, TookTooLong, pytest.fail.Exception) as trouble:  # noqa: BLE001  a traceback is what must not be
        return Outcome(accident, True, f"{type(trouble).__name__}: {trouble}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def _happen(accident: Accident, run: PlainRun) -> bool:
    cloud, call, name, how = accident
    error = CLOUDS[cloud].errors_of(call)[name]
    if how == FROM_THE_START:
        by_itself = CLOUDS[cloud].passes_soon(call, name)
        return accidents.is_there_from_the_start(run, call, error, by_itself=by_itself)
    return HOWS[how](run, call, error)


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    told = f"{WITHIN_S} s of computing" if number == signal.SIGPROF else f"{WAITS_S} s"
    raise TookTooLong(f"after {told} it goes on and on")


# -- all of them -----------------------------------------------------------------------------------------------------


def main(
    clouds: Annotated[list[str] | None, typer.Option("--cloud", help="Only this cloud. Repeatable.")] = None,
    calls: Annotated[list[str] | None, typer.Option("--call", help="Only this call. Repeatable.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Only each so many of them.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="How many side by side.")] = 2,
    minutes: Annotated[float, typer.Option(help="No further call is begun after so many.")] = 120.0,
    kept: Annotated[Path | None, typer.Option(help="A folder of outcomes; what it has is not done again.")] = None,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the outcomes there too.")] = None,
) -> None:
    ends_s, outcomes, left = time.monotonic() + 60 * minutes, [], []
    with ProcessPoolExecutor(jobs) as pool:
        for name, call in [(name, call) for name, cloud in CLOUDS.items() for call in cloud.calls]:
            if (clouds and name not in clouds) or (calls and call not in calls):
                continue
            if time.monotonic() >= ends_s:
                left.append(call)
                continue
            found = _of_call(pool, [*accidents_of(name, call)][::every], kept and kept / f"{call}-{every}.json")
            print(_line(call, found), flush=True)
            outcomes += found
    print(summary(outcomes))
    if json_to is not None:
        json_to.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    if left:
        print(f"there was no time for {', '.join(left)}")
    sys.exit(bool(left) or any(outcome.wrong for outcome in outcomes))


def _of_call(pool: ProcessPoolExecutor, chosen: Sequence[Accident], kept: Path | None) -> list[Outcome]:
    if kept is not None and kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=list[Outcome])
    found = [*pool.map(suffer, chosen, chunksize=CHUNK)]
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.json.encode(found))
    return found


def _line(call: str, outcomes: Sequence[Outcome]) -> str:
    wrong, met = sum(bool(each.wrong) for each in outcomes), sum(each.met for each in outcomes)
    return f"{call:46} {len(outcomes):5} accidents, {met:5} met a call, {wrong:5} did harm"


def summary(outcomes: Sequence[Outcome]) -> str:
    harmful = [outcome for outcome in outcomes if outcome.wrong]
    lines = [f"{accident.call}, {accident.error}, {accident.how}: {wrong}" for accident, _, wrong in harmful]
    counts = Counter((outcome.accident.call, outcome.accident.how) for outcome in harmful)
    lines += [f"{count:6} of {call}, {how}" for (call, how), count in sorted(counts.items())]
    held, met = len(outcomes) - len(harmful), sum(outcome.met for outcome in outcomes)
    lines.append(f"{held:,} of {len(outcomes):,} accidents ended nothing and bent no bill; {met:,} met a call")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
