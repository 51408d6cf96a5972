"""The secret by which the ranks of a training recognise each other, and where they listen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from spotrun.agent.gang.rendezvous import listens_on
from spotrun.agent.logs.secret_values import Secrets
from spotrun.errors import StoreError
from spotrun.folder import ranks_secret
from spotrun.spec.model import RunSpec
from spotrun.store.local import LocalStore
from spotrun.trainer_link import RANKS_SECRET


def test_members_of_a_gang_have_one_secret_that_other_users_cannot_read(tmp_path: Path) -> None:
    found = {ranks_secret.of_gang(LocalStore(tmp_path / "runs" / "demo")) for _ in range(3)}
    assert len(found) == 1
    assert (tmp_path / "runs" / "demo" / ranks_secret.NAME).stat().st_mode & 0o077 == 0
    assert ranks_secret.of_gang(LocalStore(tmp_path / "runs" / "other")) not in found


@pytest.mark.parametrize("content", [b"", b"short", b"5e" * 33, b"5E" * 32])
def test_object_that_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path / "demo")
    store.put_if_absent(ranks_secret.NAME, content)
    with pytest.raises(StoreError, match="not a valid secret"):
        ranks_secret.of_gang(store)


def test_training_that_prints_its_environment_does_not_tell_the_secret(tmp_path: Path) -> None:
    spec = RunSpec.from_dict({"name": "demo", "workdir": "/", "train": {"run": "env"}})
    redaction = Secrets().redaction(spec, tmp_path)
    secret = ranks_secret.new()
    for printed in (
        f"{RANKS_SECRET}={secret}",
        str({"A": "b", RANKS_SECRET: secret}),
        f'{{"{RANKS_SECRET}": "{secret}"}}',
    ):
        assert secret.encode() not in redaction.hide(f"{printed}\n".encode())


@pytest.mark.parametrize(
    ("address", "interface"),
    [("", "lo"), ("127.0.0.1", "lo"), ("127.77.1.2", "lo"), ("10.0.0.7", "ib0"), ("10.0.0.9", None)],
)
def test_gloo_listens_at_the_interface_of_the_member(
    monkeypatch: pytest.MonkeyPatch, address: str, interface: str | None
) -> None:
    here = {"lo": ["127.0.0.1"], "eth0": ["10.1.0.7", "fe80::1"], "ib0": ["fe80::2", "10.0.0.7"]}
    interfaces = {name: [SimpleNamespace(address=each) for each in addresses] for name, addresses in here.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    found = listens_on(address)
    assert found.get("GLOO_SOCKET_IFNAME") == interface
    assert ("NCCL_SOCKET_IFNAME" in found) == (interface == "lo")
