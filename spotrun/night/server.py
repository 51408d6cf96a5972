"""
Answers the HTTP requests to a night's runner on Cloud Run. Cloud Run authenticates the caller, and then forwards one
request at a time.

    POST /    {"kind": "tick"}    an event, as function.py describes it; the reply is 200 with the result, or 500 with
                                  the error

Cloud Scheduler sends the time at which the call was due in a header, and repeats a call that is not answered with 200.
https://cloud.google.com/run/docs/container-contract
https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs#HttpTarget
"""

from __future__ import annotations

import json
import os
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from spotrun.errors import SpotrunError
from spotrun.night.function import handler

DUE_AT = "X-CloudScheduler-ScheduleTime"
"""The header with the time at which a call was due. A repeated call has the same time in it."""
_EVENT_MAX_BYTES = 1 << 16


class Reply(NamedTuple):
    status: int
    body: dict[str, Any]


def reply_to(text: bytes, due_at: str | None) -> Reply:
    try:
        event = json.loads(text or b"{}")
        if due_at is not None:
            event = {"due": due_at, **event}
        return Reply(200, handler(event))
    except SpotrunError as error:
        print(error.one_line, flush=True)
        return _failed(error, error.one_line)
    except Exception as error:  # noqa: BLE001  the log has to show where it was; the next call begins afresh
        traceback.print_exc()
        return _failed(error, str(error))


def _failed(error: Exception, words: str) -> Reply:
    return Reply(500, {"errorType": type(error).__name__, "errorMessage": words})


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0
    """
    Maximum seconds that a caller may take to send its request. Without this limit, a caller that sends nothing would
    block all following callers.
    """

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), _EVENT_MAX_BYTES)
        reply = reply_to(self.rfile.read(length), self.headers.get(DUE_AT))
        body = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: Cloud Run logs each call itself."""


def main() -> None:
    with HTTPServer(("", int(os.environ["PORT"])), _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
