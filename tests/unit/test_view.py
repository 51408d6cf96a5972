"""`spotrun view`: pages for the user who knows their address, made with few requests to the store."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from spotrun.errors import StoreUnavailable
from spotrun.store.local import LocalStore
from spotrun.store.port import StoredObject
from spotrun.view import pages as view_pages
from spotrun.view.pages import LIST, Made, Pages
from spotrun.view.server import ViewServer
from tests.support.called_spotrun import Spotrun
from tests.support.decisions import spec
from tests.support.short_runs import bare, trained
from tests.support.stored_runs import new_run, store_run

HOST = "127.0.0.1"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The keys and prefixes that were read from stores since."""
    found: Counter[str] = Counter()
    get, listed = LocalStore.get, LocalStore.list

    def counted_get(self: LocalStore, key: str, start: int = 0, size: int | None = None) -> bytes:
        found[key] += 1
        return get(self, key, start, size)

    def counted_list(self: LocalStore, prefix: str, after: str = "") -> list[StoredObject]:
        found[prefix] += 1
        return listed(self, prefix, after)

    monkeypatch.setattr(LocalStore, "get", counted_get)
    monkeypatch.setattr(LocalStore, "list", counted_list)
    return found


@pytest.fixture
def server(runs: Path) -> Iterator[ViewServer]:
    new_run(runs, "demo", "1")
    with ViewServer(Pages(str(runs)), 0) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def answer(server: ViewServer, path: str, method: str = "GET", host: str = HOST) -> tuple[int, str]:
    connection = HTTPConnection(HOST, server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host})
    with connection.getresponse() as answered:
        return answered.status, answered.read().decode()


def shown(pages: Pages, name: str = LIST) -> str:
    """The text of a page that was made without an error."""
    made = pages.page(name)
    assert isinstance(made, Made)
    assert not made.failed, made.text
    return made.text


def test_a_page_is_only_at_the_address_with_the_word(server: ViewServer) -> None:
    at = f"/{server.word}/"
    status, listed = answer(server, at)
    assert (status, '<a href="demo-1">demo-1</a>' in listed) == (200, True)
    status, report = answer(server, f"{at}demo-1")
    assert (status, "Course of the run" in report) == (200, True)
    for path in ("/", "/demo-1", "/wrong/demo-1", at[:-1], f"{at}demo-2", f"{at}../runs/demo-1", f"{at}demo-1/", "*"):
        status, said = answer(server, path)
        assert (status, "demo" in said) == (404, False), path
    assert answer(server, at, "POST")[0] == 501


def test_a_web_page_whose_name_leads_to_this_machine_gets_no_page(server: ViewServer) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.1.2.3:80", "", "[::1]:80"):
        status, said = answer(server, f"/{server.word}/", host=host)
        assert (status, "demo" in said) == (403, False), host
    for host in ("localhost", "LocalHost:1", "127.0.0.1:65535"):
        assert answer(server, f"/{server.word}/", host=host)[0] == 200, host


def test_a_page_is_made_once_for_many_tabs(runs: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    store_run(runs, trained(1, spec=spec().to_dict()))
    pages = Pages(str(runs))
    first = [shown(pages), shown(pages, "demo-0123456789")]
    assert reads.total() > 0
    reads.clear()
    assert [shown(pages), shown(pages, "demo-0123456789")] == first
    assert reads.total() == 0
    monkeypatch.setattr(view_pages, "FRESH_FOR_S", 0.0)
    shown(pages)
    assert reads.total() > 0


def test_a_run_that_grows_is_shown_from_its_new_entries(
    runs: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_pages, "FRESH_FOR_S", 0.0)
    history = trained(1, spec=spec().to_dict())
    folder = store_run(runs, history)
    pages = Pages(str(runs))
    second_epoch = '<th scope="row" data-value="2">2</th>'
    assert second_epoch not in shown(pages, "demo-0123456789")
    last = history.state.next_number
    reads.clear()
    history.step += 100
    history.after(3600).epoch(1)
    history.commit()
    history.put_into(LocalStore(folder))
    assert second_epoch in shown(pages, "demo-0123456789")
    read = {key for key in reads if key.startswith("ledger/0")}
    assert {f"ledger/{last:08}.json", f"ledger/{last + 1:08}.json"} <= read
    assert f"ledger/{last - 2:08}.json" not in read


def test_the_page_of_an_ended_run_is_made_once(
    runs: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_pages, "FRESH_FOR_S", 0.0)
    store_run(runs, bare())
    pages = Pages(str(runs))
    first = shown(pages, "demo-0123456789")
    reads.clear()
    assert shown(pages, "demo-0123456789") == first
    assert reads.total() == 1, "the entry that is not there yet"


def test_a_store_that_does_not_answer_is_an_error_until_it_answers(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_pages, "FRESH_FOR_S", 0.0)
    pages = Pages(str(runs))
    assert "Runs in" in shown(pages)
    with monkeypatch.context() as patched:
        patched.setattr(view_pages, "persist", _unavailable)
        made = pages.page(LIST)
        assert made is not None
        assert (made.failed, made.text) == (True, "the store sleeps; try: wait")
    assert "Runs in" in shown(pages)


def _unavailable(_: object) -> object:
    raise StoreUnavailable("the store sleeps", hint="wait")


def test_a_run_that_cannot_be_read_is_listed_without_a_page(runs: Path) -> None:
    new_run(runs, "demo", "1")
    (new_run(runs, "torn", "2") / "ledger" / "00000000.json").write_bytes(b"{}")
    pages = Pages(str(runs))
    assert '<th scope="row">torn-2</th><td>damaged</td>' in shown(pages)
    assert pages.page("torn-2") is None


def test_a_port_that_is_taken_is_one_error(runs: Path, spotrun: Spotrun) -> None:
    new_run(runs, "demo", "1")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        said = spotrun("view", "demo", "--port", port)
    assert said.code == 1
    assert f"error: cannot listen at 127.0.0.1:{port}: Address already in use\n  try: name another port" in said.err
