"""
A run whose training prints its secret in all forms, and names it in all that the agent hears; and each place where
somebody may read what became of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.inbox import Inbox, NoticesLost, SaveRefused, TrainerMessage
from spotrun.agent.logs.console import Console, LogShipper
from spotrun.agent.logs.secret_values import Secrets
from spotrun.agent.machine.gpus import Gpus
from spotrun.agent.recorder import Recorder
from spotrun.agent.status import Heartbeat, Status
from spotrun.folder.ledger import Ledger
from spotrun.notify.delivery import letter
from spotrun.notify.news import News, news_of
from spotrun.run import events as ev
from spotrun.run.events import Cause, Entry
from spotrun.run.gang import MemberName
from spotrun.secrets.redaction import Redactor, secrets_in
from spotrun.store.local import LocalStore
from spotrun.trainer_link import EpochEnded
from tests.support.called_spotrun import call
from tests.support.checkpoint_entries import committed
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.secret_forms import Reader, all_of
from tests.support.stored_runs import store_run

NAME, UID, WORD = "telling", "aaaaaaaaaa", "WORD"
COMMANDS = (
    "status",
    "status --json",
    "events RUN",
    "events RUN --json",
    "why RUN",
    "why RUN --json",
    "logs RUN",
    "report RUN",
    "report RUN --json",
    "report RUN --html report.html",
)
BREAKS_EACH = 3
"""Each form is told whole, and broken in so many ways."""
PARTS = 12
"""The log is written and shipped in so many parts, whatever they cut through."""


class TellingRun:
    """It lies in a store below `folder`. `value` is the value of its secret."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, value: str, random: Random) -> None:
        patch.chdir(folder)
        for name, text in {"SPOTRUN_STORE": "runs", "SPOTRUN_KNOWN": "known", "NO_COLOR": "1"}.items():
            patch.setenv(name, text)
        patch.setenv("SPOTRUN_LOCAL_CLOUD", str(folder / "cloud"))
        self._folder, self._patch, self._random, self._value = folder, patch, random, value
        self.texts = dict(all_of(value, random, BREAKS_EACH))
        self._spec = spec(name=NAME, secrets=[WORD])
        history = History(name=NAME, uid=UID, spec=self._spec.to_dict())
        launch = history.running()
        self._store = LocalStore(store_run(folder / "runs", history))
        self._clock, self._launch = ManualClock(history.now), launch
        self._console = Console(folder, Secrets({WORD: value}).redaction(self._spec, folder))
        self._redactor = Redactor(secrets_in({WORD: value}, {}, ()))

    def leaks(self) -> Iterator[str]:
        """Each place where the secret can be read."""
        self._print_all()
        self._write_entries()
        self._beat()
        reader = Reader(self._value)
        for place, text in self._places():
            if found := reader.reads(text):
                yield f"{place}: {found!r} of {self._value!r}"

    # -- what the agent does

    def _print_all(self) -> None:
        """The training prints, and the agent ships what there is."""
        text = "".join(f"{name}: {text}\n" for name, text in self._shuffled()).encode()
        shipper = LogShipper(self._store, self._clock, self._console, str(self._launch))
        cuts = sorted(self._random.sample(range(len(text)), PARTS))
        place = (0, 0)
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            with self._console.path.open("ab") as file:
                file.write(text[begin:end])
            place = shipper._ship(place, last=end == len(text))

    def _shuffled(self) -> list[tuple[str, str]]:
        return self._random.sample([*self.texts.items()], len(self.texts))

    def _write_entries(self) -> None:
        """Each event that an agent writes, each of its texts with the secret; and the run's end with that reason."""
        ledger = Ledger(self._store, UID, "agent:1", self._clock)
        ledger.refresh()
        recorder = Recorder(ledger, self._clock, Inbox(), self._console.clean)
        recorder.start()
        try:
            self._write_with(AttemptJournal(recorder, self._launch, f"i-{self._launch}", self._clock.now()), recorder)
        finally:
            recorder.stop()
        self._end(ledger)

    def _write_with(self, journal: AttemptJournal, recorder: Recorder) -> None:
        journal.attempt = recorder.state.current_attempt or 0
        waiting: list[Future[Entry | None]] = []
        journal.notices_lost(NoticesLost(self._text()))
        ended = EpochEnded(epoch=0, step=90, batches=90, samples=90, metrics={self._text(): 0.5})
        journal.epoch_completed(ended, TrainerMessage(0, ended, self._clock.now(), 0.0))
        clean = self._console.clean  # as the conversation does before what is long is cut
        journal.not_carried(90, [(clean(self._text()), clean(self._text())) for _ in range(20)])
        commit = self._commit(journal.attempt)
        waiting.append(recorder.append(lambda _: commit))
        for _, text in self._shuffled():
            waiting.append(journal.save_refused(SaveRefused(1, 90, 10, self._among_words(text))))
        journal.trainer_exited(0, Cause.USER_ERROR, 1, 90, self._text())
        journal.ended(Cause.USER_ERROR, 90, self._among_words(self._text()))
        for each in waiting:
            each.result(60)

    def _commit(self, attempt: int) -> ev.CheckpointCommitted:
        texts: dict[str, Any] = {"versions": {"torch": self._text()}, "metrics": {self._text(): 0.5}}
        return committed(attempt, "checkpoints/2-0-1", 90, self._clock.now(), **texts)

    def _end(self, ledger: Ledger) -> None:
        """As a runner does, which knows no secret."""
        (end,) = [each.end for each in ledger.refresh().attempts.values() if each.end is not None]
        ledger.append(lambda _: ev.RunFailed(cause=end.cause, detail=end.detail))

    def _beat(self) -> None:
        status = Status(self._folder)
        status.facts |= {"trouble": self._text(), "metrics": {self._text(): 0.5}}
        heartbeat = Heartbeat(self._store, self._clock, MemberName(self._launch, 0), status, self._console, Gpus({}))
        heartbeat.start()
        heartbeat.stop()

    def _text(self) -> str:
        return self._random.choice([*self.texts.values()])

    def _among_words(self, text: str) -> str:
        """So that some of them are cut where they are too long."""
        return "a word " * self._random.choice((0, 1, 130, 140, 142, 580)) + text

    # -- where somebody reads

    def _places(self) -> Iterator[tuple[str, str]]:
        for kind in ("logs", "ledger", "hints"):
            objects = [self._store.get(each.key) for each in self._store.list(f"{kind}/")]
            yield kind, b"".join(objects).decode()
        for command in COMMANDS:
            said = call(self._patch, *command.replace("RUN", NAME).split())
            assert said.code == 0, f"{command}: {said.err}"
            yield command, said.out + said.err
        yield "HTML", (self._folder / "report.html").read_text()
        for news in self._news():
            yield f"news, {news.kind}", letter(news, self._redactor).decode()

    def _news(self) -> Iterator[News]:
        """What this ledger has to tell, and what one would that nobody has cleaned."""
        ledger = Ledger(self._store, UID, "test", self._clock)
        ledger.refresh()
        yield from news_of(ledger.entries)
        for name, text in self.texts.items():
            yield News(1, name, self._clock.now(), NAME, self._among_words(text), {"fact": text})
