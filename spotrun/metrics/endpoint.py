"""
Publishes the metrics of `spotrun metrics`: on standard output, in a file, or at an address that Prometheus scrapes.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import Metric, make_wsgi_app
from prometheus_client.registry import Collector, CollectorRegistry

from spotrun.errors import SpecInvalid, SpotrunError, StoreError
from spotrun.metrics.figures import Reading, families, open_metrics, prometheus_text
from spotrun.metrics.watched_runs import WatchedRuns
from spotrun.store.atomic_write import write_atomically
from spotrun.units import count_of, format_duration, shown_lines

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

FRESH_FOR_S = 15.0
"""
Maximum age, in seconds of system time, at which a reading of the store still answers a scrape. Because readings are
reused, the number of requests to the store does not grow with the number of scrapes.
"""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})", re.ASCII)
_ANY_PORT = ":0"


class Address(NamedTuple):
    host: str
    port: int


def parse(text: str) -> Address:
    """
    Return the host and port in `text`.

    Raises:
        SpecInvalid: `text` is not a host with a port.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        hint = "use --listen 127.0.0.1:9753, or --listen 0.0.0.0:9753 to allow scrapes from other machines too"
        raise SpecInvalid(f"--listen: {text!r} is not HOST:PORT", hint=hint)
    return Address(found[1].strip("[]"), int(found[2]))


def write(watched: WatchedRuns, within: timedelta, textfile: Path | None) -> None:
    """
    Print the metrics. If `textfile` is given, replace this file with them instead, atomically.

    Raises:
        StoreError: the store cannot be read.
        SpotrunError: the file cannot be written.
    """
    reading = watched.read(within)
    _Log().tell(reading)
    if reading.late:
        runs = count_of(reading.late, "run")
        _say(f"{runs} could not be read within {format_duration(within)}; allow more time with --within")
    if textfile is None:
        print(open_metrics(reading), end="")
    else:
        _replace(textfile, prometheus_text(reading))
        print(f"wrote {textfile}: {count_of(len(reading.runs), 'run')}")


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically, because node_exporter may read it at any time (usually as a different user)."""
    try:
        write_atomically(path, text.encode(), mode=0o644)
    except OSError as error:
        hint = "name a file in a folder that you can write to"
        raise SpotrunError(f"cannot write {path}: {error.strerror}", hint=hint) from error


def serve(watched: WatchedRuns, within: timedelta, address: Address) -> None:
    """
    Answer scrapes until a signal ends the command.

    Raises:
        StoreError: the store cannot be read at the start.
        SpotrunError: the command cannot listen at the address.
    """
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(watched, within))
    try:
        server = _Server(address)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)  # most users may not listen on ports below 1024
        hint = "name another port" if taken else "name an address of this machine, like 127.0.0.1"
        raise SpotrunError(f"cannot listen at {address.host}:{address.port}: {error.strerror}", hint=hint) from error
    host = f"[{address.host}]" if ":" in address.host else address.host
    print(f"serving http://{host}:{server.server_port}/metrics; Ctrl-C ends it", flush=True)
    own = own_hosts(address.host, str(server.server_address[0]), [server.server_name, socket.gethostname()])
    server.set_app(_only_for(own, make_wsgi_app(registry)))
    with server:
        server.serve_forever()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, place = found[0]
        super().__init__((str(place[0]), address.port), _SilentHandler)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def own_hosts(listen: str, bound: str, names: Iterable[str]) -> Callable[[str], bool]:
    """
    Return a function that checks the Host header of a request. Otherwise a web page could read the metrics by DNS
    rebinding: the page's name first leads to the page's server, and then to the address of this endpoint. The user's
    browser then sends the endpoint requests with the page's name.

    The endpoint's own hosts are loopback addresses, the host `listen` that the user typed, and the address `bound` that
    it stands for. If `bound` stands for all addresses of this machine, they are also any address, and this machine's
    `names`. Ports are not compared, because they may be forwarded.
    """
    place = ipaddress.ip_address(bound)
    own = {"localhost", listen.lower()} | {name.lower() for name in names if place.is_unspecified}

    def is_own(header: str) -> bool:
        found = _ADDRESS.fullmatch(header) or _ADDRESS.fullmatch(header + _ANY_PORT)
        host = "" if found is None else found[1].strip("[]").lower()
        try:
            asked = ipaddress.ip_address(host)
        except ValueError:
            return host in own
        return asked.is_loopback or asked == place or place.is_unspecified

    return is_own


def _only_for(is_own: Callable[[str], bool], app: WSGIApplication) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if is_own(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"403: this is not the name of this endpoint; use the address in --listen, or name this host there\n"]

    return answer


class ScrapeCollector(Collector):
    """
    Answers scrapes. Each scrape reads the store. But if the last reading is still fresh, or if the store is
    unavailable, the scrape gets the last reading.
    """

    def __init__(self, watched: WatchedRuns, within: timedelta) -> None:
        self._watched = watched
        self._within = within
        self._lock = threading.Lock()
        self._log = _Log()
        self._reading = self._read(None)
        self._read_s = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._read_s >= FRESH_FOR_S:
                self._reading = self._read(self._reading)
                self._read_s = time.monotonic()
            return list(families(self._reading))

    def _read(self, before: Reading | None) -> Reading:
        try:
            reading = self._watched.read(self._within)
        except StoreError as error:
            if before is None:
                raise
            reading = before._replace(reachable=False)
            _say(error.one_line)
        self._log.tell(reading)
        return reading


class _Log:
    """Prints the reason why a run cannot be read, and prints it again only after it has changed."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def tell(self, reading: Reading) -> None:
        for name, why in reading.unreadable.items():
            if self._told.get(name) != why:
                _say(f"{name} cannot be read: {why}")
        self._told = dict(reading.unreadable)


def _say(text: str) -> None:
    print(shown_lines(text), file=sys.stderr, flush=True)
