"""
Checks the service accounts of a project that belong to no run. IAM cannot limit by name which accounts a runner may
give to an instance, so training code could have the roles of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, advice_of, ok, unknown, warned
from spotrun.errors import AccessDenied, CloudError
from spotrun.units import count_of

NAME = "other accounts"
TOLD_MAX = 5
_ROLES = (
    "gcloud projects get-iam-policy {project} --flatten=bindings[].members "
    "--filter=bindings.members:serviceAccount --format='value(bindings.members,bindings.role)'"
)
"""Lists each service account with each of its roles: only those of spotrun's runs should have any."""
_OWN_PROJECT = "give spotrun a project of its own: a runner may hand any account of the project to an instance"


def other_account_findings(google: Google, project: str, shared: str | None) -> Iterator[Finding]:
    """
    Check the other accounts. `shared` is the account that serves all runs, if there is one.

    Raises:
        CloudError: the caller may not list accounts.
    """
    others = {*account_checks.other_accounts(google, project)} - {shared}
    if not others:
        yield ok(NAME, "the project has no service account but those of spotrun's runs")
        return
    told = count_of(len(others), "other service account")
    try:
        roles = account_checks.roles_of_accounts(google, project)
    except AccessDenied as error:
        what = f"the project has {told}, with roles or without: {_named(others)}: {error.message}"
        yield unknown(NAME, what, f"ask an owner of the project for `{_ROLES.format(project=project)}`")
        return
    except CloudError as error:
        what = f"the project has {told}, with roles or without: {error.message}"
        yield unknown(NAME, what, advice_of(error, _OWN_PROJECT))
        return
    able = {email for email in others if email in roles}
    if able:
        yield warned(NAME, f"training code could have the roles of {_named(able)}", _OWN_PROJECT)
    else:
        yield ok(NAME, f"{told}, without a role in the project")


def _named(emails: Collection[str]) -> str:
    return ", ".join([*sorted(emails)[:TOLD_MAX], *(["and others"] if len(emails) > TOLD_MAX else [])])
