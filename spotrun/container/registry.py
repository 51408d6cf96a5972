"""
Looks up a container image in its registry: its digest, and whether this user may pull it.

The protocol is https://github.com/opencontainers/distribution-spec; tokens are obtained according to
https://distribution.github.io/distribution/spec/auth/token. Only the image's manifest is read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from spotrun.container.hosts import AWS, RIGHTS, cloud_behind
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.spec.image import HUB, LOOPBACK, PASSWORD, USERNAME, Image

ANSWERS_WITHIN_S = 20.0
"""Maximum seconds of system time to wait for a connection to the registry, or for the next bytes of an answer."""
MANIFEST_MAX_BYTES = 4 << 20
"""Maximum bytes of a manifest: every registry must accept manifests up to this size. A larger manifest is refused."""
KEY = ("resources", "image_id")
_HUB_API = "registry-1.docker.io"
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class Credentials(NamedTuple):
    """
    A login to a registry. It belongs to a user, or, if `of_cloud` names a cloud, to this machine's identity in that
    cloud. A login is never printed.
    """

    username: str
    password: str
    of_cloud: str = ""

    @property
    def encoded(self) -> str:
        """The form that HTTP and engines expect: `user:password` in base64."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def __repr__(self) -> str:
        return "Credentials(…)"


class ImageRefused(SpecInvalid):
    """The image does not exist, or this user has no right to pull it. A retry would not help."""


class NotForThisUser(ImageRefused):
    """
    A cloud's registry refuses this machine's identity. A retry may help if the identity got its rights only recently;
    another identity may have the right to pull the image.
    """


class RegistryUnavailable(SpotrunError):
    """The registry gives no usable answer: for example, it is down, or this machine cannot reach it."""


class RegistryImage(NamedTuple):
    """An image in its registry. `size_bytes` is the size of a pull; None if that depends on the pulling machine."""

    digest: str
    size_bytes: int | None


def find(image: Image, credentials: Credentials | None, machine: str = "x86_64") -> RegistryImage:
    """
    Return the digest and size of the image that the registry currently has under this name. Check that the image can
    run on processors of the architecture `machine`.

    Raises:
        ImageRefused: the image does not exist, this user has no right to pull it, or it is for other processors.
        RegistryUnavailable: the registry gives no usable answer.
    """
    kind, data = _ManifestRequest(image, credentials).manifest()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if image.digest and digest != image.digest:
        raise RegistryUnavailable(f"{image.host} answers with {digest}, but {image.digest} was requested")
    try:
        manifest = json.loads(data)
        machines = [*_machines(manifest)]
        size_bytes = None if machines else sum(int(layer["size"]) for layer in manifest["layers"])
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = f"{image} is not a container image, but {kind}"
        raise ImageRefused(reason, hint="name another image", key=KEY) from None
    wanted = _MACHINES.get(machine, machine)
    if machines and wanted not in machines:
        reason = f"{image} is for {', '.join(sorted({*machines}))}, but instances are {wanted}"
        raise ImageRefused(reason, hint=f"build it for linux/{wanted} too", key=KEY)
    return RegistryImage(digest, size_bytes)


def this_machine() -> str:
    return platform.machine()


