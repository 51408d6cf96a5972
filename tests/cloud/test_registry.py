"""What a launch asks a registry, and what it says if there is no such image, or not for this user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from spotrun.container import registry
from spotrun.container.registry import Credentials, ImageRefused, RegistryImage, RegistryUnavailable, find
from spotrun.runs.pinning import with_image
from spotrun.secrets.reference import SecretUnreadable
from spotrun.spec.image import PASSWORD, USERNAME, Image, image_of
from spotrun.spec.model import ResourcesSpec, RunSpec
from tests.support.engine_stand_in import StandIn
from tests.support.registry_server import USER, WORD, RegistryServer

ME = Credentials(USER, WORD)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[RegistryServer]:
    with RegistryServer(getattr(request, "param", "")) as server:
        yield server


def image(server: RegistryServer, tag: str = "1", digest: str = "") -> Image:
    return Image(server.host, "team/image", tag, digest)


def test_a_tag_has_a_digest_and_a_size(server: RegistryServer) -> None:
    digest = server.put_image("team/image:1", 1_000, 24)
    assert find(image(server), None) == RegistryImage(digest, 1_024)
    assert find(image(server, "", digest), None).digest == digest
    assert find(image(server, "gone", digest), None).digest == digest  # what counts is the digest


@pytest.mark.parametrize("server", ["basic", "bearer"], indirect=True)
def test_login_gives_access_to_private_images(server: RegistryServer) -> None:
    digest = server.put_image("team/image:1", 1)
    assert find(image(server), ME).digest == digest
    with pytest.raises(ImageRefused, match="does not let the user me pull") as caught:
        find(image(server), Credentials(USER, "another word"))
    assert "another word" not in str(caught.value)
    with pytest.raises(ImageRefused, match="has no public") as caught:
        find(image(server), None)
    assert PASSWORD in str(caught.value.hint)
    assert "another word" not in repr(Credentials(USER, "another word"))


def test_missing_image_is_reported_by_its_name(server: RegistryServer) -> None:
    with pytest.raises(ImageRefused, match=r"has no team/image with the tag 1"):
        find(image(server), None)
    with pytest.raises(ImageRefused, match=r"with the digest sha256:0{64}"):
        find(image(server, "1", f"sha256:{'0' * 64}"), None)


def test_an_index_is_for_some_processors(server: RegistryServer) -> None:
    digest = server.put_index("team/image:1", "arm64", "amd64")
    assert find(image(server), None) == RegistryImage(digest, None)
    assert find(image(server), None, "aarch64").digest == digest
    server.put_index("team/image:1", "arm64")
    with pytest.raises(ImageRefused, match="is for arm64, but instances are amd64"):
        find(image(server), None)


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b'{"layers": [{}]}', b'{"manifests": [3]}'])
def test_answer_that_is_no_image_is_refused(server: RegistryServer, content: bytes) -> None:
    server.put("team/image:1", content, "text/html")
    with pytest.raises(ImageRefused, match="is not a container image, but text/html"):
        find(image(server), None)


def test_a_registry_that_gives_no_answer_refuses_nothing(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put_image("team/image:1", 1)
    server.fails = 503
    with pytest.raises(RegistryUnavailable, match="answered 503"):
        find(image(server), None)
    with pytest.raises(RegistryUnavailable, match="gives no answer"):
        find(Image("127.0.0.1:1", "a", "1"), None)
    server.fails = None
    monkeypatch.setattr(registry, "MANIFEST_MAX_BYTES", 5)
    with pytest.raises(RegistryUnavailable, match="more than"):
        find(image(server), None)


def test_a_registry_that_answers_with_another_image_is_not_believed(server: RegistryServer) -> None:
    digest = server.put_image("team/image:1", 1)
    kind, data = server._manifests[f"/v2/team/image/manifests/{digest}"]
    server._manifests[f"/v2/team/image/manifests/{digest}"] = (kind, data + b" ")
    with pytest.raises(RegistryUnavailable, match="answers with sha256"):
        find(image(server, "1", digest), None)


# -- a launch ----------------------------------------------------------------------------------------------------------


def spec(text: str, cloud: Literal["local", "aws"] = "aws", *, login: bool = False) -> RunSpec:
    keys = {"envs": {USERNAME: USER}, "secrets": [PASSWORD]} if login else {}
    resources = {"image_id": text, "cloud": cloud}
    job = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "checkpoint": {"uri": "s3://bucket/runs"}}
    return RunSpec.model_validate(job | keys | {"resources": resources})


def test_a_launch_writes_the_digest_into_the_job(server: RegistryServer) -> None:
    digest = server.put_image("team/image:1", 2_000_000)
    found, notes = with_image(spec(f"docker:{server.host}/team/image:1"), {})
    assert found.image == image(server, "1", digest)
    assert notes == [f"image {server.host}/team/image is {digest}, 2 MB to pull"]
    assert with_image(found, {})[0] == found
    untouched = found.model_copy(update={"resources": ResourcesSpec()})
    assert with_image(untouched, {}) == (untouched, [])


def test_unreachable_registry_leaves_a_digest_as_it_is_and_refuses_a_tag(server: RegistryServer) -> None:
    server.fails = 500
    pinned = spec(f"docker:{server.host}/team/image@sha256:{'0' * 64}")
    found, (note,) = with_image(pinned, {})
    assert found == pinned
    assert note.startswith("the image was not checked: the registry")
    with pytest.raises(RegistryUnavailable):
        with_image(spec(f"docker:{server.host}/team/image:1"), {})


@pytest.mark.parametrize("server", ["basic"], indirect=True)
def test_a_password_that_only_instances_may_read(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object, **__: object) -> dict[str, str]:
        raise SecretUnreadable("secret X: not for you")

    monkeypatch.setattr("spotrun.runs.pinning.read_values", unreadable)
    _, notes = with_image(spec(f"docker:{server.host}/team/image@sha256:{'0' * 64}", login=True), {})
    assert notes == ["the image was not checked: secret X: not for you"]
    with pytest.raises(RegistryUnavailable, match="not for you") as caught:
        with_image(spec(f"docker:{server.host}/team/image:1", login=True), {})
    assert "@sha256:" in str(caught.value.hint)


@pytest.mark.parametrize("server", ["bearer"], indirect=True)
def test_on_this_machine_the_password_is_a_variable(
    server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StandIn(tmp_path).install(monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    digest = server.put_image("team/image:1", 1)
    job = spec(f"docker:{server.host}/team/image:1", "local", login=True)
    assert with_image(job, {PASSWORD: WORD})[0].image == image(server, "1", digest)
    with pytest.raises(SecretUnreadable, match="is not set"):
        with_image(job, {})


def test_an_image_of_this_machine_need_be_in_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StandIn(tmp_path)
    engine.install(monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    digest = f"sha256:{'1' * 64}"
    engine.say("images", "localhost/image:1")
    engine.say("digest", digest)
    found, notes = with_image(spec("docker:localhost/image:1", "local"), {})
    assert (found.image, notes) == (image_of(f"docker:localhost/image:1@{digest}"), [])


@pytest.mark.parametrize("named", [":1", f"@sha256:{'1' * 64}"])
def test_an_image_that_this_machine_can_have_from_nowhere_is_refused(
    server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    StandIn(tmp_path).install(monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    server.fails = 500
    with pytest.raises(RegistryUnavailable, match=r"this machine has no docker:.*, and the registry") as caught:
        with_image(spec(f"docker:{server.host}/team/image{named}", "local"), {})
    assert f"build or pull the image on this machine, as {server.host}/team/image" in str(caught.value.hint)
