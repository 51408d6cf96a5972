"""`spotrun doctor`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, print_json

if TYPE_CHECKING:
    from spotrun.doctor.finding import Finding


def doctor(
    spec_path: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml]", help="Also whether the store suits this job.")
    ] = None,
    store: LaunchStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that this machine and the store can carry a run safely. Nothing is left behind, nothing is rented."""
    from spotrun.doctor.finding import ChecksFailed, Verdict

    findings = []
    for finding in _findings(spec_path, store):
        findings.append(finding)
        if not as_json:
            _show(finding)
    failures = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if as_json:
        import msgspec

        print_json({"ok": not failures, "checks": msgspec.to_builtins(findings)})
    if failures:
        raise ChecksFailed(failures)


def _findings(spec_path: Path | None, store: str | None) -> Iterator[Finding]:
    from spotrun.cli.wiring import any_cloud, default_store
    from spotrun.doctor import machine
    from spotrun.doctor.finding import findings_of
    from spotrun.spec_file import load_spec

    spec = None if spec_path is None else load_spec(spec_path, None, default_store())
    address = store or (spec.checkpoint.uri if spec is not None else default_store())
    region = spec.resources.region if spec is not None else None
    yield from findings_of("store", lambda: _store(address, region))
    yield from findings_of("ledgers", lambda: _ledgers(address))
    yield from findings_of("local cloud", lambda: machine.local_cloud(any_cloud()))
    yield from findings_of("lightning", machine.lightning)


def _store(address: str, region: str | None) -> Iterator[Finding]:
    from spotrun.clock import system_clock
    from spotrun.doctor.facts import fact_findings
    from spotrun.doctor.finding import findings_of, ok
    from spotrun.doctor.trial import Trial
    from spotrun.store import open_store

    opened = open_store(address)
    yield ok("store", opened.uri)
    yield from findings_of("store", Trial(opened, system_clock()).findings)
    yield from findings_of("store", lambda: fact_findings(opened, region))


def _ledgers(address: str) -> Iterator[Finding]:
    from spotrun.cli.wiring import look_in
    from spotrun.doctor.finding import failed, ok
    from spotrun.errors import LedgerDamaged

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
