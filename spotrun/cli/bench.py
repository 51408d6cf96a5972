"""`spotrun bench`"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import (
    JsonOption,
    LaunchStoreOption,
    ScriptArguments,
    SpecArgument,
    YesOption,
    print_json,
    require_writable,
    write_text,
)
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.runs.flags import read_flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spotrun.bench.result import Row
    from spotrun.bench.trials import Trial
    from spotrun.spec.kinds import Kind

WITHIN_LEAST = timedelta(minutes=1)


TypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="TYPE,...",
        help="Measure on these: accelerators like T4:1, or instance types. Repeatable.",
        show_default="those of the job",
    ),
]
BatchOption = Annotated[
    str | None, typer.Option("--batch", metavar="N,...", help="Measure with each of these batch sizes.")
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="NAME,...", help="Measure in each of these precisions, as the script names them."
    ),
]
DevicesOption = Annotated[
    str | None, typer.Option("--devices", metavar="N,...", help="Measure on each of these numbers of devices.")
]
StepsOption = Annotated[
    int,
    typer.Option("--steps", metavar="N", min=6, max=100_000, help="Measure this many steps after the first ones."),
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Pay at most this much for all together.")
]
AtOnceOption = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        max=64,
        help="How many are measured at once at most.",
        show_default="one of each type; 1 where the job trains on this machine",
    ),
]
WithinOption = Annotated[
    str, typer.Option("--within", metavar="DURATION", help="How long each training may last, its start included.")
]
SamplesOption = Annotated[
    float | None,
    typer.Option(
        "--samples",
        metavar="N",
        min=1,
        help="How many samples the whole job trains.",
        show_default="what it says itself",
    ),
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="TYPE", help="Show time and cost as shares of those on this type."),
]
BatchAsOption = Annotated[
    str | None, typer.Option("--batch-as", metavar="NAME", help="What the script calls its batch size: --bs.")
]
PrecisionAsOption = Annotated[
    str | None, typer.Option("--precision-as", metavar="NAME", help="What it calls its precision.")
]
DevicesAsOption = Annotated[
    str | None, typer.Option("--devices-as", metavar="NAME", help="What it calls its number of devices.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the result as one HTML file, with charts.")
]


def bench(
    job: SpecArgument,
    arguments: ScriptArguments = None,
    types: TypesOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    devices: DevicesOption = None,
    steps: StepsOption = 60,
    budget: BudgetOption = None,
    at_once: AtOnceOption = None,
    within: WithinOption = "20m",
    samples: SamplesOption = None,
    against: AgainstOption = None,
    batch_as: BatchAsOption = None,
    precision_as: PrecisionAsOption = None,
    devices_as: DevicesAsOption = None,
    html: HtmlOption = None,
    yes: YesOption = False,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Measure how many samples a second and a dollar a job trains on several types.

    Rents all types at once, each for some minutes; or trains here where the job does, one after the other. The
    beginning of each training is left out. What was rented is gone when the command ends. Later runs of the same job
    know what was measured.
    """
    import contextlib
    import sys

    from spotrun import address
    from spotrun.bench import attending as benching
    from spotrun.bench import report
    from spotrun.bench.trials import Arguments, spec_of, trials, unnamed_arguments
    from spotrun.clouds.registry import cloud_of
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.attend import billed
    from spotrun.runs.before_launch import require_job
    from spotrun.runs.open_run import default_store
    from spotrun.spec.arguments import Script
    from spotrun.spec.file import load_spec, placed
    from spotrun.spec.values import read_positive_duration
    from spotrun.units import parse_usd

    overrides: dict[str, object] = {"checkpoint.uri": None if store is None else address.absolute(store)}
    limit = read_flag("--within", read_positive_duration, within, "--within 20m")
    if limit < WITHIN_LEAST:
        raise SpecInvalid(f"--within {within} is over before an instance has started", hint="--within 20m")
    most = None if budget is None else read_flag("--budget", parse_usd, budget, "--budget 2")
    names = Arguments(batch=batch_as, devices=devices_as, precision=precision_as)
    for flag, named, given in (
        ("--batch", batch_as, batch),
        ("--precision", precision_as, precision),
        ("--devices", devices_as, devices),
    ):
        if named is not None and given is None:
            raise SpecInvalid(f"{flag}-as {named} names an argument for nothing", hint=f"add {flag}, or leave it out")
    if html is not None:
        require_writable(html)
    spec = load_spec(job, overrides, default_store(), arguments or ())
    with placed(job, overrides):
        notes, script = require_job(spec), Script(spec)
        chosen = trials(
            spec,
            _kinds(types or []),
            _numbers("--devices", devices),
            _numbers("--batch", batch),
            _words("--precision", precision),
        )
        base = _base(against, [str(each.kind) for each in chosen])
        with _about_types(given=bool(types)):
            specs = [spec_of(spec, script, each, names, limit, most) for each in chosen]
            found = list(benching.planned(spec, chosen, specs))
    here = cloud_of(spec).here
    benching.require_budget(found, most)
    if not as_json:
        report.show_plan([(each.trial, each.prices) for each in found])
        notes += unnamed_arguments(spec.train, script, names, devices=devices is not None)
    if here and (at_once or 1) > 1:
        notes.append(f"{at_once} at once share this machine, and slow each other down")
    for line in notes:
        say(f"note: {line}")
    confirm(yes, f"Measure {len(found)}?", default=not billed(spec), declined="nothing was rented")
    by_trial: dict[Trial, Row] = {}
    limits = (steps, most, at_once or (1 if here else None))
    try:
        with (
            contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
            report.view() as view,
            benching.measuring(found, *limits, view.show) as measured,
        ):
            for row in measured:
                by_trial[row.trial] = row
                report.say_row(row)
    finally:  # what was paid for is shown, whatever has ended it
        rows = [by_trial[each] for each in chosen if each in by_trial]
        if rows:
            _show(rows, spec.name, samples, base, html, as_json=as_json)
    if not any(row.measured for row in rows):
        raise SpotrunError(
            "nothing was measured", hint="see the reasons above; `spotrun logs` has what the training printed"
        )


