"""Sends a run's news from the runner's process. Each item of the job's `notify` has its own delivery worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from spotrun.errors import SpecInvalid
from spotrun.notify.delivery import PAUSE_S, DeliveryWorker
from spotrun.notify.news import News
from spotrun.notify.sinks import open_sink
from spotrun.run.events import Entry
from spotrun.secrets.redaction import Redactor, secrets_in
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

CLOSE_WITHIN_S = 10.0
"""Maximum seconds of system time that a command waits, at its end, for news that is not delivered yet."""


def redactor_for(spec: RunSpec, addresses: Iterable[str], environment: Mapping[str, str] = os.environ) -> Redactor:
    """
    Return a redactor for everything that news must not contain: the secrets of the job and of its runner, and the
    addresses to which the news is sent.
    """
    own = {name: value for name, value in spec.envs.items() if value != spec.name}
    own |= {name: environment.get(each.name, "") for name, each in spec.secret_references.items()}
    return Redactor(secrets_in(own, environment, addresses))


class Notifier:
    """
    Sends the news in each ledger entry that it receives. None of its methods raises an error.

    Its methods do not wait for deliveries. Only the end of the `with` block does, for at most `CLOSE_WITHIN_S`. News
    that is not delivered by then is left to the run's next runner.
    """

    def __init__(
        self, spec: RunSpec, store: Store, environment: Mapping[str, str] = os.environ, pause_s: float = PAUSE_S
    ) -> None:
        self._shown = 0
        self._workers: list[DeliveryWorker] = []
        self._unusable: list[str] = []
        addresses = [environment.get(each.variable, "") for each in spec.notify if each.variable is not None]
        redactor = redactor_for(spec, addresses, environment) if spec.notify else Redactor(())
        for number, wanted in enumerate(spec.notify):
            try:
                sink = open_sink(wanted, number, environment)
            except SpecInvalid as error:
                self._unusable.append(error.message)
            else:
                self._workers.append(DeliveryWorker(sink, number, wanted.on, store, redactor, pause_s))

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.finish()
        give_up_at = time.monotonic() + CLOSE_WITHIN_S
        for worker in self._workers:
            worker.join(max(0.0, give_up_at - time.monotonic()))
            if worker.is_alive():
                worker.abandon()

    def show(self, entries: Sequence[Entry]) -> None:
        """
        Send the news in a ledger's entries. `entries` always starts with the ledger's first entry; entries that an
        earlier call has passed are skipped.
        """
        for entry in entries[self._shown :]:
            self.tell(entry)
        self._shown = max(self._shown, len(entries))

    def tell(self, item: Entry | News) -> None:
        """
        Send the news in an entry. `item` may also be news that is in no entry; it is sent after all news passed before.
        """
        for worker in self._workers:
            worker.tell(item)

    @property
    def failures(self) -> list[str]:
        """Descriptions of the failed deliveries, without secrets."""
        late = [f"{each.name}: some news has not been delivered yet" for each in self._workers if each.is_alive()]
        return self._unusable + [said for each in self._workers for said in each.failures] + late
