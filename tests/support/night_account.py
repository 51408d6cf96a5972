"""
An account with a night in it: what moto's CloudFormation does not deploy is made by hand from the template, and a call
of the function runs the archive that was installed, under AWS's own runtime client.

    with NightAccount(clock, folder) as account: ...

The function may do what its role may, and no more: its calls are told from others by the name that its SDK sends.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from moto.awslambda.models import lambda_backends
from werkzeug.wrappers import Request, Response

from spotrun.clock import ScaledClock
from spotrun.clouds.aws.night_alarm import name_of
from tests.support.aws_templates import Template
from tests.support.ec2_server import ACCOUNT, REGION, Ec2Account
from tests.support.guarded_account import RUNNER, GuardedAccount, _refusal
from tests.support.iam import Document
from tests.support.iam_calls import read_call
from tests.support.lambda_runtime import Failed, LambdaRuntime

BUCKET = f"spotrun-{ACCOUNT}-{REGION}"
STORE = f"s3://{BUCKET}/runs"
_INVOKED = re.compile(r"/2015-03-31/functions/([^/]+)/invocations")
_BY_FUNCTION = re.compile(r"app/spotrun-night-(\S+)")


class NightAccount(GuardedAccount):
    """`function` is the execution environment of the one night; it is made when that is first called."""

    def __init__(self, clock: ScaledClock, folder: Path) -> None:
        super().__init__(clock)
        self._folder_of_functions = folder
        self._parameters: dict[str, str] = {}
        self.function: LambdaRuntime | None = None

    def __exit__(self, *facts: object) -> None:
        self.is_cold()
        super().__exit__(*facts)

    def is_cold(self) -> None:
        if self.function is not None:
            self.function.__exit__(None, None, None)
            self.function = None

    def schedule(self, name: str, night: str) -> dict[str, Any]:
        with self.as_administrator():
            scheduler = boto3.client("scheduler", region_name=REGION)
            return dict(scheduler.get_schedule(Name=name, GroupName=name_of(night)))

    def rule(self, night: str) -> dict[str, Any]:
        with self.as_administrator():
            return dict(boto3.client("events", region_name=REGION).describe_rule(Name=name_of(night)))

    def code(self, night: str) -> bytes:
        """The archive that Lambda has."""
        return bytes(lambda_backends[ACCOUNT][REGION].get_function(name_of(night)).code_bytes)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        invoked = _INVOKED.fullmatch(urlsplit(request.url).path)
        if invoked is not None:
            return self._invoke(json.loads(body))(environ, start_response)
        function = _BY_FUNCTION.search(request.headers.get("User-Agent", ""))
        if function is None:
            if b"StackName=spotrun-night-" in body and b"Action=CreateStack" in body:
                self._make_by_hand(body)
            if b"StackName=spotrun-night-" in body and b"Action=UpdateStack" in body:
                self._change_by_hand(body)
            if b"Action=DeleteStack" in body:
                self._remove_by_hand()
            return super()._answer(environ, start_response)
        call = read_call(request.method, request.url, dict(request.headers), body)
        who = {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role/{name_of(function[1])}"}
        denied = self._denied(call, _policies(function[1], self._parameters["Webhooks"]), who=who)
        if denied:
            self.denied += denied
            return _refusal(call, denied[0])(environ, start_response)
        return Ec2Account._answer(self, environ, start_response)  # nobody else has a say

    def _make_by_hand(self, body: bytes) -> None:
        """moto's CloudFormation knows no schedules."""
        self._parameters = _parameters_in(body)
        template = Template("night", **self._parameters)
        with self.as_administrator():
            scheduler = boto3.client("scheduler", region_name=REGION)
            scheduler.create_schedule_group(Name=name_of(self._parameters["Night"]))
            for resource in ("Begin", "BeginAgain", "Tick"):
                scheduler.create_schedule(**template.properties(resource))

    def _change_by_hand(self, body: bytes) -> None:
        self._parameters = _parameters_in(body)
        template = Template("night", **self._parameters)
        with self.as_administrator():
            scheduler = boto3.client("scheduler", region_name=REGION)
            for resource in ("Begin", "BeginAgain"):
                scheduler.update_schedule(**template.properties(resource))

    def _remove_by_hand(self) -> None:
        night = name_of(self._parameters["Night"])
        with self.as_administrator():
            scheduler = boto3.client("scheduler", region_name=REGION)
            for each in scheduler.list_schedules(GroupName=night)["Schedules"]:
                scheduler.delete_schedule(Name=each["Name"], GroupName=night)
            scheduler.delete_schedule_group(Name=night)

    def _invoke(self, event: dict[str, Any]) -> Response:
        try:
            return Response(json.dumps(self.run(event)), 200)
        except Failed as error:
            told = error.args[0] if isinstance(error.args[0], dict) else {"errorMessage": str(error)}
            return Response(json.dumps(told), 200, headers={"X-Amz-Function-Error": "Unhandled"})

    def run(self, event: dict[str, Any]) -> Any:
        """Call the function as a schedule would."""
        if self.function is None:
            self.function = self._new_function(self._folder_of_functions).__enter__()
        return self.function.call(event)

    def _new_function(self, folder: Path) -> LambdaRuntime:
        """An execution environment in a folder of its own, with the archive that was installed."""
        archive = self._folder_of_functions / "function.zip"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            archive.write_bytes(self.code(self._parameters["Night"]))
        variables = Template("night", **self._parameters).properties("Function")["Environment"]["Variables"]
        name = name_of(self._parameters["Night"])
        environment = {**variables, **self.environment, "AWS_SDK_UA_APP_ID": name, "HOME": str(folder / "tmp")}
        return LambdaRuntime(archive, folder, environment)


def _parameters_in(body: bytes) -> dict[str, str]:
    """Those of a stack that somebody makes or changes."""
    asked = dict(Request.from_values(data=body, method="POST", content_type=_FORM).form)
    names = (key for key in asked if key.endswith(".ParameterKey"))
    return {asked[key]: asked[key.replace("ParameterKey", "ParameterValue")] for key in names}


@cache
def _policies(night: str, webhooks: str) -> list[Document]:
    """Of each call of the function they are asked; to read the template takes longer than the rest of the answer."""
    own = Template("night", Night=night, Webhooks=webhooks).documents()
    its = (f"{name_of(night)}/be-called", "read-webhooks")
    return [*RUNNER, *(document for name, document in own.items() if name in its)]


_FORM = "application/x-www-form-urlencoded"
