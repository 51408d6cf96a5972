"""The templates of infra/aws as stacks of an account."""

from __future__ import annotations

import boto3

from tests.support.aws_templates import path_of


def deploy(name: str, **parameters: str) -> None:
    """In the account that boto3 finds."""
    boto3.client("cloudformation").create_stack(
        StackName=f"spotrun-{name}",
        TemplateBody=path_of(name).read_text(),
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()],
    )
