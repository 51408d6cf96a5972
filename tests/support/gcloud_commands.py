"""
What commands of gcloud ask of Google Cloud: a server that records it, and answers as far as these commands need.

A shell first says what its lines amount to, with a gcloud that writes down its arguments. The real gcloud then gets
them all in one process, because a start takes it a second.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import HttpServer, Reply, Request, as_json
from tests.support.repository import ROOT

GCLOUD = shutil.which("gcloud")
PROJECT_NUMBER = "123456789012"
EDITOR = {
    "role": "roles/editor",
    "members": [f"serviceAccount:{PROJECT_NUMBER}-compute@developer.gserviceaccount.com", "user:owner@example.com"],
}
"""What the policy of a new project says of editors."""
VIEWER = {"role": "roles/storage.legacyObjectReader", "members": ["projectViewer:acme-training"]}
"""What the policy of a new bucket says of viewers."""
_APIS = ("CLOUDRESOURCEMANAGER", "COMPUTE", "IAM", "SERVICEUSAGE", "STORAGE")
_SAYS_ITS_ARGUMENTS = f"""#!/bin/sh
printf '%s\\037' "$@" >> "$SAID"
printf '\\036' >> "$SAID"
[ "$1 $2" != "projects describe" ] || echo {PROJECT_NUMBER}
"""
_IN_ONE_PROCESS = """
import json, os, sys
sys.path[:0] = [os.path.join(sys.argv[1], "third_party"), sys.argv[1]]
from googlecloudsdk import gcloud_main
gcloud = gcloud_main.CreateCLI([])
for arguments in json.load(sys.stdin):
    gcloud.Execute(arguments)
"""


class Asked(NamedTuple):
    method: str
    path: str
    query: Mapping[str, list[str]]
    body: Mapping[str, Any]


class Recorded(NamedTuple):
    """`policies` are those that are left in the end, by the paths of what they are for."""

    asked: Sequence[Asked]
    policies: Mapping[str, Mapping[str, Any]]


def arguments(script: str, folder: Path) -> list[list[str]]:
    """Of each gcloud that a script of bash starts in the repository's root."""
    gcloud, said = folder / "bin" / "gcloud", folder / "said"
    gcloud.parent.mkdir()
    gcloud.write_text(_SAYS_ITS_ARGUMENTS)
    gcloud.chmod(0o755)
    environment = {**os.environ, "PATH": f"{gcloud.parent}:{os.environ['PATH']}", "SAID": str(said)}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [command.split("\x1f")[:-1] for command in said.read_text().split("\x1e")[:-1]]


def recorded(commands: Sequence[Sequence[str]], folder: Path) -> Recorded:
    """What the real gcloud asks for when it is given these arguments."""
    recorder = _Recorder()
    with HttpServer(recorder.answer) as server:
        environment = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{server.url}/" for api in _APIS}
        done = executed(commands, folder, {**environment, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"})
        assert done.returncode == 0, done.stdout + done.stderr
        return Recorded(recorder.asked, recorder.policies)


def executed(
    commands: Sequence[Sequence[str]], folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The real gcloud with these arguments, one after another until one fails. `variables` say whom it asks."""
    assert GCLOUD is not None
    environment = {name: text for name, text in os.environ.items() if not name.startswith("CLOUDSDK_")}
    environment |= {
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_CONFIG": str(folder / "config"),
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "GCE_METADATA_ROOT": "127.0.0.1:9",  # otherwise it looks for one of Google's
        **variables,
    }
    kit = Path(GCLOUD).resolve().parents[1]
    own = kit / "platform" / "bundledpythonunix" / "bin" / "python3"
    python = own if own.exists() else sys.executable
    command = [str(python), "-I", "-S", "-B", "-c", _IN_ONE_PROCESS, str(kit / "lib")]
    return subprocess.run(
        command, input=json.dumps(commands), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


class _Recorder:
    """Answers as far as these commands need."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.policies: dict[str, Mapping[str, Any]] = {}

    def answer(self, request: Request) -> Reply:
        url = urlsplit(request.target)
        asked = Asked(request.verb, url.path, parse_qs(url.query), json.loads(request.body or b"{}"))
        self.asked.append(asked)
        return as_json(self._found(asked))

    def _found(self, asked: Asked) -> Mapping[str, Any]:
        policies = self.policies
        if policy := re.fullmatch(r"/v1/(projects/[^/:]+):(get|set)IamPolicy", asked.path):
            if policy[2] == "set":
                policies[policy[1]] = asked.body["policy"]
            return policies.get(policy[1], {"version": 1, "etag": "BwXhqDVOUwI=", "bindings": [EDITOR]})
        if policy := re.fullmatch(r"/storage/v1/(b/[^/]+)/iam", asked.path):
            if asked.method == "PUT":
                policies[policy[1]] = asked.body
            return policies.get(policy[1], {"version": 1, "etag": "CAE=", "bindings": [VIEWER]})
        if asked.path.endswith(":batchEnable"):
            return {"name": "operations/enabled", "done": True, "response": {}}
        return {"projectNumber": PROJECT_NUMBER} if asked.path.startswith("/v1/projects/") else {}
