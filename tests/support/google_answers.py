"""A Google whose answers a test writes down. Google's own description checks what is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from spotrun.clouds.gcp.calls import Call, Google
from spotrun.errors import CloudError
from tests.support.google_api import described
from tests.support.manual_clock import ManualClock

Answer = Mapping[str, Any] | CloudError


class WrittenGoogle(Google):
    """`answer` says what a call gets. `asked` are the calls so far."""

    def __init__(self, answer: Callable[[Call], Answer]) -> None:
        super().__init__(ManualClock())
        self._answer = answer
        self._api = described()
        self.asked: list[Call] = []

    def ask(self, action: str, call: Call) -> dict[str, Any]:
        self.asked.append(call)
        target = f"{urlsplit(call.api.root).path}{call.path}?{urlencode(call.query)}"
        called = self._api.called(call.method, target)
        answer = self._answer(call)
        faults = [*called.faults, *self._api.request_faults(called, call.body)]
        if isinstance(answer, CloudError):
            assert not faults, faults
            raise answer
        faults += self._api.answer_faults(called, answer)
        assert not faults, faults
        return dict(answer)


def money(usd: str) -> dict[str, Any]:
    """An amount as Google writes it."""
    units, _, nanos = usd.partition(".")
    return {"currencyCode": "USD", "units": units, "nanos": int(nanos.ljust(9, "0"))}
