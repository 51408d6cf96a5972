"""
Parses the name of a container image in `resources.image_id`: `docker:HOST/REPO/NAME:TAG@sha256:…`.

Names have the syntax that registries use (https://github.com/distribution/reference). A tag may later refer to another
image. So the launch looks up the tag's digest and adds it to the name, and the run uses the digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from spotrun.units import Unreadable, shown

PREFIX = "docker:"
USERNAME, PASSWORD, SERVER = (f"SKYPILOT_DOCKER_{name}" for name in ("USERNAME", "PASSWORD", "SERVER"))
"""The variables with the login for a private registry. SkyPilot uses the same names."""
CREDENTIALS = (USERNAME, PASSWORD, SERVER)
HUB = "docker.io"
"""The host of an image whose name does not begin with a host."""
_OFFICIAL = "library"
"""The owner of images on Docker Hub whose names have no owner."""
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*)(?::[0-9]{{1,5}})?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
PATTERN = rf"^{PREFIX}(?:{_HOST}/)?{_PATH}(?::{_TAG})?(?:@{_DIGEST})?$"
NAME_MAX = 255
LIKE = "docker:REPO/NAME:TAG or docker:REPO/NAME@sha256:…"
LOOPBACK = ("localhost", "127.0.0.1")


class Image(NamedTuple):
    """
    The parts of an image's name. `host` is the registry's host; it is Docker Hub's if the name does not begin with a
    host. At least one of `tag` and `digest` is set.
    """

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def pinned(self) -> str:
        """The name under which an engine pulls the image: with the digest, and without a tag."""
        assert self.digest
        return f"{self.name}@{self.digest}"

    @property
    def is_local(self) -> bool:
        """
        True if the registry is on this machine. Such a registry is reached by HTTP, because it has no certificate.
        """
        return self.host.partition(":")[0] in LOOPBACK

    def with_digest(self, digest: str) -> Image:
        return self._replace(digest=digest)

    def __str__(self) -> str:
        """Return the image as `resources.image_id` names it."""
        tag, digest = self.tag and f":{self.tag}", self.digest and f"@{self.digest}"
        return f"{PREFIX}{self.name}{tag}{digest}"


def read_image(value: object) -> str:
    """
    Return the name of a container image.

    Raises:
        Unreadable: `image_of` cannot parse the name.
    """
    if not isinstance(value, str) or not value.strip():
        raise Unreadable("must be the name of a container image", f"write {LIKE}")
    text = value.strip()
    image_of(text)
    return text


def image_of(text: str, server: str = "") -> Image:
    """
    Parse the name of an image. If the name has no host, the image is on `server`; without `server`, on Docker Hub.

    Raises:
        Unreadable: `text` is not the name of a container image.
    """
    if not text.startswith(PREFIX):
        machine = "the key for a machine image is aws.image_id or gcp.image"
        raise Unreadable(f"{shown(text)!r} is not a Docker image; {machine}", f"write {LIKE}")
    named, at, digest = text.removeprefix(PREFIX).partition("@")
    if not named:
        raise Unreadable("docker: names no image", f"write {LIKE}")
    if at and not re.fullmatch(_DIGEST, digest):
        raise Unreadable(f"{shown(digest)!r} is not a digest", "write @sha256: and its 64 digits in small letters")
    host, path = _split(named)
    path, colon, tag = path.partition(":")
    if re.search("[A-Z]", path):
        raise Unreadable(
            f"{shown(path)!r} has capital letters", f"write {path.lower()}: registries know only small letters"
        )
    if not re.fullmatch(_PATH, path) or len(path) > NAME_MAX or (host and not re.fullmatch(_HOST, host)):
        raise Unreadable(f"{shown(named)!r} is not the name of an image", f"write {LIKE}")
    if colon and not re.fullmatch(_TAG, tag):
        raise Unreadable(f"{shown(tag)!r} is not a tag", f"write {LIKE}")
    if not tag and not digest:
        raise Unreadable(f"{shown(named)!r} has neither tag nor digest", f"write {LIKE}")
    if not host:
        host = server or HUB
    if host == HUB and "/" not in path:
        path = f"{_OFFICIAL}/{path}"
    return Image(host, path, tag, digest)


def _split(named: str) -> tuple[str, str]:
    """
    Split a name into the host at its beginning and the path after it. The first part of a name is a host if it contains
    a dot or a port, or is localhost. The host is "" if the name has none.
    """
    first, slash, rest = named.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return (first, rest) if is_host else ("", named)


def refused_login(envs: Mapping[str, str], secrets: Mapping[str, str]) -> Unreadable | None:
    """Return a problem if the job's variables and secrets cannot be a login to the image's registry; otherwise None."""
    if PASSWORD in envs:
        reason = "is a password, and envs are written into the ledger"
        return Unreadable(reason, f"write secrets: [{PASSWORD}]", at=("envs", PASSWORD))
    if SERVER in secrets:
        advice = f"write it under envs: {{{SERVER}: registry.example.org}}"
        return Unreadable("is not a secret", advice, at=("secrets", SERVER))
    if (server := envs.get(SERVER)) is not None and not re.fullmatch(_HOST, server):
        return Unreadable("is not a host", "write it like registry.example.org:5000", at=("envs", SERVER))
    named = USERNAME in envs or USERNAME in secrets
    if named != (PASSWORD in secrets):
        missing, where = (PASSWORD, "secrets") if named else (USERNAME, "envs")
        reason = f"the login for a registry needs a name and a password, and {missing} is missing"
        return Unreadable(reason, f"name it under {where}", at=("resources", "image_id"))
    return None
