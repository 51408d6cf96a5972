"""
Battery: each call that a runner makes to AWS, with each error code that may be its answer, and with errors of the SDK.

    make accidents                                       all of them
    python -m tests.batteries.accidents --call run_instances --every 5

Each happens once, for half a minute, and for ever, to a run that trains; and from the start on to a run that begins.
In none does a runner end, is an instance left, or does the ledger differ from what the account was charged.

The codes of an operation are those of the SDK's service model. EC2's model has none: there, and everywhere else too,
the codes that spotrun knows by name are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, NamedTuple

import pytest
import typer
from botocore import exceptions as sdk
from botocore.loaders import Loader
from botocore.model import ServiceModel
from rich.progress import track

from spotrun.clouds.aws.error_codes import ERRORS_BY_CODE
from spotrun.errors import AccessDenied
from tests.support import aws_accidents as accidents
from tests.support.aws_accidents import CALLS, FIRST_LOOK, HALF_A_MINUTE_S, Error, broken
from tests.support.plain_aws_run import PlainAwsRun

HOWS = ("once", "half a minute", "half a minute, for a new runner", "for ever", "from the start")
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


class Accident(NamedTuple):
    call: str
    error: str
    status: int
    how: str


def accidents_of(service: str, call: str) -> Iterator[Accident]:
    codes = dict.fromkeys((*ERRORS_BY_CODE, "NeverHeardOf"), 400) | dict.fromkeys(SERVER_ERRORS, 500)
    for error, status in {**codes, **_of_the_model(service, call), **dict.fromkeys(SDK_ERRORS, 0)}.items():
        yield from (Accident(call, error, status, how) for how in HOWS)


def _of_the_model(service: str, call: str) -> dict[str, int]:
    """The codes of an operation, each with its HTTP status."""
    model = ServiceModel(Loader().load_service_model(service, "service-2"))
    (operation,) = [name for name in model.operation_names if name.lower() == call.replace("_", "")]
    shapes = model.operation_model(operation).error_shapes
    told = [(shape.error_code, shape.metadata.get("error", {})) for shape in shapes]
    return {code: error.get("httpStatusCode", 400) for code, error in told}


def suffer(accident: Accident) -> str:
    """What did not hold; "" if all did."""
    call, name, status, how = accident
    error = SDK_ERRORS[name] if name in SDK_ERRORS else broken(name, status)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = PlainAwsRun(monkeypatch)
        try:
            if how == "for ever":
                accidents.stays(run, call, error)
            elif how == "from the start":
                accidents.is_there_from_the_start(run, call, error)
            else:
                seconds = 0.0 if how == "once" else HALF_A_MINUTE_S
                accidents.passes(run, call, error, seconds, new_runner="new" in how)
        except AccessDenied as refused:
            at_first_look = call == FIRST_LOOK and ("new" in how or how == "from the start")
            return "" if at_first_look and refused.hint else f"the runner has ended: {refused.one_line}"
        except Exception as trouble:  # noqa: BLE001  a traceback, whatever it is, is what must not be
            return f"{type(trouble).__name__}: {trouble}"
    return ""


def main(
    call: Annotated[str | None, typer.Option(help="Only this call.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Only each so many of them.")] = 1,
) -> None:
    asked = [(service, each) for service, calls in CALLS.items() for each in calls if call in (None, each)]
    chosen = [accident for service, each in asked for accident in accidents_of(service, each)][::every]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(track(pool.map(suffer, chosen, chunksize=10), "suffering", total=len(chosen)))
    not_held = {accident: said for accident, said in zip(chosen, found, strict=True) if said}
    for accident, said in not_held.items():
        print(f"{accident.call}, {accident.error}, {accident.how}: {said}")
    for (name, how), count in sorted(Counter((each.call, each.how) for each in not_held).items()):
        print(f"{count:6} of {name}, {how}")
    print(f"{len(chosen) - len(not_held):,} of {len(chosen):,} accidents ended nothing and bent no bill")
    raise typer.Exit(bool(not_held))


if __name__ == "__main__":
    typer.run(main)
