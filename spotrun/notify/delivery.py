"""
Delivers notifications (`News`) to one receiver (a sink), in a separate thread. The thread gets the ledger's entries and
decides which of them are to be reported.

Each notification is delivered at least once. The thread first delivers it and then records the delivery in the run's
folder. If the process is killed between the two, the next runner delivers the notification a second time, with the same
id, so that a receiver can drop the duplicate. If the delivery were recorded first, a notification could be lost without
anyone noticing.

The records are signed by the run's owner, or by the function of a night. Instances may add objects in the run's folder
on Google Cloud, but a record that an instance has made there suppresses no notification.

The duration of each try and the number of tries per notification are limited. So is the time for which a command waits
for deliveries at the end of a run.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from spotrun.errors import SpotrunError, StoreError
from spotrun.notify.news import News, news_of
from spotrun.notify.sinks import Refused, Sink, Undelivered
from spotrun.report.tables import plain
from spotrun.run.bounds import SMALL_BYTES, Count, OutOfBounds, decode
from spotrun.run.events import Entry
from spotrun.run.reasons import shortened
from spotrun.secrets.redaction import Redactor
from spotrun.store.port import Store

TRIES = 4
PAUSE_S = 1.0
"""Seconds of system time between the first and the second try. The time doubles before each further try."""
TRIES_EVER = 12
"""
Maximum number of tries for one notification, by all runners together. After these tries, the notification is given up.
"""
FOLDER = "notified"
SENTENCE_MAX = 1500
"""Maximum length of the sentence in a notification, in characters. It is enough for the reason of a failure."""


class DeliveryStatus(msgspec.Struct, frozen=True):
    """The status of the delivery of one notification."""

    delivered: bool
    tries: Count
    said: str = ""
    signature: str = ""

    @property
    def is_final(self) -> bool:
        """True if the notification was delivered or given up."""
        return self.delivered or self.tries >= TRIES_EVER


class Author(Protocol):
    """The key that signs the records of deliveries: an OwnersKey, or the Signer of a night's function."""

    def sign(self, body: bytes) -> str: ...
    def has_signed(self, signature: str, body: bytes) -> bool: ...


def status_of(store: Store, number: int, news: News, author: Author | None) -> DeliveryStatus:
    """
    Return the delivery status that this or another runner has written to the store. If the run has a key, `author`, the
    status must be signed with it.

    If the store cannot be read, or another program has written the status, assume that the notification was not
    delivered: it is better that a notification arrives twice than never.
    """
    key = _key(number, news)
    try:
        found = decode(store.get(key, 0, SMALL_BYTES), DeliveryStatus)
    except (StoreError, OutOfBounds):
        return DeliveryStatus(False, 0)
    if author is None or author.has_signed(found.signature, _signed_part(key, found)):
        return found
    return DeliveryStatus(False, 0)


def _signed_part(key: str, status: DeliveryStatus) -> bytes:
    """
    Return the bytes that the signature of a status covers. They contain the object's name, so that a copy of the status
    under another name is not valid. They are a list, so that they differ from each entry of a ledger.
    """
    return json.dumps([key, status.delivered, status.tries, status.said]).encode()


def _key(number: int, news: News) -> str:
    return f"{FOLDER}/{number}-{news.entry}-{news.kind}.json"


