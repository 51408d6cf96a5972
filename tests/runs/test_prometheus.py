"""Prometheus itself reads what `spotrun metrics` says, and answers each question of the dashboard."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from spotrun.folder.status_objects import AgentStatus, Busy, MachineUse, agent_key, write_status
from spotrun.store.local import LocalStore
from tests.support import histories
from tests.support.called_spotrun import Spotrun
from tests.support.decisions import spec
from tests.support.eventually import eventually
from tests.support.histories import History
from tests.support.object_stores import free_ports
from tests.support.repository import ROOT
from tests.support.short_runs import trained
from tests.support.stored_runs import store_run

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="there is no prometheus on the PATH"
)
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: spotrun
    static_configs: [{{targets: ["{target}"]}}]
"""


@contextmanager
def metrics_served(store: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of /metrics, and the process behind it, which is ended if it is still there."""
    command = [sys.executable, "-m", "spotrun", "metrics", "--store", store, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"serving (http://127\.0\.0\.1:\d+/metrics); Ctrl-C ends it\n", process.stdout.readline())
            assert found is not None
            yield found[1], process
        finally:
            process.kill()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of today, of which one trains, and one that cannot be read."""
    monkeypatch.setattr(histories, "START", datetime.now(UTC) - timedelta(hours=2))
    folder = tmp_path / "runs"
    history = trained(2, hours_each=0.5, uid="1", spec=spec().to_dict())
    run = store_run(folder, history)
    busy = Busy(busy_s=1, of_s=2)
    used = MachineUse(cpu=busy, memory=busy, gpu=busy, gpu_memory=busy, waited=busy)
    launch = next(iter(history.state.launches))
    status = AgentStatus(launch=launch, phase="train", at=history.now, sequence=9, used=used)
    write_status(LocalStore(run), agent_key(launch), status)
    store_run(folder, History(uid="2", spec=spec().to_dict()))
    store_run(folder, History(uid="3"))
    (folder / "demo-3" / "ledger" / "00000000.json").write_bytes(b"{}")
    return folder


def test_metrics_are_served_in_both_formats_until_a_signal(store: Path) -> None:
    with metrics_served(store) as (url, process):
        asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
        assert text.endswith("# EOF\n")
        assert "spotrun_run_cost_usd" in {family.name for family in parse(text)}
        plain = urllib.request.Request(url, headers={"Accept": "text/plain", "Accept-Encoding": "gzip"})
        with urllib.request.urlopen(plain, timeout=60) as answer:
            assert "# TYPE spotrun_run_interruptions_total counter" in gzip.decompress(answer.read()).decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_page_whose_name_leads_to_this_machine_gets_no_metrics(store: Path) -> None:
    """A browser takes the endpoint for a part of the page if the page's name suddenly has the endpoint's address."""
    with metrics_served(store) as (url, _):
        for host in ("evil.example", "evil.example:9753", "127.0.0.1.evil.example", "10.1.2.3:9753", ""):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host}), timeout=60)
            told = refused.value.read().decode()
            assert (refused.value.code, "spotrun_" in told) == (403, False), host
            assert "use the address in --listen" in told
        for host in ("localhost:1", "LocalHost", "127.0.0.1", "[::1]:9753"):
            asked = urllib.request.Request(url, headers={"Host": host})
            assert urllib.request.urlopen(asked, timeout=60).status == 200, host


def test_a_port_that_is_taken_is_one_error(store: Path, spotrun: Spotrun) -> None:
    with metrics_served(store) as (url, _):
        said = spotrun("metrics", "--store", store, "--listen", urllib.parse.urlsplit(url).netloc)
    assert said.code == 1
    assert "error: cannot listen at 127.0.0.1:" in said.err
    assert "Address already in use" in said.err
    assert "try: name another port" in said.err


def test_an_address_of_another_machine_is_not_taken_for_a_port_that_is_in_use(store: Path, spotrun: Spotrun) -> None:
    said = spotrun("metrics", "--store", store, "--listen", "203.0.113.1:9753")
    assert said.code == 1
    assert "try: name an address of this machine" in said.err


@needs_prometheus
def test_promtool_has_nothing_to_say_about_the_textfile(store: Path, tmp_path: Path, spotrun: Spotrun) -> None:
    file = tmp_path / "spotrun.prom"
    assert spotrun("metrics", "--store", store, "--textfile", file).code == 0
    assert _checked(file.read_text()) == (0, "")
    bad = file.read_text().replace("spotrun_run_interruptions_total", "spotrun_run_interruptions")
    code, said = _checked(bad)
    assert code != 0
    assert 'counter metrics should have "_total" suffix' in said


def _checked(text: str) -> tuple[int, str]:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "metrics"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_scrapes_them_and_answers_what_the_dashboard_asks(store: Path, tmp_path: Path) -> None:
    with metrics_served(store) as (url, _), prometheus(tmp_path, urllib.parse.urlsplit(url).netloc) as server:
        questions = list(_questions())
        eventually(lambda: all(_answer(server, question) for question in questions))
        assert [each["value"][1] for each in _answer(server, "up")] == ["1"]
        (cost,) = _answer(server, 'sum by (run) (spotrun_run_cost_usd{run="demo-1"})')
        assert float(cost["value"][1]) > 1.5, "an hour and more at $1.50"
        (unreadable,) = _answer(server, "spotrun_run_unreadable")
        assert unreadable["metric"]["run"] == "demo-3"
        with urllib.request.urlopen(f"{server}/api/v1/metadata", timeout=60) as answer:
            known = json.load(answer)["data"]
        assert known["spotrun_run_cost_usd"][0]["unit"] == "usd"
        assert known["spotrun_run_state"][0]["type"] == "stateset"


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus that scrapes `target` each second; its address."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target))
    (port,) = free_ports(1)
    assert PROMETHEUS is not None
    flags = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log, subprocess.Popen([PROMETHEUS, *flags], stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _answer(server: str, question: str) -> list[dict[str, Any]]:
    """Nothing before it is ready, too."""
    query = urllib.parse.urlencode({"query": question})
    try:
        with urllib.request.urlopen(f"{server}/api/v1/query?{query}", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise AssertionError(f"{question}: {error.read().decode()}") from error
        return []
    except OSError:
        return []


def _questions() -> Iterator[str]:
    """What the panels ask if nothing was chosen."""
    for panel in json.loads((ROOT / "infra/grafana/spotrun.json").read_text())["panels"]:
        for target in panel["targets"]:
            if "budget" not in target["expr"]:
                yield target["expr"].replace("$run", ".*").replace("$cloud", ".*")
