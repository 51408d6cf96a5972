"""
Sends a run's notifications from the runner's process. Each item of the job's `notify` has its own delivery worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from spotrun.errors import SpecInvalid
from spotrun.notify.delivery import PAUSE_S, Author, DeliveryWorker
from spotrun.notify.news import News
from spotrun.notify.sinks import open_sink
from spotrun.run.events import Entry
from spotrun.secrets.redaction import Redactor, secrets_in
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store

CLOSE_WITHIN_S = 10.0
"""
Maximum seconds, in system time, for which a command waits before it exits, so that the remaining notifications can be
delivered.
"""


def redactor_for(spec: RunSpec, addresses: Iterable[str], environment: Mapping[str, str] = os.environ) -> Redactor:
    """
    Return a redactor for everything that notifications must not contain: the secrets of the job and of its runner, and
    the addresses to which notifications are sent.
    """
    own = {name: value for name, value in spec.envs.items() if value != spec.name}
    own |= {name: environment.get(each.name, "") for name, each in spec.secret_references.items()}
    return Redactor(secrets_in(own, environment, addresses))


class Notifier:
    """
    Sends the notifications for ledger entries. None of its methods raises an error.

    Its methods do not wait for deliveries. At the end of its `with` block, it waits for at most `CLOSE_WITHIN_S`.
    Notifications that are still undelivered then are left to the run's next runner.
    """

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        owner: Author | None,
        environment: Mapping[str, str] = os.environ,
        pause_s: float = PAUSE_S,
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
                self._workers.append(DeliveryWorker(sink, number, wanted.on, store, owner, redactor, pause_s))

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
        Send the notifications for a ledger's entries. `entries` always starts with the ledger's first entry; those that
        an earlier call has handled are skipped.
        """
        for entry in entries[self._shown :]:
            self.tell(entry)
        self._shown = max(self._shown, len(entries))

    def tell(self, item: Entry | News) -> None:
        """
        Send the notification for an entry, if there is one, or a notification that belongs to no entry. Notifications
        are sent in the order of the calls.
        """
        for worker in self._workers:
            worker.tell(item)

    @property
    def failures(self) -> list[str]:
        """Descriptions of the failed deliveries, without secrets."""
        late = [
            f"{each.name}: some notifications have not been delivered yet" for each in self._workers if each.is_alive()
        ]
        return self._unusable + [said for each in self._workers for said in each.failures] + late
