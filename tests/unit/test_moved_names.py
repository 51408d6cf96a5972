"""What `make battery NAME=newest` says of a private name that a newer release does not have."""

from __future__ import annotations

import hydra.core.utils
import pytest
import torch

from tests.batteries import moved_names, newest

HYDRA = {"hydra.core.utils": moved_names.TAKEN["hydra.core.utils"]}


@pytest.fixture(autouse=True)
def only_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_names, "WATCHED", ("hydra.core.utils",))


def test_nothing_has_moved_in_what_is_locked() -> None:
    assert list(moved_names.not_taken(HYDRA)) == []


def test_renamed_private_name_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(moved_names, "LOOKS", (lambda: moved_names.not_taken(HYDRA),))
    assert newest.look() == 0
    assert "no private name has moved" in capsys.readouterr().out
    monkeypatch.setattr(hydra.core.utils, "set_up_globals", hydra.core.utils.setup_globals, raising=False)
    monkeypatch.delattr(hydra.core.utils, "setup_globals")
    assert newest.look() == 1
    assert "MOVED: hydra.core.utils.setup_globals\n" in capsys.readouterr().out


def test_missing_module_is_reported() -> None:
    assert list(moved_names.not_taken({"hydra.core.gone": ("anything",)})) == ["hydra.core.gone"]


def test_wrapper_that_keeps_the_model_elsewhere_is_reported() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, inside: torch.nn.Module) -> None:
            super().__init__()
            self.elsewhere = inside

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    said = moved_names.not_inside("Fabric", Wrapper(model), optimizer, moved_names.loader(), model)
    assert list(said) == ["Fabric: the model is in none of _forward_module, _orig_mod"]


def test_each_package_has_a_floor() -> None:
    assert len(newest.requirements()) == len(moved_names.PACKAGES)
