"""What a script with a `Loop` may not do is refused before its first step, and what it loses is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.trainer_link import Finished, NotCarried, Progress, Refused, SnapshotTaken
from tests.support.repository import ROOT
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPT = str(ROOT / "tests/support/trainings/refused_loops.py")


PATTERNS = {
    "second_loop": "a loop within another one",
    "enumerated": "`enumerate` around `loop.batches`",
    "enumerated_bar": "`enumerate` around a progress bar around `loop.batches`",
    "zipped": "`zip` of `loop.batches` and other data",
    "sliced": "`islice` around `loop.batches`",
    "cycle_before_the_pass": "`zip` of `loop.cycle` and, after it, `loop.batches`",
    "cycle_within": "`loop.cycle` called within the loop",
    "reads_on_and_on": "an iterator in a local variable that the loop begins again",
    "counts_in_a_local": "counters and best values in local variables",
    "sets_what_it_lacks": "a local variable that only the first batch sets",
    "no_optimizer": "a `Loop` without an optimizer",
    "other_model": "an optimizer of a model that `Loop` was not given",
    "uneven": "processes with different numbers of batches (`Join`)",
    "outside_of_epochs": "`loop.batches` outside of `loop.epochs`",
}


@pytest.mark.pattern("refused", "own loop", of="name", texts=PATTERNS)
@pytest.mark.parametrize(
    ("name", "reason", "hint"),
    [
        ("second_loop", "a loop was started while another one was running", "one after the other"),
        ("enumerated", "enumerate() counts the batches", "loop.enumerate"),
        ("enumerated_bar", "enumerate() counts the batches", "loop.enumerate"),
        ("zipped", "zip() reads its other iterables from their beginning", "it = loop.cycle(other)"),
        ("sliced", "islice() counts the batches", "loop.enumerate"),
        ("cycle_before_the_pass", "zip() reads its other iterables from their beginning", "it = loop.cycle(other)"),
        ("cycle_within", "loop.cycle was called while the loop was running", "before the loop"),
        ("reads_on_and_on", "others (refused_loops.py:122)", "others = loop.cycle(loader) before the loop"),
        (
            "counts_in_a_local",
            "no checkpoint holds them: best (refused_loops.py:111), total (refused_loops.py:108)",
            "s = loop.state(best=0, total=0) before the loop, and s.best in place of best; or set checkpoint",
        ),
        ("sets_what_it_lacks", "holds them: scale (refused_loops.py:", "s = loop.state(scale=None) before the loop"),
        ("no_optimizer", "Loop has no optimizer", "optimizer=optimizer"),
        ("other_model", "optimizer trains weights of no model that Loop was given", "other=other"),
        ("outside_of_epochs", "loop.batches was called outside of loop.epochs", "loop.epochs(10)"),
        ("uneven", "the processes have different numbers of batches: 4, 5", "with a DistributedSampler"),
    ],
)
def test_refused_before_the_first_step(zygote: Zygote, tmp_path: Path, name: str, reason: str, hint: str) -> None:
    job = {"script": SCRIPT, "name": name} | ({"ranks": 2} if name == "uneven" else {})
    agent = Agent(zygote, job, tmp_path, every_steps=1)
    assert agent.attempt() == "refused", agent.log.read_text()
    assert not agent.told(Progress)
    (refused,) = agent.told(Refused)
    assert reason in refused.reason
    assert hint in refused.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "counts_in_both_loops",
            "add best=0.5, total=0.25 to kept = loop.state(…), and kept.best in place of best; or",
        ),
        ("counts_without_passes", "s = loop.state(total=3) before the loop, and s.total in place of total; or"),
    ],
)
def test_variables_of_all_loops_are_refused_at_once(zygote: Zygote, tmp_path: Path, name: str, hint: str) -> None:
    agent = Agent(zygote, {"script": SCRIPT, "name": name}, tmp_path, every_steps=1)
    assert agent.attempt() == "refused", agent.log.read_text()
    assert agent.told(Refused)[0].hint.startswith(hint)


@pytest.mark.pattern("refused later", "own loop", text="a pass over the data within another pass")
def test_two_passes_at_once_are_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, {"script": SCRIPT, "name": "two_passes_at_once"}, tmp_path)
    assert agent.attempt() == "refused"
    assert "within another pass" in agent.told(Refused)[0].reason


@pytest.mark.pattern("refused later", "own loop", text="a layer that joins the model at the beginning of an epoch")
def test_layer_that_only_one_epoch_makes_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """A resume in a later epoch would not make it again. One in that epoch would, with what its code sets there."""
    agent = Agent(zygote, {"script": SCRIPT, "name": "grows"}, tmp_path, every_steps=1)
    assert agent.attempt() == "refused"
    assert "model.1, which is new" in agent.told(Refused)[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"width": 4}, "other.weight was weights of shape (3, 3), and is weights of shape (4, 3)"),
        ({"samples": 14}, "the training data had 6 batches, and has 7"),
    ],
)
def test_another_script_does_not_go_on(zygote: Zygote, tmp_path: Path, change: dict[str, int], reason: str) -> None:
    within: list[tuple[bytes, SnapshotTaken]] = []

    def heard(agent: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken) and message.batch and not message.epoch_ended:
            within.append((agent.image, message))
            agent.kill()

    agent = Agent(zygote, {"script": SCRIPT, "name": "shaped", "epochs": 10_000}, tmp_path, every_steps=1)
    agent.on_message = heard
    assert agent.attempt() == "killed"
    agent.on_message, (agent.image, agent.snapshot) = None, within[0]
    agent.job = {"script": SCRIPT, "name": "shaped", "epochs": 10_000, **change}
    assert agent.attempt() == "refused", agent.log.read_text()
    assert agent.told(Refused)[-1].reason == reason


@pytest.mark.pattern("exact", "own loop", text="clock readings in local variables")
def test_readings_of_clocks_are_not_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, {"script": SCRIPT, "name": "looks_at_clocks"}, tmp_path, every_steps=1)
    assert agent.attempt() == "finished", agent.log.read_text()


def test_objects_that_a_loop_changes_in_place_are_not_refused(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, {"script": SCRIPT, "name": "changes_in_place"}, tmp_path, every_steps=1)
    assert agent.attempt() == "finished", agent.log.read_text()
    assert not agent.told(NotCarried)


def test_what_is_read_after_the_loop_is_refused_at_once_if_a_resume_must_be_exact(
    zygote: Zygote, tmp_path: Path
) -> None:
    job = {"script": SCRIPT, "name": "ends_with_a_local"}
    agent = Agent(zygote, job, tmp_path / "require", every_steps=1, exact="require")
    assert agent.attempt() == "refused", agent.log.read_text()
    assert "number (refused_loops.py:" in agent.told(Refused)[0].reason
    agent = Agent(zygote, job, tmp_path / "tell", every_steps=1)
    assert agent.attempt() == "finished", agent.log.read_text()


def test_value_that_a_resumed_epoch_begins_with_otherwise_is_named(zygote: Zygote, tmp_path: Path) -> None:
    def heard(agent: Agent, message: object) -> None:
        within = isinstance(message, SnapshotTaken) and message.batch and not message.epoch_ended
        if isinstance(message, NotCarried) or (within and agent.attempts == 1):
            agent.kill()

    agent = Agent(zygote, {"script": SCRIPT, "name": "begins_from_state"}, tmp_path, every_steps=1, on_message=heard)
    assert agent.attempt() == "killed", agent.log.read_text()
    assert not agent.told(NotCarried)
    assert agent.attempt() == "killed", agent.log.read_text()
    (named,) = [place for told in agent.told(NotCarried) for place, _ in told.places]
    assert named == "begins_from_state().start"


@pytest.mark.pattern("named", "own loop", text="counters in local variables, with `exact: off`")
def test_a_local_variable_that_the_loop_goes_on_with_is_named_once(zygote: Zygote, tmp_path: Path) -> None:
    """`number` is not needed again. `last` is needed behind the pass, where no snapshot is taken therefore."""
    agent = Agent(zygote, {"script": SCRIPT, "name": "counts_in_a_local"}, tmp_path, every_steps=1, exact="off")
    assert agent.attempt() == "finished", agent.log.read_text()
    named = [place for told in agent.told(NotCarried) for place, _ in told.places]
    assert sorted(named) == [f"counts_in_a_local().{name}" for name in ("best", "seen", "total")]


def test_an_exception_is_no_end(zygote: Zygote, tmp_path: Path) -> None:
    agent = Agent(zygote, {"script": SCRIPT, "name": "raises"}, tmp_path, every_steps=1)
    assert agent.attempt() == "failed"
    assert not agent.told(Finished)
    assert agent.told(Progress)[-1].step == 3


@pytest.mark.pattern(
    "named", "own loop", of="by", texts={"accelerate": "accelerate without `Loop`", "fabric": "Fabric without `Loop`"}
)
@pytest.mark.parametrize(("by", "name"), [("accelerate", "accelerate"), ("fabric", "Fabric")])
def test_script_without_a_loop_gets_a_list_of_what_it_would_lose(
    zygote: Zygote, tmp_path: Path, by: str, name: str
) -> None:
    script = str(ROOT / "tests/support/trainings/without_loop.py")
    agent = Agent(zygote, {"script": script, "by": by, "loop": False}, tmp_path / "without")
    agent.attempt()
    assert agent.log.read_text().count(f"trains with {name} and has no Loop") == 1
    (told,) = agent.told(NotCarried)
    assert told.places == (
        (
            "the weights, the optimizers and the place in the data",
            f"a training by {name} without a Loop: docs/loops.md",
        ),
    )
    agent = Agent(zygote, {"script": script, "by": by, "loop": True}, tmp_path / "with")
    assert agent.attempt() == "finished", agent.log.read_text()
    assert not agent.told(NotCarried), agent.log.read_text()
