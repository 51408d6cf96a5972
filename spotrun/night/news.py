"""
Sends the notifications of a night's run to the receivers that the job names. No process runs between two calls of the
night's function, so the notifications are sent during a call.

A call first handles the run, and then sends the notifications that are due, which takes a few seconds. If a
notification cannot be delivered, the next call tries again, up to the same number of tries as in other runners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.notify.delivery import Author, Delivery, status_of
from spotrun.notify.news import News, may_be_news, news_of
from spotrun.notify.notifier import redactor_for
from spotrun.notify.sinks import Sink, TimeLimitedSink, Undelivered, Webhook
from spotrun.run.events import Entry
from spotrun.secrets.redaction import Redactor
from spotrun.secrets.reference import Reference
from spotrun.spec.model import NotifySpec, RunSpec
from spotrun.store.port import Store

WITHIN_S = 6.0
"""
Maximum seconds that one call spends on all webhooks together. The time to read their addresses before that is not
included.
"""

Addresses = Callable[[Mapping[str, Reference]], Mapping[str, str]]
"""
A function that returns the addresses of webhooks. Its argument has references to the secrets in which the addresses are
stored. An example is Nights.addresses.
"""


class NightNews:
    """
    The notifications of one run. The addresses of the receivers are read again in each call, so a changed address takes
    effect at once.
    """

    def __init__(self, spec: RunSpec, store: Store, author: Author | None, addresses: Addresses) -> None:
        self._spec, self._store, self._author, self._addresses = spec, store, author, addresses
        self._webhooks = {number: each for number, each in enumerate(spec.notify) if each.variable is not None}
        self._read = 0
        self._known: set[str] = set()
        self._waiting: list[tuple[int, News]] = []

    @property
    def waits(self) -> bool:
        """True while a notification still has to be delivered."""
        return bool(self._waiting)

    def tell(self, entries: Sequence[Entry], last: News | None) -> list[str]:
        """
        Send all unsent notifications about `entries`, the whole ledger, and then `last`. Return a sentence for each
        failed delivery, without secrets.
        """
        if not self._webhooks:
            return []
        self._take(entries, last)
        self._waiting = [each for each in self._waiting if not status_of(self._store, *each, self._author).is_final]
        return self._send() if self._waiting else []

    def _take(self, entries: Sequence[Entry], last: News | None) -> None:
        found = [*news_of(entries)] if any(map(may_be_news, entries[self._read :])) else []
        self._read = len(entries)
        for news in [*found, *([] if last is None else [last])]:
            if news.id not in self._known:
                self._known.add(news.id)
                self._waiting += [(number, news) for number, each in self._webhooks.items() if news.kind in each.on]

    def _send(self) -> list[str]:
        sinks, redactor = self._opened()
        failures, final = list[str](), set[tuple[int, str]]()
        share_s = WITHIN_S / len(sinks)  # so that a slow webhook takes no time from the others
        for number, sink in sinks.items():
            began_s = time.monotonic()
            limited = TimeLimitedSink(sink, share_s / 2)
            delivery = Delivery(limited, number, self._store, self._author, redactor, tries=1)
            for news in [each for index, each in self._waiting if index == number]:
                if time.monotonic() - began_s > share_s / 2:
                    break
                status = delivery.settle(news)
                if status.is_final:
                    final.add((number, news.id))
                if not status.delivered:
                    break
            failures += delivery.failures
        self._waiting = [(number, news) for number, news in self._waiting if (number, news.id) not in final]
        return failures

    def _opened(self) -> tuple[dict[int, Sink], Redactor]:
        """Return a sink for each webhook that has undelivered notifications, and a redactor for the notifications."""
        wanted = {number: self._webhooks[number] for number, _ in self._waiting}
        addresses: Mapping[str, str] = {}
        why = ""
        try:
            addresses = self._addresses(self._spec.webhook_references)
        except SpotrunError as error:
            why = error.message
        redactor = redactor_for(self._spec, addresses.values())
        return {number: _sink(each, addresses, why) for number, each in wanted.items()}, redactor


def _sink(webhook: NotifySpec, addresses: Mapping[str, str], why: str) -> Sink:
    variable = webhook.variable
    assert variable is not None
    if why:
        return _Unreadable(variable, why)
    try:
        return Webhook(variable, addresses[variable], WITHIN_S)
    except SpecInvalid as error:
        return _Unreadable(variable, error.message)


class _Unreadable:
    """
    A stand-in for a webhook whose address cannot be read now. Each delivery to it fails and counts as a try, so spotrun
    eventually gives up the notification.
    """

    def __init__(self, variable: str, why: str) -> None:
        self.name = f"webhook ${variable}"
        self._why = why

    def deliver(self, body: bytes, id: str) -> None:
        raise Undelivered(self._why)

    def abandon(self) -> None:
        return
