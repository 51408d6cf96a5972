"""`spotrun reap` looks again before it says that instances have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.cli.reap import _end
from spotrun.errors import CloudError
from spotrun.instance import Instance, InstanceState
from spotrun.runs import termination
from tests.support.histories import START, offering

LEFT = InstanceState.RUNNING


class Deaf:
    """A cloud that accepts each call to terminate, and then lists its instances in the given states, look by look."""

    def __init__(self, *looks: tuple[InstanceState, ...]) -> None:
        self._looks = iter(looks)
        self.disarmed: list[str] = []
        self.asked = [
            Instance(
                instance_id=f"i-{number}",
                token=f"0123456789-{number}",
                run_uid="0123456789",
                launch=number,
                offering=offering(),
                state=LEFT,
                launched_at=START,
            )
            for number in range(3)
        ]

    def terminate(self, instance_id: str) -> None:
        pass

    def disarm(self, token: str, region: str) -> None:
        self.disarmed.append(token)

    def instances(self, must_see: Collection[str]) -> list[Instance]:
        states = next(self._looks)
        return [replace(each, state=state) for each, state in zip(self.asked, states, strict=False)]


def ended(monkeypatch: pytest.MonkeyPatch, deaf: Deaf, within_s: float) -> CloudError | None:
    monkeypatch.setattr(termination, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(termination, "DOWN_WITHIN_S", within_s)
    cloud: Any = deaf
    return _end(deaf.asked, cloud, cloud, yes=True)


def test_reap_names_the_instances_that_do_not_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = Deaf((LEFT, InstanceState.STOPPED, InstanceState.STOPPING))
    failure = ended(monkeypatch, deaf, within_s=0.0)
    assert failure is not None
    assert failure.message == "asked to end 3 instances; 2 are still there: i-0, i-1"
    assert failure.hint == "repeat the command"
    assert "ended 1\n" in capsys.readouterr().out
    assert deaf.disarmed == ["0123456789-2"], "a guard still ends each of the others"


def test_reap_waits_until_instances_are_ending(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping, gone = InstanceState.STOPPING, InstanceState.TERMINATED
    assert ended(monkeypatch, Deaf((LEFT, LEFT, gone), (gone, stopping)), within_s=60.0) is None
    assert "ended 3\n" in capsys.readouterr().out
