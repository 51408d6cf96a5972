"""
An EC2 account on this machine: moto's own application in our process, and in front of it what moto lacks.

    with Ec2Account(clock) as account:
        account.refuse("RunInstances", "InsufficientInstanceCapacity", 500)

The layer in front adds launch tokens with their two errors, spot prices, the price list, refusals, answers that are
lost, an audit of every call, and instances that are process trees. Times are those of the account's clock.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs

import boto3
import pytest
from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from spotrun.clock import ScaledClock
from spotrun.clouds.aws import request as tag
from spotrun.clouds.aws import run_role
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.disk_key import OF_AWS
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.clouds.local.config import NOTICE
from spotrun.instance import Instance, InstanceState
from spotrun.offering import CapacityType, Offering
from spotrun.secrets.reference import PARAMETER, Reference
from tests.support import iam_simulator
from tests.support.aws_templates import ACCOUNT, REGION
from tests.support.ec2_machines import Ec2Machine, Identity
from tests.support.ec2_prices import PriceFeed
from tests.support.ec2_spot import XML, SpotRequests, answered
from tests.support.manual_clock import ManualClock
from tests.support.moto_picture import Picture
from tests.support.near_aws import answer_near, answer_near_no_longer

ZONES = ("us-east-1a", "us-east-1b")
TYPES = {"g4dn.xlarge": "0.526", "g5.xlarge": "1.006"}
IMAGE_PARAMETER = "/spotrun/image"
RUN = "0123456789"
"""The run that drivers are tested with."""
INTERRUPTED = "Server.SpotInstanceTermination"
SERVICES = ("ec2", "ssm", "iam", "scheduler", "cloudformation", "kms", "sts")
_FURNISHED: dict[tuple[type, str], Picture] = {}
"""Accounts as they were when they had been furnished, by their kinds and the policies of their nodes."""
_LAUNCH_TIME = re.compile(rb"(?<=<launchTime>)[^<]*")


class Life(NamedTuple):
    instance_type: str
    spot: bool
    since: datetime
    until: datetime | None
    reason: str

    @property
    def taken(self) -> bool:
        return self.reason == INTERRUPTED


class Ec2Account:
    """
    `calls` are the actions that were asked for, in order, each with its parameters; `keys` who signed them. Keys in
    `expired` are told so, whatever they ask. All calls to a region in `closed` get that code and status. Until
    `profiles_are_known` EC2 has not heard of what IAM has. What instances get for their role are `credentials`.
    `disk_key` is the default key of EBS.
    Its answers are dated by `clock` if it `tells_time`; the clocks of most tests stand still, or leap.
    """

    def __init__(self, clock: ScaledClock) -> None:
        self.clock = clock
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._refusals: list[tuple[str, str, int]] = []
        self._lost: list[str] = []
        self._launches: dict[str, tuple[dict[str, str], bytes, str]] = {}
        self._machines: dict[str, Ec2Machine] = {}
        self._ends: dict[str, tuple[str, str]] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.keys: list[str] = []
        self.expired: set[str] = set()
        self.closed: dict[str, tuple[str, int]] = {}
        self.image: Mapping[str, str] | None = None
        self.tools: Mapping[str, str] = {}
        self.spot_is_gone = False
        self.tells_time = False
        self.profiles_are_known = True
        self.credentials = ("test", "test")
        self.page_size = 1000
        self.prices = PriceFeed(clock, TYPES, ZONES)
        self.quotas: dict[str, float] = {}
        self.disk_key = OF_AWS
        self.spot_requests = SpotRequests()
        self._region_clock = ManualClock()
        self._region = Region(REGION, self._region_clock)  # its clients, which take long to make, are for all runs
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_dated(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        answer_near(self.url, self._dated_answer)
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._machines.values():
            machine.power_off()
        answer_near_no_longer(self.url)
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    @property
    def date(self) -> str:
        """Of its answers."""
        return format_datetime(self.clock.now(), usegmt=True) if self.tells_time else ""

    @property
    def disks(self) -> Path:
        """The folder in which each instance has its disk."""
        return Path(self._folder.name)

    @property
    def node_policy(self) -> Mapping[str, Any]:
        """Of the roles of runs; nobody here looks at it."""
        return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let clients of this test find it by themselves."""
        for name, text in self.environment.items():
            monkeypatch.setenv(name, text)

    def furnish(self) -> None:
        """What the driver expects to find. It is made once, and then copied."""
        kind = (type(self), json.dumps(self.node_policy))
        if kind not in _FURNISHED:
            self._furnish()
            _FURNISHED[kind] = Picture(*SERVICES)
        _FURNISHED[kind].restore()
        self.calls.clear()
        self.keys.clear()

    def _furnish(self) -> None:
        """Nothing is in the account of a moto that was reset."""
        BackendDict.reset()
        ec2, ssm, iam = (boto3.client(name, region_name=REGION) for name in ("ec2", "ssm", "iam"))
        network = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        ec2.create_security_group(GroupName="spotrun-node", Description="no ingress", VpcId=network)
        self.lead_out(network)
        image = next(iter(ec2_backends[ACCOUNT][REGION].amis))
        ssm.put_parameter(Name=IMAGE_PARAMETER, Value=image, Type="String")
        iam.create_policy(PolicyName=run_role.POLICY, PolicyDocument=json.dumps(self.node_policy))
        self.identify(RUN)
        boto3.client("scheduler", region_name=REGION).create_schedule_group(Name="spotrun")

    def lead_out(self, network: str) -> None:
        """Give a network its internet gateway: the one that an account begins with has it."""
        ec2 = boto3.client("ec2", region_name=REGION)
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=network)
        table = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [network]}])["RouteTables"][0]
        ec2.create_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)

    def identify(self, run_uid: str, *secrets: str) -> None:
        """
        What a runner does before its first launch, for a driver that is tested without one. `secrets` are the paths of
        the parameters that the job names.
        """
        named = [Reference(PARAMETER, path) for path in secrets]
        roles = RunRoles(self._region, self._region_clock, secrets=named)
        roles.make(run_uid, f"s3://bucket/runs/r-{run_uid}")

    def refuse(self, action: str, code: str, status: int, times: int = 1) -> None:
        with self._lock:
            self._refusals += [(action, code, status)] * times

    def lose_answer(self, action: str) -> None:
        """Do the next such call, but answer 503."""
        with self._lock:
            self._lost.append(action)

    def row(self, instance_id: str) -> Any:
        """moto's own record of an instance, whichever region has it."""
        found = (backend.get_instance_by_id(instance_id) for backend in ec2_backends[ACCOUNT].values())
        return next(row for row in found if row is not None)

    def end(self, instance_id: str, reason: str) -> None:
        """An end that nobody called for, with its StateReason."""
        with self._lock:
            self.row(instance_id).terminate()
            self._end(instance_id, reason)

    def interrupt(self, instance_id: str, notice: timedelta | None = NOTICE) -> None:
        """Take a spot instance back, with so much notice, and the recommendation that EC2 gives with it, or at once."""
        machine = self._machines[instance_id]
        if notice is None:
            self.end(instance_id, INTERRUPTED)
            return
        machine.metadata.recommend_rebalance(self.clock.now())
        machine.metadata.give_notice(self.clock.now() + notice)
        machine.after(notice.total_seconds(), lambda: self.end(instance_id, INTERRUPTED))

    def lives(self) -> list[Life]:
        """Every instance that there ever was, by what was asked of this account and what it did."""
        found = []
        for facts, _, instance_id in self._launches.values():
            reason, words = self._ends.get(instance_id, ("", ""))
            ended = re.search(r"[(](.*) GMT", words)
            found.append(
                Life(
                    instance_type=facts["InstanceType"],
                    spot=facts.get("InstanceMarketOptions.MarketType") == "spot",
                    since=self.row(instance_id).launch_time.replace(tzinfo=UTC),
                    until=None if ended is None else datetime.fromisoformat(f"{ended[1]}+00:00"),
                    reason=reason,
                )
            )
        return found

    @contextmanager
    def unseen(self, instance_id: str) -> Iterator[None]:
        """Inside, the API does not know the instance: a launch is not seen everywhere at once."""
        known = ec2_backends[ACCOUNT][REGION].reservations
        number = next(number for number, each in known.items() if instance_id in [row.id for row in each.instances])
        hidden = known.pop(number)
        yield
        known[number] = hidden

    def console(self, instance_id: str) -> str:
        return (self._machines[instance_id].disk / "console.log").read_text(errors="replace")

    def _end(self, instance_id: str, reason: str) -> None:
        """The first reason counts, whatever moto has written down since."""
        words = f"{reason} ({self.clock.now():%Y-%m-%d %H:%M:%S} GMT)"
        reason, words = self._ends.setdefault(instance_id, (reason, words))
        row = self.row(instance_id)
        row.state_reason, row._reason = StateReason(reason, reason), words
        if instance_id in self._machines:
            self._machines[instance_id].power_off()

    # -- the layer in front --------------------------------------------------------------------------------------

    def _dated_answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """An answer with the date that otherwise the server writes."""

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, ("Date", self.date)], *more)

        return self._answer(environ, start)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        body = request.get_data(cache=True)
        signed = re.search(r"Credential=(\w+)/", request.headers.get("Authorization", ""))
        self.keys.append("" if signed is None else signed[1])
        if self.keys[-1] in self.expired:
            return _error("ExpiredToken", 400)(environ, start_response)
        if (region := _region_of(request)) in self.closed:
            return _error(*self.closed[region])(environ, start_response)
        operation = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        if operation in ("GetProducts", "GetServiceQuota"):
            return self._json(operation, body)(environ, start_response)
        is_form = request.mimetype == "application/x-www-form-urlencoded"  # an object of 100 MB is none
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()} if is_form else {}
        action = asked.get("Action", "")
        with self._lock:
            self.calls.append((action, asked))
            answer = self._own_answer(action, asked, lambda: self._motos(environ, self._paged(action, body)))
            if action in self._lost:
                self._lost.remove(action)
                answer = _error("Unavailable", 503)
        return answer(environ, start_response)

    def _paged(self, action: str, body: bytes) -> bytes:
        """EC2 tells so many instances at once and no more."""
        return body + f"&MaxResults={self.page_size}".encode() if action == "DescribeInstances" else body

    def _motos(self, environ: dict[str, Any], body: bytes) -> Response:
        environ = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ = {key: value for key, value in environ.items() if not key.startswith("werkzeug.")}
        answer = Response.from_app(self._moto, environ)
        answer.headers.pop("date", None)  # our server writes its own
        return answer

    def _own_answer(self, action: str, asked: dict[str, str], motos: Callable[[], Response]) -> Response:
        for refusal in self._refusals:
            if refusal[0] == action:
                self._refusals.remove(refusal)
                return _error(*refusal[1:])
        if action == "DescribeSpotPriceHistory":
            return self.prices.spot_history(asked)
        if action == "RunInstances":
            return self._without_profile(asked) or self._launch(asked, motos)
        if action == "RemoveRoleFromInstanceProfile" and not _roles_in(asked["InstanceProfileName"]):
            return _error("NoSuchEntity", 404)
        if action == "DescribeSpotInstanceRequests":
            return self.spot_requests.described(asked)
        if action == iam_simulator.ACTION:
            return iam_simulator.simulated(asked)
        if action == "GetEbsDefaultKmsKeyId":
            return answered(action, f"<kmsKeyId>{self.disk_key}</kmsKeyId>")
        answer = motos()
        if action == "DescribeInstances":
            answer.set_data(self.spot_requests.named_in(answer.get_data()))
        if action == "TerminateInstances" and answer.status_code == 200:
            self._terminated(asked)
        return answer

    def _terminated(self, asked: dict[str, str]) -> None:
        for name, instance_id in asked.items():
            if name.startswith("InstanceId."):
                self._end(instance_id, "Client.UserInitiatedShutdown")

    def _json(self, operation: str, body: bytes) -> Response:
        with self._lock:
            refusal = next((each for each in self._refusals if each[0] == operation), None)
            if refusal is not None:
                self._refusals.remove(refusal)
                _, code, status = refusal
                return _as_json({"__type": code, "message": "by the test"}, status)
            if operation == "GetProducts":
                return _as_json({"PriceList": self.prices.products(json.loads(body))})
            return self._quota(json.loads(body)["QuotaCode"])

    def _quota(self, code: str) -> Response:
        if code not in self.quotas:
            return _as_json({"__type": "NoSuchResourceException", "message": code}, 400)
        return _as_json({"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "Value": self.quotas[code]}})

    def _without_profile(self, asked: dict[str, str]) -> Response | None:
        """
        What EC2 says of a profile that it does not know, or that has no role:
        https://github.com/hashicorp/terraform/issues/9474, /4306
        """
        name = asked.get("IamInstanceProfile.Name")
        if name is None or (self.profiles_are_known and _roles_in(name)):
            return None
        where = f"Value ({name}) for parameter iamInstanceProfile.name is invalid."
        return _error("InvalidParameterValue", 400, f"{where} Invalid IAM Instance Profile name")

    def _launch(self, asked: dict[str, str], motos: Callable[[], Response]) -> Response:
        if asked["InstanceType"] not in TYPES:
            return _error("InvalidParameterValue", 400)
        token = asked["ClientToken"]
        facts = {name: text for name, text in asked.items() if name != "ClientToken"}
        if token in self._launches:
            known, body, instance_id = self._launches[token]
            if known != facts:
                return _error("IdempotentParameterMismatch", 400)
            if self.row(instance_id)._state.name in ("shutting-down", "terminated"):
                return _error("IdempotentInstanceTerminated", 400)
            return Response(body, 200, content_type="text/xml")
        if self.spot_is_gone and asked.get("InstanceMarketOptions.MarketType") == "spot":
            return _error("InsufficientInstanceCapacity", 500)
        answer = motos()
        if answer.status_code == 200:
            now = self.clock.now()
            body = _LAUNCH_TIME.sub(f"{now:%Y-%m-%dT%H:%M:%S.000Z}".encode(), answer.get_data())
            answer.set_data(body)
            instance_id = body.split(b"<instanceId>")[1].split(b"<")[0].decode()
            self.row(instance_id).launch_time = now.replace(tzinfo=None, microsecond=0)
            self._launches[token] = (facts, body, instance_id)
            role = asked.get("IamInstanceProfile.Name", "")
            self._boot(self._instance(instance_id, asked), base64.b64decode(asked["UserData"]), role)
        return answer

    def _instance(self, instance_id: str, asked: dict[str, str]) -> Instance:
        """As its own metadata service tells of it."""
        tags = {asked[f"TagSpecification.1.Tag.{n}.Key"]: asked[f"TagSpecification.1.Tag.{n}.Value"] for n in (2, 3)}
        spot = asked.get("InstanceMarketOptions.MarketType") == "spot"
        return Instance(
            instance_id=instance_id,
            token=asked["ClientToken"],
            run_uid=tags[tag.RUN],
            launch=int(tags[tag.LAUNCH]),
            offering=Offering(
                cloud="aws",
                region=REGION,
                zone=self.row(instance_id)._placement.zone,
                instance_type=asked["InstanceType"],
                capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
                price_usd_per_hour=Decimal(0),
            ),
            state=InstanceState.RUNNING,
            launched_at=self.clock.now(),
        )

    def _boot(self, instance: Instance, user_data: bytes, role: str) -> None:
        if self.image is None:
            return
        ended = partial(self.end, instance.instance_id, "Client.InstanceInitiatedShutdown")
        identity = Identity(role, *self.credentials)
        machine = Ec2Machine(Path(self._folder.name) / instance.instance_id, instance, identity, self.clock, ended)
        self._machines[instance.instance_id] = machine
        machine.start(user_data, self.image, self.tools)


def _roles_in(profile: str) -> list[str]:
    found = [each for each in iam_backends[ACCOUNT]["aws"].instance_profiles.values() if each.name == profile]
    return [role.name for each in found for role in each.roles]


def _error(code: str, status: int, words: str = "by the test") -> Response:
    text = f"<Errors><Error><Code>{code}</Code><Message>{words}</Message></Error></Errors>"
    return Response(f"{XML}<Response>{text}<RequestID>r</RequestID></Response>", status, content_type="text/xml")


def _dated(account: Ec2Account) -> type[WSGIRequestHandler]:
    """What answers in the name of an account, with the date that the account has."""

    class Dated(WSGIRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return account.date

    return Dated


def _region_of(request: Request) -> str:
    """By the scope of its signature; "" for IAM, which is the same in all."""
    scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/(\w+)/", request.headers.get("Authorization", ""))
    return "" if scope is None or scope[2] == "iam" else scope[1]


def _as_json(answer: object, status: int = 200) -> Response:
    return Response(json.dumps(answer), status, content_type="application/x-amz-json-1.1")
