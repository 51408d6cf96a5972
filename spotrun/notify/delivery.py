"""
One sink's thread: it reads the ledger after the runner, and delivers what the sink is for.

At least once: what was delivered is written down in the run's folder after it was, so that a runner killed in between
delivers again, under the same id, which a receiver can drop. Written down before, it would be lost instead; and a loss
is what nobody could find out. All is bounded: a try, the tries, and how long the end of a run waits for it.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from spotrun.errors import StoreError
from spotrun.notify.news import News, news_of
from spotrun.notify.sinks import Refused, Sink, Undelivered
from spotrun.report.tables import plain
from spotrun.run.events import Entry
from spotrun.secrets.redaction import Redactor
from spotrun.store.port import Store

TRIES = 4
PAUSE_S = 1.0
"""System time before the second try; it doubles with each."""
TRIES_EVER = 12
"""Of all runners together: a piece of news that nobody took so often is given up."""
FOLDER = "notified"
SENTENCE_MAX = 1000


class DeliveryStatus(msgspec.Struct, frozen=True):
    """What became of one piece of news so far."""

    delivered: bool
    tries: int
    said: str = ""


class DeliveryWorker(threading.Thread):
    """Delivers the news of some kinds to one sink. `number` is its place in the job's `notify`."""

    def __init__(
        self, sink: Sink, number: int, kinds: Sequence[str], store: Store, redactor: Redactor, pause_s: float = PAUSE_S
    ) -> None:
        super().__init__(daemon=True, name=sink.name)
        self._sink = sink
        self._number = number
        self._kinds = frozenset(kinds)
        self._store = store
        self._redactor = redactor
        self._pause_s = pause_s
        self._inbox: queue.SimpleQueue[Entry | News | None] = queue.SimpleQueue()
        self._in_vain = False
        self.failures: list[str] = []
        """What could not be delivered, for people; without secrets."""

    def tell(self, item: Entry | News) -> None:
        """One more entry of the ledger, in its order, or news that is not in it. Never blocks."""
        self._inbox.put(item)

    def finish(self) -> None:
        """Nothing more is coming: the thread ends once all is delivered or given up."""
        self._inbox.put(None)

    def abandon(self) -> None:
        """Nobody waits any more: what is not delivered by now is for the next runner."""
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
        if news.kind not in self._kinds:
            return
        known = self._status(news)
        if known.delivered or known.tries >= TRIES_EVER:
            return
        tries = 1 if self._in_vain else min(TRIES, TRIES_EVER - known.tries)
        status = self._deliver(news, known.tries, tries)
        self._in_vain = not status.delivered
        if not status.delivered:
            self.failures.append(f"{self._sink.name} was not told of {news.kind!r}: {status.said}")
        self._write(news, status)

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

    def _key(self, news: News) -> str:
        return f"{FOLDER}/{self._number}-{news.entry}-{news.kind}.json"

    def _status(self, news: News) -> DeliveryStatus:
        """A store that cannot say makes us deliver again rather than not at all."""
        try:
            return msgspec.json.decode(self._store.get(self._key(news)), type=DeliveryStatus)
        except (StoreError, msgspec.MsgspecError):
            return DeliveryStatus(False, 0)

    def _write(self, news: News, status: DeliveryStatus) -> None:
        try:
            self._store.put_hint(self._key(news), msgspec.json.encode(status))
        except StoreError as error:
            self.failures.append(f"that {news.kind!r} was told could not be noted ({error.message}): it may come twice")


def letter(news: News, redactor: Redactor) -> bytes:
    """
    The JSON of a piece of news, in a line.

    `text` is what Slack and its likes show; in it `&`, `<` and `>` are escaped, as these are its own signs
    (https://docs.slack.dev/messaging/formatting-message-text#escaping).
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
    sentence = plain(" ".join(str(clean["sentence"]).split()), SENTENCE_MAX)
    text = f"{clean['run']}: {sentence}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text, **clean, "sentence": sentence}).encode() + b"\n"
