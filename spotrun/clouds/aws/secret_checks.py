"""Checks that a job's secrets are in the Parameter Store, where its instances read them. No value is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.doctor.finding import Finding, failed, ok, unknown, warned
from spotrun.errors import AccessDenied, SpotrunError
from spotrun.secrets.reference import PARAMETERS, SECURE, Reference, encrypt_command, put_command


def secret_findings(region: Region, secrets: Mapping[str, Reference]) -> Iterator[Finding]:
    if not secrets:
        return
    try:
        kinds = account_checks.parameter_kinds(region, sorted({each.name for each in secrets.values()}))
    except AccessDenied as error:
        hint = "allow ssm:DescribeParameters, as the policy spotrun-runner does (infra/aws/README.md)"
        yield unknown("secrets", error.message, hint)
        return
    for name, reference in secrets.items():
        yield _finding(region.name, f"secret {name}", reference.name, kinds.get(reference.name))


def _finding(region: str, name: str, path: str, kind: str | None) -> Finding:
    if kind is None:
        return failed(name, SpotrunError(f"there is no parameter {path} in {region}", hint=put_command(path, region)))
    if kind != SECURE:
        return failed(
            name, SpotrunError(f"{path} is not encrypted: it is a {kind}", hint=encrypt_command(path, region))
        )
    if not path.startswith(PARAMETERS):
        return warned(name, f"the role of infra/aws reads below {PARAMETERS} only", f"let the instances read {path}")
    return ok(name, f"{path}, a {SECURE}")
