"""
A node that was taken over: it writes whatever it likes wherever it likes in the bucket, and the policies say what of
that has an effect.

Its entries are well-formed, well-timed and possible as far as it can tell: they name launches, attempts and checkpoints
that there are. Some carry a signature that was copied or made up, and some are older entries of the owner under a new
number. Its status objects have figures in their bounds, however odd they are.
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
from msgspec import UNSET, UnsetType

from spotrun.folder import final_status, keys
from spotrun.folder.ledger import key_of
from spotrun.folder.status_objects import RUNNER_KEY, AgentStatus, agent_key
from spotrun.instance import PriceSegment
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry, entry_json, seal, signed
from spotrun.run.events import AnyEvent, Entry
from spotrun.run.state import RunState
from tests.batteries.node_bucket import RUNS, NodeBucket

WRITER = "node"
EVENTS = typing.get_args(AnyEvent)
ENDINGS = (ev.RunCompleted, ev.AttemptEnded, ev.AttemptDrained, ev.TrainerExited)
"""Written seldom: a run that has ended shows nothing more."""
NUMBERS = (0, 1, 60, 3600, 10**6, 2**53)
SECONDS = (0.0, 1e-9, 1.0, 3e8)
NOISE = (b"", b"{}", b'{"step": 1e999}', b"\xff" * 100)


class Attacker:
    """
    Writes random entries and other objects at `now`. Equal generators write the same. `folder` is that of its run,
    `another` one that is not.
    """

    def __init__(self, bucket: NodeBucket, random: Random, folder: str, another: str) -> None:
        self._bucket = bucket
        self._random = random
        self._own, self._another = f"{RUNS}/{folder}/", f"{RUNS}/{another}/"
        self._seen: list[str] = ["0" * 128]
        self._old: list[bytes] = []

    def act(self, state: RunState, now: datetime) -> None:
        what = self._random.random()
        if what < 0.2:
            self._write_an_object(state, now)
        elif what < 0.25 and self._old:
            self._put(key_of(state.next_number), self._again(state))
        else:
            self._write_an_entry(state, now)

    def _write_an_entry(self, state: RunState, now: datetime) -> None:
        kind = self._random.choice(EVENTS)
        if kind in ENDINGS and self._random.random() < 0.9:
            return
        event = self._struct(kind, state, now)
        number = state.next_number
        at = now + timedelta(seconds=self._random.choice((0, 0, 0, -3600, 3600, 10**8)))
        entry = Entry(number=number, run=state.created.uid, nonce="00", at=at, writer=WRITER, event=event)
        self._put(key_of(number), self._sealed(entry))

    def copy(self, data: bytes) -> None:
        """Keep an entry and its signature, for use elsewhere."""
        signature, _ = entry_bytes.parted(data)
        if signature:
            self._seen.append(signature)
            self._old.append(data)

    def _put(self, key: str, data: bytes) -> None:
        self._bucket.put(self._own + key, data, if_absent=True)

    def _again(self, state: RunState) -> bytes:
        """What the owner has said before, under the number that comes next."""
        signature, body = entry_bytes.parted(self._random.choice(self._old))
        renumbered = msgspec.json.decode(body) | {"number": state.next_number}
        return seal(signed(msgspec.json.encode(renumbered), signature))

    def _sealed(self, entry: Entry) -> bytes:
        if self._random.random() < 0.7:
            return encode_entry(entry)
        return seal(signed(entry_json(entry), self._random.choice(self._seen)))

    def _write_an_object(self, state: RunState, now: datetime) -> None:
        """Write or delete one, in its own folder or elsewhere."""
        random, launch = self._random, self._random.choice([*state.launches, 1])
        key = random.choice(
            (
                agent_key(launch),
                agent_key(launch),
                RUNNER_KEY,
                final_status.KEY,
                key_of(random.randrange(state.next_number)),
                "notified/1-started",
                f"logs/{launch}/000000.log",
                "checkpoints/1-0-1/manifest.json",
            )
        )
        folder = random.choice((self._own, self._own, self._another))
        key_of_run = f"{RUNS}/{keys.key_of(state.created.uid, state.created.public_key)}"
        whole = random.choice((folder + key, folder + key, folder + key, key_of_run))
        if random.random() < 0.1:
            self._bucket.delete(whole)
        else:
            self._bucket.put(whole, self._data(launch, now), if_absent=random.random() < 0.5)

    def _data(self, launch: int, now: datetime) -> bytes:
        if self._random.random() < 0.3:
            return self._random.choice(NOISE)
        counts = ("sequence", "epoch", "epochs", "batch", "batches", "step")
        figures: dict[str, Any] = {name: self._random.choice(NUMBERS) for name in counts}
        figures |= {name: self._random.choice(SECONDS) for name in ("step_s", "stall_s", "commit_s")}
        attempt = self._random.choice((None, launch, launch + 2))
        return msgspec.json.encode(AgentStatus(launch=launch, phase="training", at=now, attempt=attempt, **figures))

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
            UnsetType: (UNSET,),
            bool: (True, False),
            int: NUMBERS,
            float: (0.0, 1.0, 3600.0, 1e9),
            Decimal: (Decimal(0), Decimal("0.01"), Decimal(10**6)),
            datetime: (now, now + timedelta(hours=1), now + timedelta(days=3650)),
            str: ("", "i-victim", "x", "0" * 64),
        }
        return random.choice(choices[kind])
