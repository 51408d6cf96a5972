"""
The metadata service of an instance, modelled on version 2 of EC2's: each request needs a session token.

Paths, headers and codes follow https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/, pages
configuring-instance-metadata-service.html and spot-instance-termination-notices.html. Clients find the service through
AWS_EC2_METADATA_SERVICE_ENDPOINT.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from spotrun.clock import Clock
from spotrun.instance import Instance
from spotrun.offering import CapacityType

TOKEN_PATH = "/latest/api/token"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TOKEN_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_TTL_MAX_S = 21600
_ROOT = "/latest/meta-data"
_IDLE_CONNECTION_S = 30


class MetadataService:
    """
    Serves the values that the supervisor sets. The server listens on a free port of 127.0.0.1 and runs in separate
    threads.
    """

    def __init__(self, instance: Instance, clock: Clock) -> None:
        self.clock = clock
        self._instance = instance
        self._lock = threading.Lock()
        self._tokens: dict[str, float] = {}
        self._answers = _constants(instance)
        self._server = _Server(self)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="metadata", daemon=True).start()

    def give_notice(self, deadline: datetime) -> None:
        """Begin to announce that this instance will be terminated at `deadline`."""
        action = {"action": "terminate", "time": _time(deadline)}
        self._answers[f"{_ROOT}/spot/termination-time"] = _time(deadline)
        self._answers[f"{_ROOT}/spot/instance-action"] = json.dumps(action)

    def recommend_rebalance(self, at: datetime) -> None:
        self._answers[f"{_ROOT}/events/recommendations/rebalance"] = json.dumps({"noticeTime": _time(at)})

    def move_to(self, address: str) -> None:
        """Begin to report `address` as the instance's address."""
        self._answers |= _constants(msgspec.structs.replace(self._instance, address=address))

    def new_token(self, time_to_live_s: int) -> str:
        now = self.clock.monotonic()
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._tokens = {known: until for known, until in self._tokens.items() if until > now}
            self._tokens[token] = now + time_to_live_s
        return token

    def knows(self, token: str | None) -> bool:
        return token is not None and self._tokens.get(token, 0.0) > self.clock.monotonic()

    def answer(self, path: str) -> str | None:
        """Return the text at `path`, or a list of the names below it; None if neither exists."""
        path = path.rstrip("/")
        answers = dict(self._answers)
        return answers[path] if path in answers else _names_below(path, answers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, service: MetadataService) -> None:
        self.service = service
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore reset connections, which are normal when an instance powers off."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "EC2ws", ""
    timeout = _IDLE_CONNECTION_S
    server: _Server

    def do_PUT(self) -> None:
        self._drop_body()
        if self.path.rstrip("/") != TOKEN_PATH:
            return self._refuse(405, allow="GET, HEAD")
        if self.headers.get("X-Forwarded-For") is not None:  # the request came through a proxy
            return self._refuse(403)
        time_to_live_s = _token_ttl(self.headers.get(TOKEN_TTL_HEADER))
        if time_to_live_s is None:
            return self._refuse(400)
        token = self.server.service.new_token(time_to_live_s)
        return self._send(200, token, {TOKEN_TTL_HEADER: str(time_to_live_s)})

    def do_GET(self) -> None:
        if self.path.rstrip("/") == TOKEN_PATH:
            return self._refuse(405, allow="PUT")
        if not self.server.service.knows(self.headers.get(TOKEN_HEADER)):
            return self._refuse(401)
        answer = self.server.service.answer(self.path)
        return self._refuse(404) if answer is None else self._send(200, answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self._drop_body()
        self._refuse(405, allow="PUT" if self.path.rstrip("/") == TOKEN_PATH else "GET, HEAD")

    do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the value of the Date header, in run time like the times in the answers."""
        return format_datetime(self.server.service.clock.now(), usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _refuse(self, code: int, allow: str | None = None) -> None:
        self._send(code, f"{code} - {self.responses[code][0]}", {} if allow is None else {"Allow": allow})

    def _send(self, code: int, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        known = {"Content-Type": "text/plain", "Content-Length": str(len(body))}
        for name, value in (known | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drop_body(self) -> None:
        self.close_connection = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers


def _token_ttl(text: str | None) -> int | None:
    """
    Parse the time-to-live, in seconds, that a request for a token states in its header. `text` is the header's value;
    None if the header is missing. Return None if the real metadata service would refuse the request.
    """
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) < 9 and 1 <= int(text) <= TOKEN_TTL_MAX_S else None


def _constants(instance: Instance) -> dict[str, str]:
    offering = instance.offering
    spot = offering.capacity_type is CapacityType.SPOT
    answers = {
        "instance-id": instance.instance_id,
        "instance-type": offering.instance_type,
        "instance-life-cycle": "spot" if spot else "on-demand",
        "placement/availability-zone": offering.zone,
        "placement/region": offering.region,
        "local-hostname": "localhost",
        "local-ipv4": instance.address or "127.0.0.1",
        "tags/instance/spotrun:run": instance.run_uid,
        "tags/instance/spotrun:launch": str(instance.launch),
        "tags/instance/spotrun:token": instance.token,
    }
    document = {
        "instanceId": instance.instance_id,
        "instanceType": offering.instance_type,
        "availabilityZone": offering.zone,
        "region": offering.region,
        "pendingTime": _time(instance.launched_at),
        "privateIp": instance.address or "127.0.0.1",
    }
    return {f"{_ROOT}/{name}": text for name, text in answers.items()} | {
        "/latest/dynamic/instance-identity/document": json.dumps(document, indent=2)
    }


def _names_below(path: str, answers: dict[str, str]) -> str | None:
    """Return the names below a path, listed as EC2 does: one name a line, folders with a slash at the end."""
    rests = [name[len(path) + 1 :] for name in answers if name.startswith(f"{path}/")]
    names = sorted({rest.partition("/")[0] + ("/" if "/" in rest else "") for rest in rests})
    return "\n".join(names) or None


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
