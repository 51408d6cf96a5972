"""
Battery: each call that a runner makes to AWS, with each error code that may be its answer, and with errors of the SDK.

    make accidents                                                        all of them
    python -m tests.batteries.accidents --call run_instances --every 5
    python -m tests.batteries.accidents --kept build/accidents            after a Ctrl-C: again, and it goes on

Each happens to a run that trains: once; for half a minute, also to a new runner, in a notice, and to the first runner
after a week without one; and for ever, with and without an interruption. And it happens from the start to a run that
begins. In none does a runner end, is an instance left, or does the ledger differ from what the account was charged.

The codes of an operation are those of the SDK's service model. EC2's model has none: there, and everywhere else too,
the codes that spotrun knows by name are tried, and those after which the SDK would ask again.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple, NoReturn

import msgspec
import pytest
import typer
from botocore import exceptions as sdk
from botocore.loaders import Loader
from botocore.model import ServiceModel

from spotrun.clouds.aws.error_codes import ERRORS_BY_CODE
from tests.support import aws_accidents as accidents
from tests.support.aws_accidents import ASKED_AGAIN, CALLS, HALF_A_MINUTE_S, Error, broken
from tests.support.plain_aws_run import PlainAwsRun

Suffering = Callable[[PlainAwsRun, str, Error], bool]
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
SDK_ERRORS: dict[str, Error] = {
    "ReadTimeoutError": lambda: sdk.ReadTimeoutError(endpoint_url="https://aws"),
    "EndpointConnectionError": lambda: sdk.EndpointConnectionError(endpoint_url="https://aws"),
    "NoCredentialsError": sdk.NoCredentialsError,
    "CredentialRetrievalError": lambda: sdk.CredentialRetrievalError(provider="a", error_msg="b"),
    "UnauthorizedSSOTokenError": sdk.UnauthorizedSSOTokenError,
    "PaginationError": lambda: sdk.PaginationError(message="the same token twice"),
    "RuntimeError": lambda: RuntimeError("of the SDK"),
}
SERVER_ERRORS = ("InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "ServiceFailure")
ENDED_BEFORE = "IdempotentInstanceTerminated"
"""EC2 says so only of an instance that it has started; three in a row that end before they train fail a run."""
WITHIN_S = 60
"""Of this machine's time: an accident takes a tenth of a second."""
CHUNK = 20


class Accident(NamedTuple):
    """One that is not over within some seconds is a failure too."""

    call: str
    error: str
    status: int
    how: str

    @property
    def passes(self) -> bool:
        """By itself, and soon."""
        by_sdk = self.error in ("ReadTimeoutError", "EndpointConnectionError")
        return by_sdk or self.status >= 500 or self.error in ASKED_AGAIN


class Outcome(NamedTuple):
    """`met`: the run has made the call while it failed. `wrong`: what did not hold; "" if all did."""

    accident: Accident
    met: bool
    wrong: str


class TookTooLong(BaseException):
    """No Exception: those of a call are the SDK's to whoever made it."""


def accidents_of(service: str, call: str) -> Iterator[Accident]:
    known = sorted({*ERRORS_BY_CODE, *ASKED_AGAIN, "NeverHeardOf"} - {ENDED_BEFORE})
    codes = (
        dict.fromkeys(known, 400)
        | dict.fromkeys(SERVER_ERRORS, 500)
        | _of_the_model(service, call)
        | dict.fromkeys(SDK_ERRORS, 0)
    )
    for error, status in codes.items():
        yield from (Accident(call, error, status, how) for how in (*HOWS, FROM_THE_START))


def _of_the_model(service: str, call: str) -> dict[str, int]:
    """The codes of an operation, each with its HTTP status."""
    model = ServiceModel(Loader().load_service_model(service, "service-2"))
    (operation,) = [name for name in model.operation_names if name.lower() == call.replace("_", "")]
    shapes = model.operation_model(operation).error_shapes
    told = [(shape.error_code, shape.metadata.get("error", {})) for shape in shapes]
    return {code: error.get("httpStatusCode", 400) for code, error in told}


# -- one accident ----------------------------------------------------------------------------------------------------


def suffer(accident: Accident) -> Outcome:
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(WITHIN_S)
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            return Outcome(accident, _happen(accident, accidents.new_run(monkeypatch)), "")
    except (Exception, TookTooLong, pytest.fail.Exception) as trouble:  # noqa: BLE001  a traceback is what must not be
        return Outcome(accident, True, f"{type(trouble).__name__}: {trouble}")
    finally:
        signal.alarm(0)


def _happen(accident: Accident, run: PlainAwsRun) -> bool:
    call, name, status, how = accident
    error = SDK_ERRORS[name] if name in SDK_ERRORS else broken(name, status)
    if how == FROM_THE_START:
        return accidents.is_there_from_the_start(run, call, error, by_itself=accident.passes)
    return HOWS[how](run, call, error)


def _give_up(signum: int, frame: FrameType | None) -> NoReturn:
    raise TookTooLong(f"after {WITHIN_S} s it goes on and on")


# -- all of them -----------------------------------------------------------------------------------------------------


def main(
    calls: Annotated[list[str] | None, typer.Option("--call", help="Only this call. Repeatable.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Only each so many of them.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="How many side by side.")] = 2,
    minutes: Annotated[float, typer.Option(help="No further call is begun after so many.")] = 120.0,
    kept: Annotated[Path | None, typer.Option(help="A folder of outcomes; what it has is not done again.")] = None,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the outcomes there too.")] = None,
) -> None:
    ends_s, outcomes, left = time.monotonic() + 60 * minutes, [], []
    with ProcessPoolExecutor(jobs) as pool:
        for service, call in [(service, call) for service, found in CALLS.items() for call in found]:
            if calls and call not in calls:
                continue
            if time.monotonic() >= ends_s:
                left.append(call)
                continue
            found = _of_call(pool, [*accidents_of(service, call)][::every], kept and kept / f"{call}-{every}.json")
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
    return f"{call:36} {len(outcomes):5} accidents, {met:5} met a call, {wrong:5} did harm"


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
