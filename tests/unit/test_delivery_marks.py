"""Which record of a delivery keeps a notification from being sent: one that the run's owner has signed."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest

from spotrun.folder import keys
from spotrun.folder.keys import OwnersKey, Signer
from spotrun.notify.delivery import FOLDER, TRIES_EVER, Author, Delivery, DeliveryStatus, status_of
from spotrun.notify.news import News
from spotrun.secrets.redaction import Redactor
from tests.support.list_sink import ListSink
from tests.support.memory_store import MemoryStore

UID = "0123456789"
KEY = f"{FOLDER}/0-7-failed.json"
PLANTED = [DeliveryStatus(True, 1), DeliveryStatus(False, TRIES_EVER), DeliveryStatus(True, 1, "", "ab" * 64)]


def failed(entry: int = 7) -> News:
    return News(entry, "failed", datetime(2026, 11, 29, tzinfo=UTC), f"r-{UID}", "the run failed")


@pytest.fixture
def runs() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def owner(runs: MemoryStore) -> OwnersKey:
    return OwnersKey(lambda: runs, UID, keys.make(runs, UID))


def told(folder: MemoryStore, owner: Author | None, entry: int = 7) -> list[str]:
    """The ids that a receiver gets from one more runner."""
    sink = ListSink()
    delivery = Delivery(sink, 0, folder, owner, Redactor(()))
    delivery.settle(failed(entry))
    return [*sink.ids, *delivery.failures]


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_record_silences_no_notification(owner: OwnersKey, planted: DeliveryStatus) -> None:
    folder = MemoryStore()
    folder.put(KEY, msgspec.json.encode(planted))
    assert told(folder, owner) == [failed().id]
    assert told(folder, owner) == [], "the runner has written its own over it"


def test_record_of_the_owner_counts_for_its_own_notification_only(owner: OwnersKey) -> None:
    folder = MemoryStore()
    assert told(folder, owner) == [failed().id]
    folder.put(KEY.replace("7", "8"), folder.get(KEY))
    assert told(folder, owner, entry=8) == [failed(8).id]
    changed = {**json.loads(folder.get(KEY)), "tries": 2}
    folder.put(KEY, json.dumps(changed).encode())
    assert told(folder, owner) == [failed().id]


def test_record_of_another_run_or_key_does_not_count(owner: OwnersKey) -> None:
    folder, others = MemoryStore(), MemoryStore()
    for author in (OwnersKey(lambda: others, UID, keys.make(others, UID)), Signer("cd" * 32)):
        assert told(folder, author) == [failed().id]
        assert told(folder, author) == []
        assert status_of(folder, 0, failed(), owner) == DeliveryStatus(False, 0)


def test_records_of_a_run_without_a_key_are_still_read() -> None:
    """Version 2 of the ledger knew no keys."""
    folder = MemoryStore()
    folder.put(KEY, b'{"delivered":true,"tries":1,"said":""}')
    assert told(folder, None) == []
    assert told(folder, None, entry=8) == [failed(8).id]
    assert told(folder, None, entry=8) == []


def test_lost_key_lets_a_notification_arrive_twice_and_never_not_at_all(runs: MemoryStore, owner: OwnersKey) -> None:
    folder = MemoryStore()
    keys.remove(runs, UID)
    for _ in range(2):
        first, failure = told(folder, owner)
        assert first == failed().id
        assert "it may arrive twice" in failure
