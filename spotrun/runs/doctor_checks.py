"""The checks of `spotrun doctor`. They cover the store, its ledgers, and either this machine or a cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from spotrun import address
from spotrun.clock import system_clock
from spotrun.clouds.cloud import Cloud, RentalFlags
from spotrun.clouds.local.cloud import CLOUD
from spotrun.clouds.registry import cloud_named, cloud_of
from spotrun.container.engine import find_engine
from spotrun.container.facts import INSTALL, facts_of
from spotrun.doctor import machine
from spotrun.doctor.facts import fact_findings
from spotrun.doctor.finding import Finding, Step, Verdict, failed, findings_of, findings_of_steps, ok, unknown
from spotrun.doctor.trial import StoreTrial
from spotrun.errors import CloudError, LedgerDamaged, NotInstalled, SpecInvalid
from spotrun.runs.first_look import look_at_market, readable_store
from spotrun.runs.open_run import default_store, look_in, require_store
from spotrun.runs.pinning import NOT_LOOKED_AT, with_baseline_price, with_image
from spotrun.spec.clouds import known_clouds
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.units import count_of


def findings(subjects: list[str], store: str | None, wish: RentalFlags) -> Iterator[Finding]:
    first = subjects[0] if subjects else ""
    named = first if first in known_clouds() or (first.isalnum() and not Path(first).exists()) else None
    paths = subjects if named is None else subjects[1:]
    if len(paths) > 1:
        hint = "spotrun doctor [local|aws|gcp|slurm] [JOB.yaml]"
        raise SpecInvalid(f"doctor checks one job, not {len(paths)}", hint=hint)
    if named is None and wish != RentalFlags():
        raise SpecInvalid(
            "these options apply to the instances of a cloud, so name the cloud",
            hint="spotrun doctor aws --region …",
        )
    if store is not None:
        require_store(store)
    flags = {"checkpoint.uri": None if store is None else address.absolute(store)}
    spec = load_spec(Path(paths[0]), flags, default_store()) if paths else None
    uri = store or (spec.checkpoint.uri if spec is not None else default_store())
    if named is None:
        yield from _here(spec, uri)
    else:
        yield from _on(cloud_named(named), spec, wish, uri)
    if spec is not None and spec.image is not None:
        yield from _container(spec)


def _here(spec: RunSpec | None, uri: str) -> Iterator[Finding]:
    region = next(iter(CLOUD.regions(spec, RentalFlags())), None)
    yield from findings_of("store", lambda: _store(uri, region))
    yield from findings_of("ledgers", lambda: _ledgers(uri))
    yield from CLOUD.findings(spec, RentalFlags())
    yield from findings_of("lightning", machine.lightning)


def _on(cloud: Cloud, spec: RunSpec | None, wish: RentalFlags, uri: str) -> Iterator[Finding]:
    usual = None
    if spec is None and not isinstance(address.parse(uri), address.BucketAddress):
        with suppress(CloudError):  # the first of the checks says what is wrong with the login
            usual = cloud.usual_store(spec, wish)
    uri = uri if usual is None else usual.uri
    verdicts = set()
    for finding in cloud.findings(spec, wish._replace(store=uri)):
        verdicts.add(finding.verdict)
        yield finding
    if spec is not None and wish == RentalFlags() and Verdict.FAILED not in verdicts:
        yield from findings_of("job", lambda: _job(spec, cloud, uri))
    region = next(iter(cloud.regions(spec, wish)), None)
    yield from findings_of("store", lambda: _store(cloud.reachable(uri), region))
    if usual is not None:
        told = f"{usual.uri} is the bucket that infra/{cloud.name} made"
        yield ok("usual store", f"{told}; `spotrun init SCRIPT.py --cloud {cloud.name}` writes a job with it")


def _job(spec: RunSpec, cloud: Cloud, uri: str) -> Iterator[Finding]:
    """
    Check what `launch` checks before it rents: the baseline, the price limit and the budget.

    Raises:
        SpecInvalid, CloudError: a run of the job would rent nothing.
    """
    first = look_at_market(with_baseline_price(spec), cloud, readable_store(uri)).first_choice()
    yield ok("job", f"would rent {first} first")


def _container(spec: RunSpec) -> Iterator[Finding]:
    """Yield findings on a job's container: its image and, if this machine trains, the container engine."""
    trains_here = cloud_of(spec).here or spec.resources.home is not None
    engine = [Step("container engine", _engine)] if trains_here else []
    image = Step("container image", lambda: _image(spec), needs=("container engine",))
    return findings_of_steps([*engine, image])


def _engine() -> Iterator[Finding]:
    """
    Check the container engine of this machine, and yield the findings.

    Raises:
        NotInstalled, EngineFailed: this machine cannot run containers for a training.
    """
    engine = find_engine()
    found = facts_of(engine)
    if found.rootless:
        what = f"{engine.name} {found.version} runs rootless: a training could not enter its containers"
        raise NotInstalled(what, hint="use the rootful engine, and unset DOCKER_HOST and DOCKER_CONTEXT")
    yield ok("container engine", f"{engine.name} {found.version} responds, and runs as root")
    if found.gpus is None:
        yield ok("container gpus", "this machine has no Nvidia GPU")
    elif found.gpus:
        yield ok("container gpus", f"{engine.name} can give Nvidia GPUs to a container")
    else:
        what = f"{engine.name} cannot give Nvidia GPUs to a container"
        yield failed("container gpus", NotInstalled(what, hint=INSTALL[engine.name]))


def _image(spec: RunSpec) -> Iterator[Finding]:
    found, notes = with_image(spec, os.environ)
    for note in notes:
        yield unknown("container image", note) if NOT_LOOKED_AT in note else ok("container image", note)
    if not notes and found.image is not None:
        yield ok("container image", f"{found.image.pinned} is on this machine")


def _store(uri: str, region: str | None) -> Iterator[Finding]:
    """
    Test the store, check its settings, and yield the findings. The last finding says that both succeeded.

    Raises:
        StoreError: the test or a check of the settings failed.
    """
    opened = open_store(uri)
    yield from StoreTrial(opened, system_clock()).findings()
    yield from fact_findings(opened, region)
    yield ok("store", opened.uri)


def _ledgers(uri: str) -> Iterator[Finding]:
    runs, unreadable = look_in(uri)
    for each in unreadable:
        yield failed(f"ledger of {each.name}", each.error)
    for run in runs:
        try:
            run.ledger.refresh()
        except LedgerDamaged as damage:
            yield failed(f"ledger of {run.id}", damage)
    voids = sum(len(run.ledger.state.voids) for run in runs)
    yield ok(
        "ledgers",
        f"read {count_of(len(runs) + len(unreadable), 'run')}, with {count_of(voids, 'void entry', 'void entries')}",
    )