def _machines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the processor architectures for which `manifest` lists images; nothing if it describes a single image."""
    for each in manifest.get("manifests", ()):
        found = each.get("platform", {})
        if found.get("os") == "linux":
            yield found.get("architecture", "")


class _ManifestRequest:
    def __init__(self, image: Image, credentials: Credentials | None) -> None:
        self._image = image
        self._credentials = credentials
        host = _HUB_API if image.host == HUB else image.host
        self._url = f"{_scheme(image)}://{host}/v2/{image.path}/manifests/{image.digest or image.tag}"

    def manifest(self) -> tuple[str, bytes]:
        """Return the media type and the bytes of the manifest."""
        try:
            return self._get("")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise self._meant(error) from None
            authorization = self._authorization(error.headers.get_all("WWW-Authenticate") or [])
        try:
            return self._get(authorization)
        except urllib.error.HTTPError as error:
            raise self._meant(error) from None

    def _get(self, authorization: str) -> tuple[str, bytes]:
        return self._ask(self._url, authorization, ", ".join(_KINDS))

    def _ask(self, url: str, authorization: str, accept: str) -> tuple[str, bytes]:
        request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "spotrun"})  # noqa: S310
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as answer:  # noqa: S310  http or https
                data = answer.read(MANIFEST_MAX_BYTES + 1)
                kind = answer.headers.get_content_type()
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            hint = "try again, or write the digest: docker:REPO/NAME@sha256:…"
            raise RegistryUnavailable(f"the registry {self._image.host} gives no answer: {reason}", hint=hint) from None
        if len(data) > MANIFEST_MAX_BYTES:
            raise RegistryUnavailable(f"{self._image.host} answers with more than {MANIFEST_MAX_BYTES >> 20} MiB")
        return kind, data

    def _authorization(self, challenges: list[str]) -> str:
        """Return the Authorization header that answers a registry's challenges."""
        for challenge in challenges:
            scheme, _, rest = challenge.strip().partition(" ")
            if scheme.lower() == "bearer":
                return f"Bearer {self._token(dict(_PARAMETER.findall(rest)))}"
            if scheme.lower() == "basic":
                if self._credentials is None:
                    raise self._wants_login()
                return f"Basic {self._credentials.encoded}"
        raise RegistryUnavailable(f"the registry {self._image.host} requires an unknown kind of login")

    def _token(self, challenge: Mapping[str, str]) -> str:
        realm = urlsplit(challenge.get("realm", ""))
        if realm.scheme != "https" and not (realm.scheme == "http" and realm.hostname in LOOPBACK):
            raise RegistryUnavailable(
                f"the registry {self._image.host} gives no safe address from which to get a token"
            )
        query = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        url = f"{realm.geturl()}{'&' if realm.query else '?'}{urlencode(query)}"
        login = "" if self._credentials is None else f"Basic {self._credentials.encoded}"
        try:
            _, data = self._ask(url, login, "application/json")
            answer = json.loads(data)
            return str(answer.get("token") or answer["access_token"])
        except urllib.error.HTTPError as error:
            raise self._meant(error) from None
        except (ValueError, LookupError, AttributeError):
            raise RegistryUnavailable(f"the registry {self._image.host} sent a token that cannot be read") from None

    def _meant(self, error: urllib.error.HTTPError) -> SpotrunError:
        image = self._image
        if error.code in (401, 403):
            if self._credentials is None:
                return self._wants_login()
            if of_cloud := self._credentials.of_cloud:
                who = f"this identity of {'AWS' if of_cloud == AWS else 'Google Cloud'}"
                what = f"{image.host} does not let {who} pull {image.path}"
                return NotForThisUser(what, hint=f"correct the name, or {RIGHTS[of_cloud]}", key=KEY)
            return ImageRefused(
                f"{image.host} does not let the user {self._credentials.username} pull {image.path}",
                hint=f"check {USERNAME} and {PASSWORD}, and whether that user is allowed to pull the image",
                key=KEY,
            )
        if error.code == 404:
            what = f"the digest {image.digest}" if image.digest else f"the tag {image.tag}"
            return ImageRefused(
                f"{image.host} has no {image.path} with {what}",
                hint="check the image's name in the registry",
                key=KEY,
            )
        return RegistryUnavailable(f"the registry {image.host} answered {error.code}")

    def _wants_login(self) -> ImageRefused:
        what = f"{self._image.host} has no public image {self._image.path}"
        if cloud_behind(self._image.host):
            return NotForThisUser(what, hint="correct the name, or log in to the registry's cloud", key=KEY)
        return ImageRefused(
            what,
            hint=f"correct the name, or write envs: {{{USERNAME}: NAME}} and secrets: [{PASSWORD}]",
            key=KEY,
        )


def _scheme(image: Image) -> str:
    return "http" if image.is_local else "https"
