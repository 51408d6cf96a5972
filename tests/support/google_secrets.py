"""
Secret Manager in memory, as far as secrets are read and put there.

    https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets
    https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions

A secret has versions, `latest` is the one that was added last, and only an enabled one has a value for anybody. The
words are those of https://github.com/google-github-actions/get-secretmanager-secrets/issues/268.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import google_crc32c

from tests.support.cel import Resource
from tests.support.gce_answers import Json, RpcRefusal, rpc_refusal
from tests.support.google_api import Asked

METHODS = (
    *(f"secretmanager.projects.secrets.{verb}" for verb in ("addVersion", "create")),
    *(f"secretmanager.projects.secrets.versions.{verb}" for verb in ("access", "disable", "get")),
)
_MADE_AT = "2026-11-01T00:00:00Z"
_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass
class Version:
    data: bytes
    state: str = "ENABLED"


@dataclass
class SecretManager:
    """
    Of one project, which both its id and its number name. `versions` are by the names of their secrets. `checksum` is
    what is told of a value in place of its own, where there is something.
    """

    project: str
    number: str
    versions: dict[str, list[Version]] = field(default_factory=dict)
    checksum: int | None = None

    def put(self, name: str, value: str | bytes) -> None:
        """As a person does it."""
        data = value.encode() if isinstance(value, str) else value
        self.versions.setdefault(name, []).append(Version(data))

    def resource(self, arguments: Mapping[str, str]) -> Resource:
        """How a condition sees what is asked for: https://cloud.google.com/iam/docs/conditions-resource-attributes."""
        name = arguments.get("name") or arguments["parent"]
        kind = "SecretVersion" if "/versions/" in name else "Secret" if "/secrets/" in name else "Project"
        told = re.sub("^projects/[^/]+", f"projects/{self.number}", name)
        return Resource(told, f"secretmanager.googleapis.com/{kind}")

    def answer(self, asked: Asked) -> Json:
        """
        Raises:
            RpcRefusal: it is refused.
        """
        name = asked.arguments.get("name") or asked.arguments["parent"]
        if name.split("/")[1] not in (self.project, self.number):
            raise rpc_refusal(403, f"Permission denied on resource project {name.split('/')[1]}.")
        match asked.method.rpartition(".")[2]:
            case "create":
                return self._create(asked.query.get("secretId", ""), asked.body or {})
            case "addVersion":
                return self._add(name.rpartition("/")[2], asked.body["payload"])
            case "access":
                return self._access(name)
            case "disable":
                _, version = self._found(name)
                version.state = "DISABLED"
        return self._told(name)

    def _create(self, name: str, body: Json) -> Json:
        if not _ID.fullmatch(name) or "replication" not in body:
            raise rpc_refusal(400, "The secret has no id, or no replication.")
        if name in self.versions:
            raise rpc_refusal(409, f"Secret [{self._path(name)}] already exists.")
        self.versions[name] = []
        return {"name": self._path(name), "createTime": _MADE_AT, "replication": body["replication"]}

    def _add(self, name: str, payload: Json) -> Json:
        if name not in self.versions:
            raise rpc_refusal(404, f"Secret [{self._path(name)}] not found.")
        data = _decoded(payload["data"])
        if "dataCrc32c" in payload and int(payload["dataCrc32c"]) != google_crc32c.value(data):
            raise rpc_refusal(400, "The checksum is another one than that of the data.")
        self.versions[name].append(Version(data))
        return self._told(f"{self._path(name)}/versions/latest")

    def _access(self, name: str) -> Json:
        path, version = self._found(name)
        if version.state != "ENABLED":
            raise RpcRefusal(400, "FAILED_PRECONDITION", f"Secret Version [{path}] is in {version.state} state.")
        checksum = google_crc32c.value(version.data) if self.checksum is None else self.checksum
        data = base64.b64encode(version.data).decode()
        return {"name": path, "payload": {"data": data, "dataCrc32c": str(checksum)}}

    def _told(self, name: str) -> Json:
        path, version = self._found(name)
        return {"name": path, "createTime": _MADE_AT, "state": version.state}

    def _found(self, name: str) -> tuple[str, Version]:
        """With its name as it is told: by the number of the project, and by its own."""
        _, _, _, secret, _, version = name.split("/")
        known = self.versions.get(secret, [])
        number = len(known) if version == "latest" else int(version)
        if not 0 < number <= len(known):
            raise rpc_refusal(404, f"Secret [{self._path(secret)}] not found or has no versions.")
        return f"{self._path(secret)}/versions/{number}", known[number - 1]

    def _path(self, secret: str) -> str:
        return f"projects/{self.number}/secrets/{secret}"


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"))
