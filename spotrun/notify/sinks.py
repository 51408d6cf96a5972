"""
Receivers of notifications: webhooks and commands. Each call to `deliver` makes one try, within a time limit. The
delivery worker retries.

A sink raises `Undelivered` if another try might succeed, and `Refused` if no other try can succeed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from spotrun.errors import Mistakes, SpecInvalid
from spotrun.spec.model import NotifySpec, RunSpec

TRY_S = 10.0
"""Maximum seconds of system time for one webhook call, whatever the server does."""
COMMAND_S = 30.0
"""
Maximum seconds of system time for a command. After that, the command and all processes that it started are killed.
"""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Undelivered(Exception):
    """This try failed. The message never contains the address."""


class Refused(Undelivered):
    """This try failed, and any further try would fail too."""


class Sink(Protocol):
    name: str
    """The sink's name in messages. The name contains no secret."""

    def deliver(self, body: bytes, id: str) -> None:
        """Deliver one JSON object. If that fails, raise Undelivered or Refused (see the top of this module)."""

    def abandon(self) -> None:
        """Stop a delivery that is in progress, and end all processes that it has started."""


class Webhook:
    """
    Sends JSON by POST. It does not follow redirects, because the address is a secret, which no other server may learn.
    """

    def __init__(self, variable: str, address: str, try_s: float = TRY_S) -> None:
        self.name = f"webhook ${variable}"
        self._address = _read_address(variable, address)
        self._try_s = try_s

    def deliver(self, body: bytes, id: str) -> None:
        try:
            status = self._post(body, id)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Undelivered(f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'no answer'}") from None
        if 200 <= status < 300:
            return
        answer = f"the server answered {status}"
        raise Undelivered(answer) if status in (408, 425, 429) or status >= 500 else Refused(answer)

    def abandon(self) -> None:
        return  # harmless: the connection ends with this process

    def _post(self, body: bytes, id: str) -> int:
        address = self._address
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=self._try_s)
        # The socket's timeout limits only the time between two bytes. A server that sends a byte now and then could
        # keep the connection open forever, so a timer closes it.
        cut = threading.Timer(self._try_s, _cut, (connection,))
        cut.daemon = True
        cut.start()
        try:
            path = address.path or "/"
            headers = {"Content-Type": "application/json", "Idempotency-Key": id, "User-Agent": "spotrun"}
            connection.request("POST", f"{path}?{address.query}" if address.query else path, body, headers)
            return connection.getresponse().status
        finally:
            cut.cancel()
            connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    connected = connection.sock
    if isinstance(connected, socket.socket):
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)


class _Unusable(Exception):
    """Raised if an address cannot be used. The message does not contain the address."""


_NO_HTTPS = "no https:// address"


def _read_address(variable: str, address: str) -> SplitResult:
    try:
        return _parts_of(address)
    except _Unusable as what:
        hint = f"export {variable}=https://…, with the address that the service gave you"
        raise SpecInvalid(f"notify: ${variable} holds {what}", hint=hint) from None


def _parts_of(address: str) -> SplitResult:
    try:
        parts = urlsplit(address.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise _Unusable("no address") from None
    safe = parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)
    if not host or not safe or any(not 32 < ord(character) < 127 for character in address.strip()):
        raise _Unusable(_NO_HTTPS)
    if parts.username is not None:
        raise _Unusable("an address with a user name before its host, which spotrun does not support")
    return parts


class TimeLimitedSink:
    """Limits the time of each delivery to `within_s`, even if the system hangs while it looks up a name or connects."""

    def __init__(self, inner: Sink, within_s: float) -> None:
        self.name = inner.name
        self._inner = inner
        self._within_s = within_s

    def deliver(self, body: bytes, id: str) -> None:
        faults: list[Undelivered] = []

        def tried() -> None:
            try:
                self._inner.deliver(body, id)
            except Undelivered as fault:
                faults.append(fault)

        thread = threading.Thread(target=tried, daemon=True, name=self.name)
        thread.start()
        thread.join(self._within_s)
        if thread.is_alive():
            self._inner.abandon()
            raise Undelivered(f"no answer within {self._within_s:g} s")
        if faults:
            raise faults[0]

    def abandon(self) -> None:
        self._inner.abandon()


class Command:
    """Runs a shell command on the runner's machine, with the JSON as its standard input."""

    def __init__(self, command: str, number: int, limit_s: float = COMMAND_S) -> None:
        self.name = f"command {number}"
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    def deliver(self, body: bytes, id: str) -> None:
        process = self._process = self._start(id)
        if self._abandoned:
            _kill(process)
        try:
            process.communicate(body, timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            raise Undelivered(f"did not finish within {self._limit_s:g} s, and was killed") from None
        finally:
            self._process = None
            _kill(process)
            process.wait()
        if process.returncode != 0:
            raise Undelivered(f"ended with {process.returncode}")

    def abandon(self) -> None:
        self._abandoned = True
        if (process := self._process) is not None:
            _kill(process)

    def _start(self, id: str) -> subprocess.Popen[bytes]:
        nothing = subprocess.DEVNULL
        try:
            return subprocess.Popen(
                # If this process is killed, timeout(1) still ends the command.
                ["timeout", "-k", "1", f"{self._limit_s + 1:g}", "/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
                env=os.environ | {"SPOTRUN_NEWS_ID": id},
            )
        except OSError as error:
            raise Undelivered(f"could not be started: {error.strerror}") from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all processes that it started, including those in the background."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def open_sink(wanted: NotifySpec, number: int, environment: Mapping[str, str] = os.environ) -> Sink:
    """
    Return the sink that `wanted` names.

    Raises:
        SpecInvalid: the sink's environment variable is not set on this machine, or does not contain an address.
    """
    if wanted.command is not None:
        return Command(wanted.command, number)
    variable = wanted.variable
    assert variable is not None
    if not environment.get(variable):
        raise SpecInvalid(f"notify: ${variable} is not set on this machine", hint=f"export {variable}=https://…")
    return Webhook(variable, environment[variable])


def require_https(variable: str, address: str, place: str, hint: str) -> None:
    """
    Check the address of a webhook, for a runner that does not run on the user's machine.

    Raises:
        SpecInvalid: the address is not a usable https:// address. The message does not contain it.
    """
    try:
        if _parts_of(address).scheme != "https":
            raise _Unusable(_NO_HTTPS)
    except _Unusable as what:
        raise SpecInvalid(f"{place}, the address for ${variable}, is {what}", hint=hint, key=("notify",)) from None


def require_sinks(spec: RunSpec) -> None:
    """
    Raise SpecInvalid if a receiver under `notify` cannot be used from this machine. Called before a run is created.
    """
    mistakes = Mistakes()
    for number, wanted in enumerate(spec.notify):
        with mistakes:
            try:
                open_sink(wanted, number)
            except SpecInvalid as error:
                error.key = ("notify", number, "webhook")
                raise
    mistakes.refuse()
