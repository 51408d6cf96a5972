"""Processes of torchrun that train each for itself, as transformers does on a CPU: refused with what to write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.trainer_link import AGENT, GANG, Message, Refused
from spotrun.training import fit
from spotrun.training.session import Follower
from spotrun.training.unsupported import TrainingUnsupported

TRAINS_ALONE: Any = SimpleNamespace(rank=0, ranks=1)


class Listening(Follower):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Message] = []

    def tell(self, message: Message, fds: Any = ()) -> bool:
        self.told.append(message)
        return True


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Listening:
    agent = Listening()
    monkeypatch.setattr(fit, "claim", lambda: agent)
    monkeypatch.setattr(fit, "OTHERS_WAIT_S", 0)
    for name, value in {AGENT: "/nowhere", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    return agent


def test_rank_0_tells_its_agent_what_to_write(agent: Listening) -> None:
    with pytest.raises(TrainingUnsupported, match="2 processes, but each of them trains alone") as refused:
        fit._agent_of(TRAINS_ALONE)
    (told,) = agent.told
    assert isinstance(told, Refused)
    assert told.hint == refused.value.hint
    assert "TrainingArguments(use_cpu=True)" in told.hint


def test_other_ranks_say_nothing_to_the_agent(agent: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(TrainingUnsupported, match="trains alone"):
        fit._agent_of(TRAINS_ALONE)
    assert not agent.told


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "1"), (GANG, "1 2 2"), (AGENT, None)])
def test_others_are_not_refused(
    agent: Listening, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    """One process; a member of a gang, which has a check of its own; a training without an agent."""
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    assert fit._agent_of(TRAINS_ALONE)[1] is agent
