"""What changes in a training and is in no checkpoint is in the ledger once, and wherever one looks at the run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spotrun.account.gaps import Gap, gaps
from spotrun.account.summary import summarise
from spotrun.agent.attempt_journal import NAMED_MAX, AttemptJournal
from spotrun.errors import SpotrunError
from spotrun.folder.final_status import run_status
from spotrun.folder.ledger import Ledger
from spotrun.report import machine_readable, overview, terminal
from spotrun.report.gaps import briefly, for_programs
from spotrun.report.why import decisions
from spotrun.run import events as ev
from spotrun.spec.yaml import read_yaml
from spotrun.trainer_link import Message, NotCarried, Refused
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.ranks import Ranks
from spotrun.training.session import Follower, alone
from spotrun.training.untracked_report import UntrackedReporter
from tests.support.decisions import spec
from tests.support.histories import History, refused
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.report_samples import HOSTILE, report_page

SENTENCE = "module.link (socket.socket) has changed by step 40 and is in no checkpoint"


def training() -> History:
    """It has named one place at step 40, after a checkpoint of step 30."""
    history = History(spec=spec().to_dict())
    history.running()
    history.step = 30
    history.after(60).commit()
    history.step = 40
    history.after(20).not_carried("module.link")
    return history


def resumed(history: History) -> History:
    history.exited()
    history.after(5).resume()
    history.after(5).training()
    return history


# --- the ledger


def test_a_place_is_named_once_in_a_run() -> None:
    history = training()
    refused(history, ev.StateNotCarried(attempt=history.attempt, step=50, places=()), "it names nothing")
    again = ev.StateNotCarried(
        attempt=history.attempt,
        step=50,
        places=(ev.Uncarried(place="b", what="x"), ev.Uncarried(place="module.link", what="y")),
    )
    refused(history, again, "already reported")
    assert [(one.place, one.what, one.step) for one in history.state.not_carried] == [
        ("module.link", "socket.socket", 40)
    ]


def test_only_the_current_attempt_names_a_place() -> None:
    history = training()
    attempt = history.attempt
    history.ended()
    late = ev.StateNotCarried(attempt=attempt, step=50, places=(ev.Uncarried(place="b", what="x"),))
    refused(history, late, "not the current one")


def test_a_resume_from_before_the_change_lacks_nothing() -> None:
    history = resumed(training())
    assert gaps(history.state) == (Gap(place="module.link", what="socket.socket", step=40, resumes=0),)
    history.step = 60
    history.after(60).commit()
    assert [gap.resumes for gap in gaps(resumed(history).state)] == [1]


class Journal(AttemptJournal):
    """Of the current attempt of a history, which it writes to at once."""

    def __init__(self, history: History) -> None:
        clock = ManualClock(history.now)
        store = MemoryStore(clock)
        history.put_into(store)
        ledger = Ledger(store, history.uid, "test", clock, retry_for_s=0)
        self.ledger = ledger
        ledger.refresh()
        mine = history.state.attempts[history.attempt]
        super().__init__(self, mine.launch, mine.instance_id, mine.booted_at)  # type: ignore[arg-type]
        self.attempt = history.attempt

    def append(self, decide: object) -> object:
        return self.ledger.append(decide)  # type: ignore[arg-type]


def test_the_agent_writes_down_only_what_the_run_has_not_named() -> None:
    journal = Journal(resumed(training()))
    before = journal.ledger.state.next_number
    journal.not_carried(50, [("module.link", "socket.socket")])
    assert journal.ledger.state.next_number == before
    journal.not_carried(50, [("module.link", "socket.socket"), ("module.env", "gym.Env")])
    assert [(one.place, one.step) for one in journal.ledger.state.not_carried] == [
        ("module.link", 40),
        ("module.env", 50),
    ]


def test_however_much_a_training_names_the_entry_has_room_for_it() -> None:
    journal = Journal(training())
    weird = "\U000e0001" * 999
    journal.not_carried(50, [(f"{number}{weird}", "\u2028" * 999) for number in range(500)])
    journal.not_carried(60, [(f"late {number}", "x") for number in range(500)])
    assert len(journal.ledger.state.not_carried) == NAMED_MAX


# --- where one looks


def test_status_says_it_in_words_and_for_programs() -> None:
    history = training()
    history.step = 60
    history.after(60).commit()
    resumed(history)
    summary = summarise(history.state, history.now)
    status = run_status(history.state, summary, history.now)
    told = for_programs(status.gaps)
    assert told == [{"place": "module.link", "what": "socket.socket", "step": 40, "resumes": 1}]
    row = {"run": "demo", "not_carried": told}
    assert overview.notes([row]) == [f"demo: {SENTENCE}; 1 resume since then continued without it"]


def test_a_list_of_runs_names_the_first_ones() -> None:
    told = for_programs(Gap(place=f"p{number}", what="x", step=1, resumes=0) for number in range(5))
    assert len(briefly(told)) == 4
    assert briefly(told)[-1] == "2 more in `spotrun why`"


def test_gap_of_a_command_names_no_step() -> None:
    history = History(spec=spec(train={"run": "./simulate", "state": ["out/"]}).to_dict())
    history.running()
    history.step = 0
    history.not_carried("the state", what="nothing exists at out/: the state is empty")
    (told,) = [each for each in decisions(history.entries, spec()) if each.kind == "not carried"]
    assert told.sentence == "in no checkpoint: the state (nothing exists at out/: the state is empty)"
    gap = Gap(place="the state", what="nothing exists at out/: the state is empty", step=0, resumes=0)
    assert briefly(for_programs([gap])) == ["the state: nothing exists at out/: the state is empty"]


def test_why_tells_it_as_an_entry_of_its_own() -> None:
    (told,) = [each for each in decisions(training().entries, spec()) if each.kind == "not carried"]
    assert told.sentence == "changed by step 40 and in no checkpoint: module.link (socket.socket)"


def test_every_form_of_the_report_names_untracked_state() -> None:
    history = training()
    summary = summarise(history.state, history.now)
    text = io.StringIO()
    terminal.show(summary, Console(file=text, width=200))
    assert f"Not exact: {SENTENCE}." in text.getvalue()
    told = {"place": "module.link", "what": "socket.socket", "step": 40, "resumes": 0}
    assert machine_readable.report(summary)["not_carried"] == [told]
    page = report_page(history)
    assert "In no checkpoint" in page
    assert "module.link" in page


def test_a_run_that_carries_all_says_nothing_of_it() -> None:
    history = History()
    history.running()
    assert "In no checkpoint" not in report_page(history)
    assert machine_readable.report(summarise(history.state, history.now))["not_carried"] == []


def test_a_name_that_tries_to_be_more_than_a_name_is_only_shown() -> None:
    history = training()
    history.not_carried(HOSTILE, what=HOSTILE)
    assert "<script>alert(1)" not in report_page(history)
    assert "\x1b" not in "".join(briefly(for_programs(gaps(history.state))))


# --- the trainer


class Told(Follower):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def tell(self, message: Message, fds: object = ()) -> bool:
        self.messages.append(message)
        return True


FOUND = [
    UntrackedChange("module.link", "socket.socket"),
    UntrackedChange("os.environ['STAGE']", "an environment variable"),
]


def test_a_training_tells_its_agent_once(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Told()
    untracked = UntrackedReporter(agent, Ranks(0, 1), required=False)
    for step in (5, 6):
        untracked.say([*FOUND, *FOUND], step)
    assert agent.messages == [NotCarried(step=5, places=tuple((lost.path, lost.what) for lost in FOUND))]
    assert capsys.readouterr().err.splitlines() == [
        "spotrun: module.link has changed and is in no checkpoint: socket.socket",
        "spotrun: os.environ['STAGE'] has changed and is in no checkpoint: an environment variable",
    ]


def test_training_without_an_agent_names_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    UntrackedReporter(alone(), Ranks(0, 1), required=False).say(FOUND, 5)
    assert capsys.readouterr().err == ""


def test_a_training_that_has_to_be_exact_ends_there_and_says_what_to_do() -> None:
    agent = Told()
    untracked = UntrackedReporter(agent, Ranks(0, 1), required=True)
    untracked.say([], 4)
    with pytest.raises(SpotrunError, match=r"module\.link has changed and is in no checkpoint"):
        untracked.say(FOUND, 5)
    named, refusal = agent.messages
    assert isinstance(named, NotCarried)
    assert isinstance(refusal, Refused)
    assert "by step 5 module.link has changed and is in no checkpoint: socket.socket, and so have 1 more" in (
        refusal.reason
    )
    assert "checkpoint.exact forbids it" in refusal.reason
    assert "checkpoints.md" in refusal.hint


def test_the_key_of_a_job_is_read() -> None:
    assert spec().checkpoint.exact == "tell"
    document = read_yaml("{checkpoint: {exact: off}, name: off}")
    assert document.data["checkpoint"] == {"exact": "off"}
    assert [problem.key for _, problem in document.problems] == [("name",)], "elsewhere, YAML reads it as false"
    assert spec(checkpoint={"exact": "require"}).checkpoint.exact == "require"
