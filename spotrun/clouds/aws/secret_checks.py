"""Checks that a job's secrets are in Parameter Store, where its instances read them. Never reads a secret's value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.doctor.finding import Finding, Refusal, failed, findings_of, ok, warned
from spotrun.errors import SpotrunError
from spotrun.secrets.reference import PARAMETERS, SECURE, Reference, encrypt_command, put_command

_DENIED = "allow ssm:DescribeParameters, as the policy spotrun-runner does (infra/aws/README.md)"


def secret_findings(region: Region, secrets: Mapping[str, Reference]) -> Iterator[Finding]:
    return findings_of("secrets", partial(_of_each, region, secrets), Refusal(hint=_DENIED))


def _of_each(region: Region, secrets: Mapping[str, Reference]) -> Iterator[Finding]:
    paths = sorted({each.name for each in secrets.values()})
    kinds = account_checks.parameter_kinds(region, paths) if paths else {}
    for name, reference in secrets.items():
        yield _judged(region.name, f"secret {name}", reference.name, kinds.get(reference.name))


def _judged(region: str, name: str, path: str, kind: str | None) -> Finding:
    if kind is None:
        return failed(name, SpotrunError(f"there is no parameter {path} in {region}", hint=put_command(path, region)))
    if kind != SECURE:
        return failed(
            name, SpotrunError(f"{path} is not encrypted: it is a {kind}", hint=encrypt_command(path, region))
        )
    if not path.startswith(PARAMETERS):
        return warned(
            name,
            f"the role of infra/aws is allowed to read only parameters below {PARAMETERS}",
            f"let the role read {path}",
        )
    return ok(name, f"{path}, a {SECURE}")
