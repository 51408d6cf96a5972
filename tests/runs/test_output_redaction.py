"""Secrets that a job prints are in nothing that leaves its instance."""

from __future__ import annotations

import json

import pytest

from tests.support.sandbox import Sandbox

NAMES = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "AUTH", "DSN", "COOKIE", "PRIVATE")


def canary(number: int) -> str:
    return f"cNry{number:02d}Qx7vB2mK9pL4{number * 7919 % 1000:03d}"


def test_of_forty_canaries_none_is_in_the_ledger_the_logs_or_anything_that_is_shown(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = [canary(number) for number in range(40)]
    for number, value in enumerate(canaries):
        monkeypatch.setenv(f"C{number:02d}_{NAMES[number % len(NAMES)]}", value)
    path = sandbox.folder / "leaky.yaml"
    path.write_text(
        f"name: leaky\nrun: 'env | grep ^C..._; echo plain words; exit 3'\nworkdir: {sandbox.folder}\n"
        f"checkpoint: {{uri: '{sandbox.store}'}}\nlocal: {{time_scale: 60, boot: 10s}}\nretry: {{max_restarts: 0}}\n"
    )
    path.write_text(path.read_text().replace("^C..._", "^C[0-9]"))
    page = sandbox.folder / "report.html"
    shown = sandbox.call("launch", path, "-y", code=4)
    logs = sandbox.call("logs", "leaky")
    shown += logs + sandbox.ask("events", "leaky", "--json") + sandbox.ask("why", "leaky") + sandbox.ask("status")
    sandbox.ask("report", "leaky", "--html", page)
    stored = "".join(file.read_text(errors="replace") for file in sandbox.store.rglob("*") if file.is_file())
    everything = shown + page.read_text() + stored
    assert "plain words" in logs
    assert logs.count("*" * len(canaries[0])) >= 40, "they were printed, and starred"
    assert [value for value in canaries if value in everything or json.dumps(value)[1:-1] in everything] == []