class Delivery:
    """
    Delivers notifications to one sink, one after another. `number` is the sink's index in the job's `notify`.

    Delivery of each notification is tried up to `tries` times. After a notification that could not be delivered, the
    next one is tried only once, because the sink is probably down.
    """

    def __init__(
        self,
        sink: Sink,
        number: int,
        store: Store,
        author: Author | None,
        redactor: Redactor,
        pause_s: float = PAUSE_S,
        tries: int = TRIES,
    ) -> None:
        self._sink = sink
        self._number = number
        self._store = store
        self._author = author
        self._redactor = redactor
        self._pause_s = pause_s
        self._tries = tries
        self._in_vain = False
        self.failures: list[str] = []
        """Descriptions of the failed deliveries, without secrets."""

    def settle(self, news: News) -> DeliveryStatus:
        """
        Deliver a notification, unless an earlier call has delivered it or given up on it. Store the new status and
        return it.
        """
        known = status_of(self._store, self._number, news, self._author)
        if known.is_final:
            return known
        tries = 1 if self._in_vain else min(self._tries, TRIES_EVER - known.tries)
        status = self._deliver(news, known.tries, tries)
        self._in_vain = not status.delivered
        if not status.delivered:
            self.failures.append(f"{self._sink.name} did not receive {news.kind!r}: {status.said}")
        self._write(news, status)
        return status

    def _deliver(self, news: News, tried: int, tries: int) -> DeliveryStatus:
        body = letter(news, self._redactor)
        again = Retrying(
            stop=stop_after_attempt(tries),
            wait=wait_exponential(multiplier=self._pause_s, max=8 * self._pause_s),
            retry=retry_if_exception_type(Undelivered) & retry_if_not_exception_type(Refused),
            reraise=True,
        )
        try:
            again(self._sink.deliver, body, self._redactor.clean(news.id))
        except Refused as refusal:
            return DeliveryStatus(False, TRIES_EVER, self._redactor.clean(str(refusal)))
        except Undelivered as failure:
            return DeliveryStatus(False, tried + tries, self._redactor.clean(str(failure)))
        return DeliveryStatus(True, tried + 1)

    def _write(self, news: News, status: DeliveryStatus) -> None:
        key = _key(self._number, news)
        try:
            if self._author is not None:
                status = replace(status, signature=self._author.sign(_signed_part(key, status)))
            self._store.put_status(key, msgspec.json.encode(status))
        except SpotrunError as error:  # the store refuses, or the run has lost its key
            self.failures.append(
                f"the store did not record that {news.kind!r} was delivered ({error.message}): it may arrive twice"
            )


class DeliveryWorker(threading.Thread):
    """
    A thread that delivers notifications to one sink. It delivers only the kinds of notifications that the job names for
    this sink. See `Delivery`.
    """

    def __init__(
        self,
        sink: Sink,
        number: int,
        kinds: Sequence[str],
        store: Store,
        author: Author | None,
        redactor: Redactor,
        pause_s: float = PAUSE_S,
    ) -> None:
        super().__init__(daemon=True, name=sink.name)
        self._sink = sink
        self._delivery = Delivery(sink, number, store, author, redactor, pause_s)
        self._kinds = frozenset(kinds)
        self._inbox: queue.SimpleQueue[Entry | News | None] = queue.SimpleQueue()

    @property
    def failures(self) -> list[str]:
        return self._delivery.failures

    def tell(self, item: Entry | News) -> None:
        """Queue the next entry of the ledger, or a notification that belongs to no entry. Never blocks."""
        self._inbox.put(item)

    def finish(self) -> None:
        """
        Tell the thread that no more items will come. It ends once it has delivered or given up all notifications.
        """
        self._inbox.put(None)

    def abandon(self) -> None:
        """Stop the try that is in progress. The next runner will deliver the remaining notifications."""
        self._sink.abandon()

    def run(self) -> None:
        extra: list[News] = []
        for news in news_of(self._entries(extra)):
            self._settle(news)
        for news in extra:
            self._settle(news)

    def _entries(self, extra: list[News]) -> Iterator[Entry]:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, News):
                extra.append(item)
            else:
                yield item

    def _settle(self, news: News) -> None:
        if news.kind in self._kinds:
            self._delivery.settle(news)


def letter(news: News, redactor: Redactor) -> bytes:
    """
    Return a notification as one line of JSON.

    Slack and similar services show the field `text`. In it, `&`, `<` and `>` are escaped, because Slack reads them as
    markup (https://docs.slack.dev/messaging/formatting-message-text#escaping).
    """
    body: dict[str, Any] = {
        "id": news.id,
        "event": news.kind,
        "run": news.run,
        "entry": news.entry,
        "at": news.at.isoformat(),
        "sentence": news.sentence,
        **news.facts,
    }
    clean = redactor.clean_all(body)
    sentence = plain(shortened(" ".join(str(clean["sentence"]).split()), SENTENCE_MAX))
    text = f"{clean['run']}: {sentence}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text, **clean, "sentence": sentence}).encode() + b"\n"
