"""Which server a store on Google Cloud Storage asks, and as whom."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotrun.errors import ObjectMissing
from spotrun.store.opening import open_store
from tests.support.answering_server import Answer, AnsweringServer
from tests.support.google_login import log_in


def test_a_store_asks_the_server_that_is_named_now_with_the_login_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may name another one than before, as tests do; with STORAGE_EMULATOR_HOST nobody would be logged in."""
    log_in(monkeypatch, tmp_path / "login.json", token="of-the-user")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for _ in range(2):
        with AnsweringServer(Answer(body={"items": []})) as server:
            monkeypatch.setenv("API_ENDPOINT_OVERRIDE", server.url)
            assert [*open_store("gs://bucket/runs").list("")] == []
        assert [each.token for each in server.asked] == ["of-the-user"]


def test_a_store_asks_for_nothing_but_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's library looks at the bucket in the background, and again after each 404: an agent gets one a second."""
    log_in(monkeypatch, tmp_path / "login.json", token="of-the-user")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    bucket = Answer(body={"name": "bucket", "location": "US-CENTRAL1", "projectNumber": "1", "id": "bucket"})
    absent = Answer(404, {"error": {"code": 404, "message": "No such object"}})
    with AnsweringServer(bucket, Answer(body={"bindings": []}), absent) as server:
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", server.url)
        assert open_store("gs://bucket/runs").inspect().region == "us-central1"
        inspected = len(server.asked)
        for _ in range(3):
            with pytest.raises(ObjectMissing):
                open_store("gs://bucket/runs").get("ledger/00000007.json")
            for thread in threading.enumerate():
                if "_background" in thread.name:
                    thread.join()
        assert [each.path.partition("?")[0] for each in server.asked[inspected:]] == [
            "/download/storage/v1/b/bucket/o/runs%2Fledger%2F00000007.json"
        ] * 3
