"""`spotrun estimate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, print_json, write_text
from spotrun.errors import FiguresDiffer, SpecInvalid

if TYPE_CHECKING:
    from spotrun.estimate.bench_speeds import BenchedSpeed
    from spotrun.estimate.cost_study import CostStudy, Listed, Measured, Rented
    from spotrun.estimate.price_lists import ListPrice
    from spotrun.market.quotes import Quotes


def estimate(
    studies: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY.yaml...",
            help="Files that each describe a training and where it could run (docs/estimate.md).",
        ),
    ],
    as_json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the estimates as one HTML file, with charts.")
    ] = None,
) -> None:
    """
    Compare what a training costs on demand, on spot, and on a machine of your own.

    Nothing is rented. A study can list figures under `published:`. Exits with 1 if a result differs from such a figure
    and the study does not explain the difference.
    """
    from spotrun.estimate import report

    if html is not None and html.suffix in (".yaml", ".yml"):
        raise SpecInvalid(
            f"--html {html} looks like a study; the report would overwrite that file",
            hint="choose another file: --html estimates.html",
        )
    found = [(path, _reckonable(path)) for path in studies]
    if html is not None:
        from spotrun.estimate.page import estimates_page

        write_text(html, estimates_page([(str(path), study) for path, study in found]))
    if as_json:
        print_json([report.as_json(study, str(path)) for path, study in found])
    elif html is None:
        for number, (path, study) in enumerate(found):
            print("\n" * bool(number), end="")
            report.show(study, str(path))
    else:
        print(f"wrote {html}")
    _require_agreement([study for _, study in found])


def _reckonable(path: Path) -> CostStudy:
    """
    Read a study and look up the figures that it refers to: current prices of instances that a cloud rents out, prices
    in price lists, and speeds that `spotrun bench` measured.
    """
    from spotrun.estimate.bench_speeds import with_benches
    from spotrun.estimate.cloud_prices import with_prices
    from spotrun.estimate.cost_study_file import load_study, placed_in
    from spotrun.estimate.list_prices import with_list_prices

    def price_of(name: str, listed: Listed) -> ListPrice:
        with placed_in(path, name):
            return _list_price(listed)

    def quotes_of(name: str, rented: Rented) -> Quotes:
        with placed_in(path, name):
            return _quotes(rented)

    def found_for(name: str, measured: Measured) -> BenchedSpeed:
        with placed_in(path, name):
            return _benched(path.parent / measured.job, measured)

    return with_prices(with_list_prices(with_benches(load_study(path), found_for), price_of), quotes_of)


def _list_price(listed: Listed) -> ListPrice:
    """
    Raises:
        SpecInvalid: no price list has a price for this instance type.
    """
    from spotrun.estimate.price_lists import find_price
    from spotrun.units import Unreadable

    try:
        return find_price(listed.table, listed.type, listed.region)
    except Unreadable as error:
        raise SpecInvalid(error.message, hint=error.suggestion) from error


def _benched(job: Path, measured: Measured) -> BenchedSpeed:
    """
    Raises:
        SpecInvalid: the job was never measured on this type, or the number of samples per step is unknown.
    """
    from decimal import Decimal

    from spotrun.estimate.bench_speeds import BenchedSpeed
    from spotrun.folder.bench_record import benched
    from spotrun.runs.open_run import absent, default_store
    from spotrun.spec.file import load_spec
    from spotrun.store.opening import open_store

    spec = load_spec(job, {"checkpoint.uri": measured.store}, default_store())
    known = {} if absent(spec.checkpoint.uri) else benched(open_store(spec.checkpoint.uri), spec)
    by_name = {kind.casefold(): each for kind, each in known.items()}
    found = by_name.get(measured.type.casefold()) or by_name.get(f"{measured.type.casefold()}:1")
    if found is None or found.samples is None:
        why = "was not measured on" if found is None else "has no measured number of samples per step on"
        others = f"; known: {', '.join(known)}" if known else ""
        hint = f"spotrun bench {job} --types {measured.type}"
        raise SpecInvalid(f"{job} {why} {measured.type}{others}", hint=hint)
    return BenchedSpeed(Decimal(found.samples) / Decimal(found.step_s), found.run, found.at)


def _quotes(rented: Rented) -> Quotes:
    """
    Raises:
        SpecInvalid: the cloud does not rent out this instance type in that region.
    """
    from spotrun.clouds.cloud import RentalFlags
    from spotrun.clouds.registry import cloud_named

    wish = RentalFlags(() if rented.region is None else (rented.region,), (), (rented.instance_type,))
    found = cloud_named(rented.cloud).offers(wish)
    if not found.quotes:
        where = "" if rented.region is None else f" in {rented.region}"
        hint = f"spotrun offers --cloud {rented.cloud}"
        raise SpecInvalid(f"{rented.cloud} does not offer {rented.instance_type}{where}", hint=hint)
    return found


def _require_agreement(studies: list[CostStudy]) -> None:
    """
    Raises:
        FiguresDiffer: a published figure differs from the computed one, and the study does not say why.
    """
    from spotrun.estimate.published import compared

    loose = [each for study in studies for each in compared(study) if not each.agrees and each.differs is None]
    if loose:
        raise FiguresDiffer([each.figure for each in loose])