def _show(
    rows: Sequence[Row], name: str, samples: float | None, base: str | None, html: Path | None, *, as_json: bool
) -> None:
    from spotrun.bench import report
    from spotrun.bench.page import bench_page

    if as_json:
        print_json(report.as_json(rows, samples, base))
    else:
        report.show(rows, samples, base)
    if html is not None:
        write_text(html, bench_page(rows, name, samples, base))


@contextmanager
def _about_types(*, given: bool) -> Iterator[None]:
    """What is wrong with the accelerators of a trial is wrong with the flag that names them."""
    try:
        yield
    except SpotrunError as error:
        if given and error.key and error.key[:2] == ("resources", "accelerators"):
            error.key, error.message = (), f"--types: {error.message}"
        raise


def _kinds(texts: Sequence[str]) -> tuple[Kind, ...]:
    from spotrun.spec.kinds import AnyOf, read_kinds
    from spotrun.units import Unreadable

    words = [word for text in texts for word in _words("--types", text)]
    if not words:
        return ()
    try:
        found = read_kinds(words)
    except Unreadable as error:
        raise SpecInvalid(f"--types: {error.message}", hint="--types T4:1,A10G:1,c5.xlarge") from error
    return found.kinds if isinstance(found, AnyOf) else (found,)


def _words(flag: str, text: str | None) -> list[str]:
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if "" in words:
        raise SpecInvalid(
            f"{flag} {text!r} has an empty entry", hint="write a comma between two entries, and none after the last"
        )
    return words


def _numbers(flag: str, text: str | None) -> list[int]:
    words = _words(flag, text)
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1_000_000 for word in words):
        raise SpecInvalid(f"{flag} {text!r} is no list of whole numbers from 1 on", hint=f"{flag} 1,2")
    return list(map(int, words))


def _base(against: str | None, types: Sequence[str]) -> str | None:
    """The one of `types` that `--against` means."""
    if against is None:
        return None
    by_name = {each.casefold(): each for each in types}
    found = by_name.get(against.casefold()) or by_name.get(f"{against.casefold()}:1")
    if found is None:
        known = ", ".join(dict.fromkeys(types))
        raise SpecInvalid(f"--against {against!r} is none of what is measured", hint=f"one of {known}")
    return found
