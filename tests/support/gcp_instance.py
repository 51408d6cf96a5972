"""
An instance of Compute Engine, as far as its account goes: a process that uses stores with the credentials that the
metadata gives it. Google's libraries are as they come.

    with instance(google, email) as one:
        one.ask("gs://spotrun/runs/r-0123456789", "get", "boot/start.sh")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spotrun.errors import SpotrunError
from spotrun.store.opening import open_store
from tests.support.gce_metadata import gce_metadata
from tests.support.google_server import GoogleServer
from tests.support.repository import ROOT

NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody runs: what looks for Google itself finds nothing, at once."""


class Instance:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, uri: str, verb: str, *arguments: Any) -> Any:
        """
        What a store says to this: text for bytes, keys for objects. Of an error its kind and message.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([uri, verb, arguments]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def instance(google: GoogleServer, email: str) -> Iterator[Instance]:
    with gce_metadata(account=email, token=google.token_of(email)) as metadata:
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        environment = {
            **kept,
            "HOME": "/nonexistent",
            "API_ENDPOINT_OVERRIDE": google.url,
            "GCE_METADATA_HOST": metadata.host,
            "GCE_METADATA_IP": metadata.host,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-m", "tests.support.gcp_instance"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                yield Instance(process)
            finally:
                process.kill()


def _done(uri: str, verb: str, arguments: list[Any]) -> Any:
    if verb.startswith("put"):
        arguments[1] = arguments[1].encode()
    try:
        answer = getattr(open_store(uri), verb)(*arguments)
    except SpotrunError as error:
        return [type(error).__name__, error.message]
    if verb == "list":
        return [each.key for each in answer]
    return answer.decode() if isinstance(answer, bytes) else answer


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_done(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
