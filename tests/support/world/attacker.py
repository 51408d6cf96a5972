"""
A node that was taken over: it writes what the role of an instance may write, in the folder of its own run.

Its entries are well-formed, well-timed and possible as far as it can tell: they name launches, attempts and checkpoints
that there are. Some carry a signature that was copied or made up.
"""

from __future__ import annotations

import types
import typing
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any

import msgspec

from spotrun.folder.ledger import key_of
from spotrun.instance import PriceSegment
from spotrun.run import events as ev
from spotrun.run.events import AnyEvent, Entry, encode_entry, entry_json, seal, signed
from spotrun.run.state import RunState
from spotrun.store.port import Store

WRITER = "node"
EVENTS = typing.get_args(AnyEvent)
ENDINGS = (ev.RunCompleted, ev.AttemptEnded, ev.AttemptDrained, ev.TrainerExited)
"""Written seldom: a run that has ended shows nothing more."""
NUMBERS = (0, 1, 60, 3600, 10**6, 2**53)


class Attacker:
    """Writes random entries and status objects of a run at `now`. Equal generators write the same."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random
        self._seen: list[str] = ["0" * 128]

    def act(self, state: RunState, now: datetime) -> None:
        if self._random.random() < 0.1:
            self._spoil_a_status(state)
            return
        kind = self._random.choice(EVENTS)
        if kind in ENDINGS and self._random.random() < 0.9:
            return
        event = self._struct(kind, state, now)
        number = state.next_number
        at = now + timedelta(seconds=self._random.choice((0, 0, 0, -3600, 3600, 10**8)))
        entry = Entry(number=number, run=state.created.uid, nonce="00", at=at, writer=WRITER, event=event)
        self._store.put_if_absent(key_of(number), self._sealed(entry))

    def copy(self, data: bytes) -> None:
        """Keep the signature of an entry, for use elsewhere."""
        signature, _ = ev.parted(data)
        if signature:
            self._seen.append(signature)

    def _sealed(self, entry: Entry) -> bytes:
        if self._random.random() < 0.7:
            return encode_entry(entry)
        return seal(signed(entry_json(entry), self._random.choice(self._seen)))

    def _spoil_a_status(self, state: RunState) -> None:
        launch = self._random.choice([*state.launches, 1])
        name = self._random.choice((f"status/{launch}", f"heartbeats/{launch}", f"agents/{launch}"))
        self._store.put_status(name, self._random.choice((b"", b"{}", b'{"step": 1e999}', b"\xff" * 100)))

    def _struct(self, kind: type[msgspec.Struct], state: RunState, now: datetime) -> Any:
        if kind is ev.RunCreated:
            return msgspec.structs.replace(state.created, budget_usd=Decimal(10**6), price_cap_usd_per_hour=None)
        hints = typing.get_type_hints(kind)
        return kind(**{name: self._value(name, hint, state, now) for name, hint in hints.items() if name[0] != "_"})

    def _value(self, name: str, hint: Any, state: RunState, now: datetime) -> Any:
        if (number := self._number(name, state)) is not None:
            return number
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            return self._value("", self._random.choice(arguments), state, now)
        plain = typing.get_origin(hint) or hint
        if plain is tuple:
            return tuple(self._value("", arguments[0], state, now) for _ in range(self._random.randrange(2)))
        if plain is dict:
            return {}
        if isinstance(plain, type) and issubclass(plain, Enum):
            return self._random.choice(list(plain))
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return self._part(plain, state, now)
        return self._plain(plain, now)

    def _number(self, name: str, state: RunState) -> int | None:
        """One that the name of a field stands for, and that exists."""
        known = {
            "launch": list(state.launches),
            "attempt": list(state.attempts),
            "standby_for": list(state.attempts),
            "commit": [each.number for each in state.commits],
            "final_commit": [each.number for each in state.commits],
        }
        if name == "attempt" and state.current_attempt is not None and self._random.random() < 0.8:
            return state.current_attempt
        return self._random.choice(known[name]) if known.get(name) else None

    def _part(self, kind: type[msgspec.Struct], state: RunState, now: datetime) -> Any:
        offerings = [launch.intent.offering for launch in state.launches.values()]
        if offerings and isinstance(offerings[0], kind):
            return self._random.choice(offerings)
        if kind is PriceSegment:
            return PriceSegment(since=now, usd_per_hour=Decimal(self._random.choice(("0", "0.01", "1000"))))
        return self._struct(kind, state, now)

    def _plain(self, kind: type, now: datetime) -> Any:
        random = self._random
        choices: dict[type, Any] = {
            type(None): (None,),
            bool: (True, False),
            int: NUMBERS,
            float: (0.0, 1.0, 3600.0, 1e9),
            Decimal: (Decimal(0), Decimal("0.01"), Decimal(10**6)),
            datetime: (now, now + timedelta(hours=1), now + timedelta(days=3650)),
            str: ("", "i-victim", "x", "0" * 64),
        }
        return random.choice(choices[kind])
