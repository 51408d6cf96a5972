"""How a training finds its agent: a path in its environment, of any length, which one process may take."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from spotrun import trainer_link
from spotrun.trainer_link import AGENT, TAKEN, LinkLost, Message, TrainerLink, TurnedAway, Welcome
from spotrun.wire import unix_path

LONG = "a folder with spaces and ümläuts " * 7


@contextmanager
def listening(path: Path, answer: Callable[[TrainerLink], None]) -> Iterator[str]:
    """An agent that gives one answer."""
    with closing(unix_path.listen(str(path))) as sock:
        thread = threading.Thread(target=lambda: answer(TrainerLink(sock.accept()[0])))
        thread.start()
        yield str(path)
        thread.join()


def saying(message: Message) -> Callable[[TrainerLink], None]:
    return lambda link: link.send(message)


@pytest.mark.parametrize("name", ["short", LONG], ids=["short", "long"])
def test_the_first_who_asks_gets_the_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name[:200].strip()
    folder.mkdir()
    with listening(folder / "link", saying(Welcome())) as address:
        monkeypatch.setenv(AGENT, address)
        link = trainer_link.from_environment()
    assert link is not None
    assert os.environ[AGENT] == TAKEN + address
    assert trainer_link.from_environment() is None
    link.close()


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    with closing(unix_path.listen(str(tmp_path / "link"))):
        assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o600


@pytest.mark.parametrize("value", [None, "", f"{TAKEN}/somewhere"])
def test_no_agent_no_link(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(AGENT, raising=False)
    if value is not None:
        monkeypatch.setenv(AGENT, value)
    assert trainer_link.from_environment() is None


@pytest.mark.parametrize("value", ["7", "nonsense", "/", "/nowhere/at/all", "a\nb", "/tmp/" + "x" * 5000])
def test_a_variable_without_a_socket_is_no_missing_agent(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(AGENT, value)
    with pytest.raises(LinkLost, match="no agent listens at SPOTRUN_AGENT=") as lost:
        trainer_link.from_environment()
    assert "env -u SPOTRUN_AGENT" in lost.value.hint
    assert os.environ[AGENT] == value


def test_a_socket_that_is_left_of_an_agent_that_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unix_path.listen(str(tmp_path / "link")).close()
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        monkeypatch.setenv(AGENT, str(tmp_path / name))
        with pytest.raises(LinkLost, match="Connection refused"):
            trainer_link.from_environment()


def test_refused_trainer_receives_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with listening(tmp_path / "link", saying(TurnedAway(reason="one is enough", hint="go home"))) as address:
        monkeypatch.setenv(AGENT, address)
        with pytest.raises(LinkLost, match="one is enough") as lost:
            trainer_link.from_environment()
    assert lost.value.hint == "go home"


def test_peer_that_closes_at_once_or_sends_no_welcome_is_no_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = {"closed": TrainerLink.close, "strange": saying(trainer_link.DrainWanted(reason="no welcome"))}
    for name, answer in answers.items():
        with listening(tmp_path / name, answer) as address:
            monkeypatch.setenv(AGENT, address)
            with pytest.raises(LinkLost, match=r"has gone|is not an agent"):
                trainer_link.from_environment()
