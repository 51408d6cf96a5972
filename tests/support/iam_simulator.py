"""
What IAM answers to SimulatePrincipalPolicy, which moto lacks: https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html

A role's own tags are in no simulation: the caller gives them as context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from moto.iam.models import ManagedPolicy, Role, iam_backends
from werkzeug.wrappers import Response

from tests.support.aws_templates import ACCOUNT
from tests.support.ec2_spot import answered
from tests.support.iam import Asked, Document, decide

ACTION = "SimulatePrincipalPolicy"


def documents_of(role: Role) -> tuple[list[Document], list[Document]]:
    """The policies of a role; and its boundary, if it has one."""
    known = iam_backends[ACCOUNT]["aws"].managed_policies
    boundary = role.permissions_boundary_arn
    policies = [_document(each) for each in role.managed_policies.values()]
    return policies, [_document(known[boundary])] if boundary else []


def simulated(asked: Mapping[str, str]) -> Response:
    role = iam_backends[ACCOUNT]["aws"].get_role_by_arn(asked["PolicySourceArn"])
    context = dict(
        zip(
            _numbered(asked, "ContextEntries", ".ContextKeyName"),
            _numbered(asked, "ContextEntries", ".ContextKeyValues.member.1"),
            strict=True,
        )
    )
    rows = "".join(
        _row(role, Asked(action, resource, context))
        for action in _numbered(asked, "ActionNames")
        for resource in _numbered(asked, "ResourceArns")
    )
    result = f"<IsTruncated>false</IsTruncated><EvaluationResults>{rows}</EvaluationResults>"
    return answered(ACTION, f"<{ACTION}Result>{result}</{ACTION}Result>")


def _row(role: Role, asked: Asked) -> str:
    policies, boundary = documents_of(role)
    decisions = [decide(policies, asked), *(decide([each], asked) for each in boundary)]
    decision = "allowed" if all(each.allowed for each in decisions) else "implicitDeny"
    return (
        f"<member><EvalActionName>{asked.action}</EvalActionName><EvalResourceName>{asked.resource}</EvalResourceName>"
        f"<EvalDecision>{decision}</EvalDecision></member>"
    )


def _numbered(asked: Mapping[str, str], name: str, rest: str = "") -> Iterator[str]:
    number = 1
    while (text := asked.get(f"{name}.member.{number}{rest}")) is not None:
        yield text
        number += 1


def _document(policy: ManagedPolicy) -> Document:
    newest = next(each for each in policy.versions if each.is_default)
    document: Document = json.loads(newest.document)
    return document
