"""`spotrun doctor`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, print_json
from spotrun.errors import LedgerDamaged, SpecInvalid

if TYPE_CHECKING:
    from spotrun.clouds.cloud import Cloud, Wish
    from spotrun.doctor.finding import Finding
    from spotrun.spec.model import RunSpec


def doctor(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[aws] [JOB.yaml]", help="aws checks your AWS account. With JOB.yaml, also what that job needs."
        ),
    ] = None,
    store: LaunchStoreOption = None,
    region: Annotated[
        str | None, typer.Option("--region", metavar="REGION", help="AWS: where you want to rent.")
    ] = None,
    accelerators: Annotated[
        str | None, typer.Option("--accelerators", metavar="NAME:COUNT", help="AWS: the accelerators that you want.")
    ] = None,
    instance_type: Annotated[
        str | None, typer.Option("--instance-type", metavar="TYPE", help="AWS: the instance type that you want.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="AWS: an ami-… or the SSM parameter that names one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Check that this machine and the store can carry a run safely.

    Nothing is rented and nothing is left behind.
    """
    from spotrun.clouds.cloud import Wish
    from spotrun.doctor.finding import ChecksFailed, Verdict

    findings = []
    wish = Wish(
        () if region is None else (region,), accelerators, () if instance_type is None else (instance_type,), image
    )
    for finding in _findings(subjects or [], store, wish):
        findings.append(finding)
        if not as_json:
            _show(finding)
    failures = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if as_json:
        import msgspec

        print_json({"ok": not failures, "checks": msgspec.to_builtins(findings)})
    if failures:
        raise ChecksFailed(failures)


def _findings(subjects: list[str], store: str | None, wish: Wish) -> Iterator[Finding]:
    from spotrun.cli.runs import default_store
    from spotrun.clouds.cloud import Wish
    from spotrun.clouds.registry import cloud_named
    from spotrun.spec.clouds import known_clouds
    from spotrun.spec.file import load_spec

    first = subjects[0] if subjects else ""
    named = first if first in known_clouds() or (first.isalnum() and not Path(first).exists()) else None
    paths = subjects if named is None else subjects[1:]
    if len(paths) > 1:
        raise SpecInvalid(f"{len(paths)} jobs are named", hint="spotrun doctor [aws] [JOB.yaml]")
    if named is None and wish != Wish():
        raise SpecInvalid("options that describe instances need a cloud", hint="spotrun doctor aws --region …")
    spec = load_spec(Path(paths[0]), None, default_store()) if paths else None
    address = store or (spec.checkpoint.uri if spec is not None else default_store())
    if named is None:
        yield from _here(spec, address)
    else:
        yield from _on(cloud_named(named), spec, wish, address)


def _here(spec: RunSpec | None, address: str) -> Iterator[Finding]:
    from spotrun.clouds.cloud import Wish
    from spotrun.clouds.local.cloud import CLOUD
    from spotrun.doctor import machine
    from spotrun.doctor.finding import findings_of

    region = next(iter(CLOUD.regions(spec, Wish())), None)
    yield from findings_of("store", lambda: _store(address, region))
    yield from findings_of("ledgers", lambda: _ledgers(address))
    yield from CLOUD.findings(spec, Wish())
    yield from findings_of("lightning", machine.lightning)


def _on(cloud: Cloud, spec: RunSpec | None, wish: Wish, address: str) -> Iterator[Finding]:
    from spotrun.doctor.finding import findings_of

    yield from cloud.findings(spec, wish)
    region = next(iter(cloud.regions(spec, wish)), None)
    yield from findings_of("store", lambda: _store(cloud.reachable(address), region))


def _store(address: str, region: str | None) -> Iterator[Finding]:
    from spotrun.clock import system_clock
    from spotrun.doctor.facts import fact_findings
    from spotrun.doctor.finding import findings_of, ok
    from spotrun.doctor.trial import Trial
    from spotrun.store.opening import open_store

    opened = open_store(address)
    yield ok("store", opened.uri)
    yield from findings_of("store", Trial(opened, system_clock()).findings)
    yield from findings_of("store", lambda: fact_findings(opened, region))


def _ledgers(address: str) -> Iterator[Finding]:
    from spotrun.cli.runs import look_in
    from spotrun.doctor.finding import failed, ok

    runs, unreadable = look_in(address)
    for each in unreadable:
        yield failed(f"ledger of {each.name}", each.error)
    for run in runs:
        try:
            run.ledger.refresh()
        except LedgerDamaged as damage:
            yield failed(f"ledger of {run.id}", damage)
    voids = sum(len(run.ledger.state.voids) for run in runs)
    yield ok("ledgers", f"{len(runs) + len(unreadable)} runs were read, {voids} entries in them are void")


def _show(finding: Finding) -> None:
    from spotrun.doctor.finding import Verdict
    from spotrun.report.tables import plain

    word = finding.verdict.upper() if finding.verdict is Verdict.FAILED else finding.verdict
    print(f"{word:8}{finding.name}: {plain(finding.detail)}", flush=True)
    if finding.hint:
        print(f"{'':8}  try: {plain(finding.hint)}", flush=True)
