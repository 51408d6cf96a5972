"""
The service accounts of a project that no run has. IAM cannot limit whom a runner may hand to an instance by a name, so
training code could have the roles of each.
"""

from __future__ import annotations

from collections.abc import Iterator

from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, ok, unknown, warned
from spotrun.errors import CloudError
from spotrun.units import count_of

NAME = "other accounts"
TOLD_MAX = 5
_OWN_PROJECT = "give spotrun a project of its own: a runner may hand any account of the project to an instance"


def other_account_findings(google: Google, project: str, shared: str | None) -> Iterator[Finding]:
    """
    `shared` is the account that serves all runs, if one does.

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
    except CloudError as error:
        yield unknown(NAME, f"the project has {told}, with roles or without: {error.message}", _OWN_PROJECT)
        return
    able = sorted(email for email in others if email in roles)
    if able:
        names = [*able[:TOLD_MAX], *(["and others"] if len(able) > TOLD_MAX else [])]
        yield warned(NAME, f"training code could have the roles of {', '.join(names)}", _OWN_PROJECT)
    else:
        yield ok(NAME, f"{told}, without a role in the project")
