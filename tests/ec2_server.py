"""
An EC2 account on this machine: moto's own application in our process, and in front of it what moto lacks.

    with Ec2Account(clock) as account:
        account.refuse("RunInstances", "InsufficientInstanceCapacity", 500)

The layer in front adds launch tokens with their two errors, spot prices, the price list, refusals, answers that are
lost, an audit of every call, and instances that run their user-data: with `systemd-run` and `systemctl` shimmed, a
timer passes as fast as the account's clock and a power-off ends the instance as one from inside does.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import boto3
from moto import backends
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from spotrun.clock import ScaledClock

ACCOUNT, REGION, ZONES = "123456789012", "us-east-1", ("us-east-1a", "us-east-1b")
TYPES = {"g4dn.xlarge": "0.526", "g5.xlarge": "1.006"}
SPOT_SHARE = "0.1578"
IMAGE_PARAMETER = "/spotrun/image"
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_SHIMS = {
    "systemd-run": """#!/bin/bash
for word in "$@"; do case "$word" in --on-boot=*) after="${word#--on-boot=}";; esac; done
( sleep "$(python3 -c "print(${after%s} / $TIME_SCALE)")"; systemctl poweroff ) &
""",
    "systemctl": '#!/bin/bash\ntouch "$POWERED_OFF"\n',
}


class Ec2Account:
    """`calls` are the actions that were asked for, in order, each with its parameters."""

    def __init__(self, clock: ScaledClock) -> None:
        self._clock = clock
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._refusals: list[tuple[str, str, int]] = []
        self._lost: list[str] = []
        self._launches: dict[str, tuple[dict[str, str], bytes, str]] = {}
        self._machines: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []
        self._folder = tempfile.TemporaryDirectory()
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.boots = False
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for machine, watcher in self._machines:
            if watcher.is_alive():  # so the machine is not reaped yet, and the group still its own
                os.killpg(machine.pid, signal.SIGKILL)
            watcher.join(10)
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def furnish(self) -> None:
        """What the driver expects to find: nothing is in the account of a moto that was reset."""
        for name in ("ec2", "ssm", "iam"):
            backends.get_backend(name).reset()  # type: ignore[arg-type]
        ec2, ssm, iam = (boto3.client(name, region_name=REGION) for name in ("ec2", "ssm", "iam"))
        network = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        ec2.create_security_group(GroupName="spotrun-node", Description="no ingress", VpcId=network)
        image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        ssm.put_parameter(Name=IMAGE_PARAMETER, Value=image, Type="String")
        iam.create_instance_profile(InstanceProfileName="spotrun-node")
        self.calls.clear()

    def refuse(self, action: str, code: str, status: int, times: int = 1) -> None:
        with self._lock:
            self._refusals += [(action, code, status)] * times

    def lose_answer(self, action: str) -> None:
        """Do the next such call, but answer 503."""
        with self._lock:
            self._lost.append(action)

    def row(self, instance_id: str) -> Any:
        """moto's own record of an instance."""
        return ec2_backends[ACCOUNT][REGION].get_instance(instance_id)

    def end(self, instance_id: str, reason: str) -> None:
        """An end that nobody called for, with its StateReason."""
        with self._lock:
            row = self.row(instance_id)
            row.terminate()
            row.state_reason = StateReason(reason, reason)
            row._reason = f"{reason} ({self._clock.now():%Y-%m-%d %H:%M:%S} GMT)"

    # -- the layer in front --------------------------------------------------------------------------------------

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        body = request.get_data(cache=True)
        if request.headers.get("X-Amz-Target", "").startswith("AWSPriceListService"):
            return self._price_list(json.loads(body))(environ, start_response)
        asked = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        action = asked.get("Action", "")
        with self._lock:
            self.calls.append((action, asked))
            answer = self._own_answer(action, asked, lambda: self._motos(environ, body))
            if action in self._lost:
                self._lost.remove(action)
                answer = _error("Unavailable", 503)
        return answer(environ, start_response)

    def _motos(self, environ: dict[str, Any], body: bytes) -> Response:
        environ = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ = {key: value for key, value in environ.items() if not key.startswith("werkzeug.")}
        return Response.from_app(self._moto, environ)

    def _own_answer(self, action: str, asked: dict[str, str], motos: Callable[[], Response]) -> Response:
        for refusal in self._refusals:
            if refusal[0] == action:
                self._refusals.remove(refusal)
                return _error(*refusal[1:])
        if action == "DescribeSpotPriceHistory":
            return self._spot_prices()
        if action == "RunInstances":
            return self._launch(asked, motos)
        return motos()

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
        answer = motos()
        if answer.status_code == 200:
            body = answer.get_data()
            instance_id = body.split(b"<instanceId>")[1].split(b"<")[0].decode()
            self._launches[token] = (facts, body, instance_id)
            self._boot(instance_id, base64.b64decode(asked["UserData"]))
        return answer

    def _boot(self, instance_id: str, user_data: bytes) -> None:
        if not self.boots:
            return
        disk = Path(self._folder.name) / instance_id
        disk.mkdir()
        (disk / "user-data.sh").write_bytes(user_data)
        for name, text in _SHIMS.items():
            (disk / name).write_text(text)
            (disk / name).chmod(0o755)
        environment = {
            "PATH": f"{disk}:{os.environ['PATH']}",
            "POWERED_OFF": str(disk / "powered-off"),
            "TIME_SCALE": str(self._clock.scale),
        }
        machine = subprocess.Popen(
            ["bash", str(disk / "user-data.sh")], env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        watcher = threading.Thread(target=self._watch, args=(machine, instance_id, disk), daemon=True)
        self._machines.append((machine, watcher))
        watcher.start()

    def _watch(self, machine: subprocess.Popen[bytes], instance_id: str, disk: Path) -> None:
        machine.communicate()
        if (disk / "powered-off").exists():
            self.end(instance_id, "Client.InstanceInitiatedShutdown")

    def _spot_prices(self) -> Response:
        since = f"{self._clock.now() - timedelta(days=1):%Y-%m-%dT%H:%M:%S.000Z}"
        items = "".join(
            f"<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{SPOT_SHARE}</spotPrice><timestamp>{since}</timestamp>"
            f"<availabilityZone>{zone}</availabilityZone></item>"
            for kind in TYPES
            for zone in ZONES
        )
        text = f"<spotPriceHistorySet>{items}</spotPriceHistorySet>"
        whole = f"{_XML}<DescribeSpotPriceHistoryResponse>{text}</DescribeSpotPriceHistoryResponse>"
        return Response(whole, 200, content_type="text/xml")

    def _price_list(self, asked: dict[str, Any]) -> Response:
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        products = [
            json.dumps(
                {
                    "product": {"attributes": {"instanceType": kind}},
                    "terms": {
                        "OnDemand": {"t": {"priceDimensions": {"d": {"unit": "Hrs", "pricePerUnit": {"USD": usd}}}}}
                    },
                }
            )
            for kind, usd in TYPES.items()
            if wanted.get("instanceType", kind) == kind
        ]
        return Response(json.dumps({"PriceList": products}), 200, content_type="application/x-amz-json-1.1")


def _error(code: str, status: int) -> Response:
    text = f"<Errors><Error><Code>{code}</Code><Message>by the test</Message></Error></Errors>"
    return Response(f"{_XML}<Response>{text}<RequestID>r</RequestID></Response>", status, content_type="text/xml")
