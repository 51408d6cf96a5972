"""A connection to an instance's metadata service. Each cloud's `notices.py` interprets the answers."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import NamedTuple

from spotrun.clouds.notices import Blind

_BODY_MAX_BYTES = 4096


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: http.client.HTTPMessage


class MetadataConnection:
    """
    A connection that is kept between requests and reopened after a failure. It follows no redirects and uses no proxy.
    """

    def __init__(self, host: str, port: int | None) -> None:
        self._connection = http.client.HTTPConnection(host, port)

    def ask(self, method: str, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """
        Return the service's answer, whatever its status. `timeout_s` is in system time.

        Raises:
            Blind: the service does not answer, or its answer is not HTTP.
        """
        try:
            self._wait_for(timeout_s)
            self._connection.request(method, path, headers=dict(headers))
            response = self._connection.getresponse()
            body = response.read(_BODY_MAX_BYTES)
            if response.length:
                self._connection.close()  # the rest of the answer is not needed
            return Answer(response.status, body, response.headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise Blind(f"{method} {path}: {type(error).__name__} {error}") from error

    def _wait_for(self, timeout_s: float) -> None:
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
