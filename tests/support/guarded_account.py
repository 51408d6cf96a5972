"""An EC2 account in which IAM has a say: whoever calls has the policies that we ship, and is refused what they lack."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import boto3
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from werkzeug.wrappers import Request, Response

from spotrun.clock import ScaledClock, system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import OWN_PROFILE
from spotrun.clouds.aws.run_role import POLICY
from tests.support import fault_proxy
from tests.support.aws_stack import deploy
from tests.support.aws_templates import Template
from tests.support.ec2_server import ACCOUNT, REGION, Ec2Account
from tests.support.ec2_spot import answered
from tests.support.iam import Asked, Document, decide
from tests.support.iam_calls import Call, Known, asked_by, read_call
from tests.support.iam_simulator import documents_of

CALLER = f"arn:aws:iam::{ACCOUNT}:user/trainer"
TEMPLATE = Template("account", Runners=CALLER)
RUNNER: Sequence[Document] = (TEMPLATE.documents()["spotrun-runner"],)
_BY_INSTANCE = re.compile(rf"app/({OWN_PROFILE}\w+)")


class GuardedAccount(Ec2Account):
    """
    `policies` are the caller's; `denied` is what they did not allow. The bucket's policy is always in force. `quotas`
    are vCPUs by code; those that are not there this region does not know. `arn` is who the caller is, where it matters.

    After `furnish` the caller has the runner's policy and no other. An instance has what IAM has for its role. The
    account is as `template` makes it.
    """

    def __init__(self, clock: ScaledClock) -> None:
        super().__init__(clock)
        self.policies: Sequence[Document] | None = None
        self._administrators = 0
        self._entering = threading.Lock()
        self.denied: list[Asked] = []
        self.arn: str | None = None
        self.template = TEMPLATE

    @property
    def node_policy(self) -> Document:
        return self.template.documents()[POLICY]

    def furnish(self) -> None:
        with self.as_administrator():
            super().furnish()
        self.policies = RUNNER

    def _furnish(self) -> None:
        super()._furnish()
        group = boto3.client("ec2").describe_security_groups(GroupNames=["spotrun-node"])["SecurityGroups"][0]
        tags = Template("region", VpcId=group["VpcId"]).properties("NodeGroup")["Tags"]
        boto3.client("ec2").create_tags(Resources=[group["GroupId"]], Tags=tags)

    def deploy_region(self) -> None:
        """infra/aws/region.yaml, in place of what `furnish` has put there."""
        with self.as_administrator():
            ec2 = boto3.client("ec2", region_name=REGION)
            ec2.delete_security_group(GroupName="spotrun-node")
            deploy("region", VpcId=ec2.describe_vpcs()["Vpcs"][0]["VpcId"])

    @contextmanager
    def as_administrator(self) -> Iterator[None]:
        """Whoever calls inside may do everything; several threads may be inside."""
        with self._entering:
            self._administrators += 1
        try:
            yield
        finally:
            with self._entering:
                self._administrators -= 1

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.policies is None or self._administrators:
            return super()._answer(environ, start_response)
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        call = read_call(request.method, request.url, dict(request.headers), body)
        instance = _BY_INSTANCE.search(request.headers.get("User-Agent", ""))
        denied = self._denied(call, self.policies) if instance is None else self._denied_to_role(call, instance[1])
        if denied:
            self.denied += denied
            return _refusal(call, denied[0])(environ, start_response)
        if call.action == "GetCallerIdentity" and self.arn is not None:
            return self._identity(self.arn)(environ, start_response)
        return super()._answer(environ, start_response)

    def before_store(self, request: fault_proxy.Request) -> fault_proxy.Fault:
        """What becomes of a call that an instance makes to an object store which itself asks nobody for rights."""
        call = read_call(request.method, request.target, request.headers, request.body)
        instance = _BY_INSTANCE.search(request.header("User-Agent") or "")
        assert instance is not None, f"no instance has sent this {request.method} of {request.target}"
        denied = self._denied_to_role(call, instance[1])
        self.denied += denied
        return fault_proxy.refused(fault_proxy.S3_DENIED) if denied else fault_proxy.none

    def _identity(self, arn: str) -> Response:
        facts = f"<Arn>{arn}</Arn><UserId>AIDA</UserId><Account>{ACCOUNT}</Account>"
        text = f"<GetCallerIdentityResult>{facts}</GetCallerIdentityResult>"
        return answered("GetCallerIdentity", text)

    def _denied(self, call: Call, *each_of: Sequence[Document], who: Mapping[str, str] | None = None) -> list[Asked]:
        """What one of these sets of policies does not allow; `who` is what IAM knows of who asks."""
        bucket = [self.template.documents()["bucket"]] if call.service == "s3" else []
        who = {"aws:PrincipalArn": CALLER, **(who or {})}
        asked = [replace(each, context={**each.context, **who}) for each in asked_by(call, self._known())]
        allow = [[decide([*policies, *bucket], each).allowed for policies in each_of] for each in asked]
        return [each for each, allowed in zip(asked, allow, strict=True) if not all(allowed)]

    def _denied_to_role(self, call: Call, name: str) -> list[Asked]:
        """What its policies do not allow, or its boundary does not."""
        found = [each for each in iam_backends[ACCOUNT]["aws"].get_roles() if each.name == name]
        if not found:
            return [*asked_by(call, self._known())]
        role = found[0]
        who = {"aws:PrincipalArn": role.arn} | {f"aws:PrincipalTag/{each['Key']}": each["Value"] for each in role.tags}
        return self._denied(call, *documents_of(role), who=who)

    def _known(self) -> Known:
        tags: dict[str, dict[str, str]] = {}
        for row in chain.from_iterable(each.describe_tags() for each in ec2_backends[ACCOUNT].values()):
            tags.setdefault(row["resource_id"], {})[row["key"]] = row["value"]
        boundaries = {role.name: role.permissions_boundary_arn for role in iam_backends[ACCOUNT]["aws"].get_roles()}
        return Known(tags, boundaries={name: arn for name, arn in boundaries.items() if arn})


def _refusal(call: Call, asked: Asked) -> Response:
    words = f"You are not authorized to perform: {asked.action} on resource: {asked.resource}"
    if call.service == "s3":
        return Response(f"<Error><Code>AccessDenied</Code><Message>{words}</Message></Error>", 403)
    if call.service == "ec2":
        text = f"<Errors><Error><Code>UnauthorizedOperation</Code><Message>{words}</Message></Error></Errors>"
        return Response(f"<Response>{text}<RequestID>r</RequestID></Response>", 403, content_type="text/xml")
    if call.service == "iam":
        text = f"<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>{words}</Message></Error>"
        return Response(f"<ErrorResponse>{text}</ErrorResponse>", 403, content_type="text/xml")
    told = {"__type": "AccessDeniedException", "message": words}
    return Response(json.dumps(told), 400, content_type="application/x-amz-json-1.1")


def calls() -> Region:
    """Of the account that this test reaches. Making clients is what takes time, so the next test has the same."""
    return _calls(os.environ["AWS_ENDPOINT_URL"])


@cache
def _calls(endpoint: str) -> Region:
    """A worker that comes back to a file's tests has another account, at another address."""
    return Region(REGION, system_clock())
