"""
Reads the last output of an instance that ended before its agent took over: from its startup log, from what its agent
wrote into the run's logs, or from its console.
"""

from __future__ import annotations

import re

from spotrun.clouds.cloud import Cloud
from spotrun.errors import CloudError, ObjectMissing
from spotrun.instance import Instance
from spotrun.run.bounds import LOG_CHUNK_BYTES
from spotrun.run.gang import MemberName
from spotrun.run.reasons import reason_in, shortened
from spotrun.store.port import Store

_OWN_LINE = re.compile(r"\bspotrun: .*")
"""
Lines that spotrun wrote to a console. Only these lines are entered in the ledger, because other programs' lines may
contain anything, even a secret.
"""
_POWER_OFF = re.compile(r"^\[spotrun\] (power off: .*)", re.MULTILINE)
"""The line with which an agent gives the reason why its instance powers off."""


class LastWords:
    def __init__(self, cloud: Cloud, store: Store) -> None:
        self._cloud = cloud
        self._store = store

    def of(self, name: MemberName, instance: Instance | None) -> str:
        """
        Return the last output of a member, as text for the ledger; "" if there is no output. `instance` is the member's
        instance; None if the cloud no longer lists it.

        Raises:
            StoreUnavailable: the log cannot be read yet.
        """
        if words := self._startup(name.launch) or self._power_off(name):
            return f"its log says: {words}"
        if instance is None or not self._cloud.failed_starts:
            return ""
        try:
            console = self._cloud.console(instance)
        except CloudError as error:
            return f"its console cannot be read: {error.message}"
        if not console:
            return ""
        own = "\n".join(_OWN_LINE.findall(console))
        return f"its console says: {reason_in(own)}" if own else "spotrun wrote no line to its console"

    def _startup(self, launch: int) -> str:
        if not self._cloud.failed_starts:
            return ""
        try:
            data = self._store.get(f"{self._cloud.failed_starts}{launch}.log", 0, LOG_CHUNK_BYTES)
        except ObjectMissing:
            return ""
        return reason_in(data.decode(errors="replace"))

    def _power_off(self, name: MemberName) -> str:
        chunks = self._store.list(f"logs/{name.place}/")
        if not chunks:
            return ""
        newest = max(chunk.key for chunk in chunks)
        told = _POWER_OFF.findall(self._store.get(newest, 0, LOG_CHUNK_BYTES).decode(errors="replace"))
        return shortened(told[-1]) if told else ""
