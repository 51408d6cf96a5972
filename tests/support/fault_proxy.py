"""
A plain HTTP proxy before an object store, on which requests and answers meet with accidents.

    with FaultProxy(endpoint) as proxy:
        proxy.fate = lambda request: faults.answer_lost if request.method == "PUT" else faults.none
        store = open_store(...)  # with proxy.url as its endpoint

The Host header is passed on as it came, since SigV4 signs it: a store behind must take the proxy's name for its own.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Handler, Server

UPSTREAM_TIMEOUT_S = 60.0
PAYLOAD_BYTES = 64 << 10
"""Nothing but parts of checkpoints is as large in tests of a narrow line."""
OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "te", "upgrade"}
"""Headers that belong to one connection, or that http.client writes itself."""


@dataclass(frozen=True)
class Request:
    """`path` is unquoted and has no query; a key of the store is somewhere in it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> str:
        return unquote(urlsplit(self.target).query)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Exchange:
    """One request under way, and what a fault may do with it."""

    def __init__(self, proxy: FaultProxy, handler: BaseHTTPRequestHandler, request: Request) -> None:
        self.request = request
        self._proxy = proxy
        self._handler = handler

    def forward(self, request: Request | None = None) -> Answer:
        """The store's own answer, to this request or to a changed one."""
        return self._proxy.forward(request or self.request)

    def reply(self, answer: Answer, *, promised_bytes: int | None = None, drip_s: float = 0) -> None:
        """Send an answer. Its header speaks of `promised_bytes` where given; `drip_s` is waited between pieces."""
        handler, body = self._handler, b"" if self.request.method == "HEAD" else answer.body
        self._proxy.record(self.request, answer.status)
        handler.send_response_only(answer.status)
        for name, value in answer.headers:
            handler.send_header(name, value)
        if self.request.method != "HEAD":
            handler.send_header("Content-Length", str(len(body) if promised_bytes is None else promised_bytes))
        handler.end_headers()
        pieces = 20 if drip_s else 1
        size = max(1, -(-len(body) // pieces))
        for start in range(0, len(body), size):
            handler.wfile.write(body[start : start + size])
            handler.wfile.flush()
            time.sleep(drip_s)

    def reset(self) -> None:
        """The connection ends without another byte: the client sees a reset."""
        self._proxy.record(self.request, 0)
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.close_connection = True
        connection.close()

    def hang_up(self) -> None:
        """The connection ends after what was sent."""
        self._handler.close_connection = True


Fault = Callable[[Exchange], None]
Fate = Callable[[Request], Fault]


# -- faults of the line ----------------------------------------------------------------------------------------------


def none(exchange: Exchange) -> None:
    exchange.reply(exchange.forward())


def late(seconds: float) -> Fault:
    def fault(exchange: Exchange) -> None:
        time.sleep(seconds)
        none(exchange)

    return fault


def after(event: threading.Event) -> Fault:
    """The request waits until something has happened."""

    def fault(exchange: Exchange) -> None:
        event.wait()
        none(exchange)

    return fault


class Narrow:
    """A fate: bodies that are sent share a line of so many bytes a second; nothing else takes time."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._line = threading.Lock()

    def __call__(self, request: Request) -> Fault:
        return self._through

    def _through(self, exchange: Exchange) -> None:
        body = exchange.request.body
        if len(body) >= PAYLOAD_BYTES:
            with self._line:
                time.sleep(len(body) / self._bytes_per_s)
        none(exchange)


def reset_before(exchange: Exchange) -> None:
    """The request never arrives."""
    exchange.reset()


def answer_lost(exchange: Exchange) -> None:
    """The request has its effect, of which the client never hears. A conditional write then meets its own object."""
    exchange.forward()
    exchange.reset()


def done_twice(exchange: Exchange) -> None:
    """Somebody on the way tried again: a conditional write is told of the object that it has just made itself (412)."""
    exchange.forward()
    exchange.reply(exchange.forward())


def cut_short(exchange: Exchange) -> None:
    """The answer ends in its middle."""
    answer = exchange.forward()
    exchange.reply(Answer(answer.status, answer.headers, answer.body[: len(answer.body) // 2]),
                   promised_bytes=len(answer.body))  # fmt: skip
    exchange.hang_up()


def corrupted_answer(exchange: Exchange) -> None:
    """A bit of what was read is another."""
    answer = exchange.forward()
    exchange.reply(Answer(answer.status, answer.headers, _flipped(answer.body)))


def corrupted_request(exchange: Exchange) -> None:
    """A bit of what is written is another."""
    request = exchange.request
    exchange.reply(exchange.forward(Request(request.method, request.target, request.headers, _flipped(request.body))))


def drip(seconds: float) -> Fault:
    """The answer comes in twenty pieces with pauses."""

    def fault(exchange: Exchange) -> None:
        exchange.reply(exchange.forward(), drip_s=seconds / 20)

    return fault


def _flipped(body: bytes) -> bytes:
    """Another bit each time, as on a bad line."""
    changed = bytearray(body)
    if changed:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


# -- refusals, worded as the stores word them ------------------------------------------------------------------------


def refused(answer: Callable[[Request], Answer]) -> Fault:
    """The store says no, and nothing happened."""
    return lambda exchange: exchange.reply(answer(exchange.request))


def refused_although_done(answer: Callable[[Request], Answer]) -> Fault:
    """The store says no, and it did happen."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reply(answer(exchange.request))

    return fault


def s3_error(status: int, code: str, message: str, more: str = "", **headers: str) -> Callable[[Request], Answer]:
    """An error as Amazon S3 documents it (REST error responses)."""

    def answer(request: Request) -> Answer:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>{message}</Message>{more}<Resource>{request.path}</Resource>"
            "<RequestId>4442587FB7D0A2F9</RequestId><HostId>none</HostId></Error>"
        )
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return Answer(status, (("Content-Type", "application/xml"), *named), body.encode())

    return answer


S3_INTERNAL = s3_error(500, "InternalError", "We encountered an internal error. Please try again.")
S3_SLOW_DOWN = s3_error(503, "SlowDown", "Please reduce your request rate.")
S3_UNAVAILABLE = s3_error(503, "ServiceUnavailable", "Service is unable to handle request.")
S3_CONFLICT = s3_error(
    409, "ConditionalRequestConflict", "The conditional request cannot succeed due to a conflicting operation."
)
S3_TIMEOUT = s3_error(400, "RequestTimeout", "Your socket connection to the server was not read from or written to.")
S3_DENIED = s3_error(403, "AccessDenied", "Access Denied")
S3_EXPIRED = s3_error(400, "ExpiredToken", "The provided token has expired.")
S3_UNKNOWN_KEY = s3_error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist.")
S3_BAD_SIGNATURE = s3_error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
S3_SKEWED = s3_error(
    403, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large."
)
S3_NO_BUCKET = s3_error(404, "NoSuchBucket", "The specified bucket does not exist.", "<BucketName>b</BucketName>")
S3_ELSEWHERE = s3_error(
    301,
    "PermanentRedirect",
    "The bucket you are attempting to access must be addressed using the specified endpoint.",
    "<Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>",
    x_amz_bucket_region="eu-west-1",
)
S3_WRONG_REGION = s3_error(
    400,
    "AuthorizationHeaderMalformed",
    "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'",
    "<Region>eu-west-1</Region>",
)
S3_FULL = s3_error(507, "InsufficientStorage", "The storage is full.")
S3_QUOTA = s3_error(403, "QuotaExceeded", "The quota of the bucket is exceeded.")
S3_BAD_DIGEST = s3_error(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
S3_NOT_IMPLEMENTED = s3_error(
    501, "NotImplemented", "A header you provided implies functionality that is not implemented."
)


def gcs_error(status: int, reason: str, message: str) -> Callable[[Request], Answer]:
    """An error as the JSON API of Google Cloud Storage documents it."""
    body = (
        f'{{"error":{{"code":{status},"message":"{message}",'
        f'"errors":[{{"domain":"global","reason":"{reason}","message":"{message}"}}]}}}}'
    )
    return lambda _: Answer(status, (("Content-Type", "application/json; charset=UTF-8"),), body.encode())


GCS_INTERNAL = gcs_error(500, "backendError", "Internal Server Error")
GCS_UNAVAILABLE = gcs_error(503, "backendError", "Backend Error")
GCS_RATE = gcs_error(429, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations.")
GCS_DENIED = gcs_error(403, "forbidden", "The caller does not have storage.objects.create access.")
GCS_UNAUTHORISED = gcs_error(401, "authError", "Invalid Credentials")
GCS_NO_BUCKET = gcs_error(404, "notFound", "The specified bucket does not exist.")


def without_condition(sign: Callable[[Request], Request] = lambda request: request) -> Fault:
    """
    A store that takes no notice of conditions on writes, as many S3 look-alikes.

    `sign` signs the changed request anew, where the store behind looks at that.
    """

    def fault(exchange: Exchange) -> None:
        request = exchange.request
        headers = {name: value for name, value in request.headers.items() if name.lower() != "if-none-match"}
        target = request.target.replace("ifGenerationMatch=0", "x=0")
        if (headers, target) == (request.headers, request.target):
            none(exchange)
            return
        changed = Request(request.method, target, headers, request.body)
        exchange.reply(exchange.forward(sign(changed)))

    return fault


# -- schedules -------------------------------------------------------------------------------------------------------


class Seeded:
    """
    Each request meets with one of `mix` (a fault and how many of a thousand requests it hits), by a die of this seed.

    The die is shared by the client's threads, so which request is hit also depends on their order.
    """

    def __init__(self, seed: int, mix: Mapping[Fault, int]) -> None:
        assert sum(mix.values()) <= 1000
        self._rng = random.Random(seed)
        self._faults = [*mix, none]
        self._weights = [*mix.values(), 1000 - sum(mix.values())]
        self._lock = threading.Lock()

    def __call__(self, _: Request) -> Fault:
        with self._lock:
            return self._rng.choices(self._faults, self._weights)[0]


class Once:
    """The first `times` requests that match meet with a fault, all others with none."""

    def __init__(self, fault: Fault, matches: Callable[[Request], bool], times: int = 1) -> None:
        self._fault = fault
        self._matches = matches
        self.left = times
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault:
        with self._lock:
            if not self.left or not self._matches(request):
                return none
            self.left -= 1
            return self._fault


# -- the proxy -------------------------------------------------------------------------------------------------------


@dataclass
class FaultProxy:
    """
    Listens on a port of its own from `with` on. `fate` chooses what each request meets with.

    `seen` has every request with the status that the client got, 0 for none.
    """

    upstream: str
    fate: Fate = field(default=lambda _: none)
    seen: list[tuple[Request, int]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        proxy = self

        class Faulty(_Handler):
            def answer(self, request: Request) -> None:
                proxy.fate(request)(Exchange(proxy, self, request))

        self._server = Server(("127.0.0.1", 0), Faulty)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def record(self, request: Request, status: int) -> None:
        with self._lock:
            self.seen.append((request, status))

    def count(self, matches: Callable[[Request], bool] = lambda _: True) -> int:
        """How many requests came."""
        with self._lock:
            return sum(matches(request) for request, _ in self.seen)

    def forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=UPSTREAM_TIMEOUT_S)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in OF_ONE_HOP:
                    connection.putheader(name, value)
            if request.body or request.method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body or None)
            response = connection.getresponse()
            body = response.read()
            headers = tuple((name, value) for name, value in response.getheaders() if name.lower() not in OF_ONE_HOP)
            return Answer(response.status, headers, body)
        finally:
            connection.close()


class _Handler(Handler):
    timeout = UPSTREAM_TIMEOUT_S

    def answer(self, request: Request) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        body = b"".join(self._chunks()) if "chunked" in self.headers.get("Transfer-Encoding", "") else self._sized()
        with suppress(ConnectionError, BrokenPipeError):
            self.answer(Request(self.command, self.path, dict(self.headers.items()), body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _serve

    def _sized(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
