"""
Checks a project's service accounts that do not belong to spotrun's runs. A runner is allowed to launch instances with a
service account, and IAM cannot limit this right to accounts with certain names. So an instance could be launched with
any account of the project, and the training code on it could use the roles of that account.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from spotrun.clouds.gcp import account_checks
from spotrun.clouds.gcp.calls import Google
from spotrun.doctor.finding import Finding, Refusal, findings_of, ok, warned
from spotrun.errors import CloudError
from spotrun.units import count_of

NAME = "other accounts"
TOLD_MAX = 5
_ASK_OWNER = (
    "ask an owner of the project for `gcloud projects get-iam-policy {project} --flatten=bindings[].members "
    "--filter=bindings.members:serviceAccount --format='value(bindings.members,bindings.role)'`"
)
"""
Advice with a command that lists each service account with each of its roles. Only the accounts of spotrun's runs should
have roles.
"""
_OWN_PROJECT = "use a separate project for spotrun: a runner can give any account of the project to an instance"


def other_account_findings(google: Google, project: str, shared: str | None) -> Iterator[Finding]:
    """
    Check the accounts that do not belong to runs. `shared` is the account that all runs share, if there is one.

    Raises:
        CloudError: the caller is not allowed to list accounts.
    """
    others = {*account_checks.other_accounts(google, project)} - {shared}
    if not others:
        yield ok(NAME, "the project has only the service accounts of spotrun's runs")
        return
    told = count_of(len(others), "other service account")
    untold = f"the project has {told}, with roles or without"
    yield from findings_of(
        NAME,
        partial(_of_roles, google, project, others, told),
        Refusal(f"{untold}: {_named(others)}", _ASK_OWNER.format(project=project)),
        Refusal(untold, advice=_OWN_PROJECT, error=CloudError),
    )


def _of_roles(google: Google, project: str, others: Collection[str], told: str) -> Iterator[Finding]:
    able = account_checks.roles_of_accounts(google, project).keys() & others
    if able:
        yield warned(NAME, f"training code could get the roles of {_named(able)}", _OWN_PROJECT)
    else:
        yield ok(NAME, f"{told}, without a role in the project")


def _named(emails: Collection[str]) -> str:
    return ", ".join([*sorted(emails)[:TOLD_MAX], *(["and others"] if len(emails) > TOLD_MAX else [])])
