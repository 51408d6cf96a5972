"""
Publishes the metrics of `spotrun metrics`: on standard output, in a file, or at an address that Prometheus scrapes.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric, start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from spotrun.errors import SpecInvalid, SpotrunError, StoreError
from spotrun.metrics.figures import Reading, families, open_metrics, prometheus_text
from spotrun.metrics.watched_runs import WatchedRuns
from spotrun.store.atomic_write import write_atomically
from spotrun.units import count_of, format_duration, shown_lines

FRESH_FOR_S = 15.0
"""
Maximum age, in seconds of system time, at which a reading of the store still answers a scrape. Because readings are
reused, the number of requests to the store does not grow with the number of scrapes.
"""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})", re.ASCII)


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
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)  # most users may not listen on ports below 1024
        hint = "name another port" if taken else "name an address of this machine, like 127.0.0.1"
        raise SpotrunError(f"cannot listen at {address.host}:{address.port}: {error.strerror}", hint=hint) from error
    host = f"[{address.host}]" if ":" in address.host else address.host
    print(f"serving http://{host}:{server.server_port}/metrics; Ctrl-C ends it", flush=True)
    try:
        thread.join()
    finally:
        server.server_close()


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
