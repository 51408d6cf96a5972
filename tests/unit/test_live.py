"""The screen of `launch` on terminals of all sizes."""

from __future__ import annotations

import io
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from spotrun.account.summary import summarise
from spotrun.folder.status_objects import AgentStatus, Gpu, Usage
from spotrun.report.live import LiveView
from spotrun.report.tables import dollars
from spotrun.run.events import AttemptEnded, Cause, StopRequested
from spotrun.runner.tick import Tick
from tests.support.decisions import spec
from tests.support.gang_history import GangHistory
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock

NAME = "resnet50-imagenet-on-four-gpus-nightly-8204b5586b"


def interrupted() -> History:
    """A run with a budget that trains again after an interruption, while standbys fail."""
    history = History(budget_usd=Decimal(400))
    launch = history.running()
    for epoch in range(2):
        history.step += 60
        history.after(600).epoch(epoch)
        history.commit()
    history.after(100).notice()
    history.after(15).drained(history.commit(final=True))
    history.after(100).gone(launch)
    history.running()
    history.failed_standbys(3)
    return history


def screen(history: History, width: int, height: int, gpus: tuple[Gpu, ...] = (), **facts: Any) -> str:
    ledger: Any = SimpleNamespace(entries=history.entries)
    view = LiveView(ledger, ManualClock(history.now), spec(), NAME)
    view._console = Console(file=io.StringIO(), width=width, height=height)
    agent = AgentStatus(
        launch=1,
        phase="train",
        at=START,
        sequence=1,
        attempt=2,
        epoch=2,
        epochs=90,
        batch=1200,
        batches=5004,
        step=11208,
        usage=Usage(cpus=8, cpu_share=0.93, memory_bytes=61 << 30, memory_used_bytes=12 << 30, gpus=gpus),
        data_wait=0.12,
    )
    agent = replace(agent, **facts)
    view._console.print(view.render(Tick(state=history.state, status=agent, remark="the store answers slowly")))
    return view._console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_cost_that_is_not_nothing_is_not_shown_as_nothing() -> None:
    assert "<$0.0001, downtime" in screen(History(), 120, 40), "some requests"


def test_it_says_how_busy_the_machine_is_and_how_long_the_training_waits_for_data() -> None:
    assert "93% of 8 CPUs, 12.0 of 61.0 GiB of memory; waits for data 12% of the time" in screen(History(), 120, 40)


def test_it_says_how_busy_the_gpus_are_as_far_as_they_tell() -> None:
    sliced = Gpu(memory_bytes=10 << 30, memory_used_bytes=4 << 30)
    busy = (Gpu(share=0.9, memory_bytes=16 << 30, memory_used_bytes=5 << 30), Gpu(share=0.5))
    told = {
        busy: "GiB of memory; 70% of 2 GPUs, 5.0 of 16.0 GiB of GPU memory; waits",
        (sliced,): "GiB of memory; 1 GPU, 4.0 of 10.0 GiB of GPU memory; waits",
        (): "GiB of memory; waits",
    }
    for gpus, text in told.items():
        assert text in " ".join(screen(History(), 160, 40, gpus).split())


def test_it_tells_the_run_s_processors_from_the_machine_s() -> None:
    usage = Usage(
        cpus=8,
        cpu_share=0.93,
        memory_bytes=61 << 30,
        memory_used_bytes=12 << 30,
        own_cpus=2,
        own_cpu_share=0.4,
    )
    shown = screen(History(), 120, 40, usage=usage)
    assert "this run 40% of 2 CPUs; the machine 93% of 8 CPUs, 12.0 of 61.0 GiB of memory" in shown


def test_a_resumed_run_shows_its_step_and_no_bar_until_its_length_is_known() -> None:
    shown = screen(History(), 120, 40, epochs=0, batch=0, batches=0)
    assert "epoch 3, step 11,208" in shown
    assert "batch" not in shown
    assert "=" not in shown
    begun = screen(History(), 120, 40, epoch=0, batch=0)
    assert "." * 40 in begun, "an empty bar, also without colours"
    assert "=" not in begun


def test_a_reason_with_a_colon_has_a_line_of_its_own() -> None:
    history = History()
    history.running()
    reason = "the script failed: RuntimeError: out of luck"
    history.write(AttemptEnded(attempt=history.attempt, cause=Cause.USER_ERROR, last_step=3, detail=reason))
    lines = [line.strip() for line in screen(history, 120, 40).splitlines()]
    assert lines[-1] == reason
    assert lines[-2].endswith("attempt 1 ended (user_error)")


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize(("width", "height"), [(120, 40), (60, 24), (60, 18), (40, 30)])
def test_the_screen_fits_and_shows_state_money_and_the_newest_event_whole(
    width: int, height: int, stopping: bool
) -> None:
    history = interrupted()
    if stopping:
        history.write(StopRequested(by="me"))
    shown = screen(history, width, height)
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= height
    assert ("stopping" if stopping else "training") in shown.split()
    words = shown.replace(",", " ").split()
    assert dollars(summarise(history.state, history.now).total.cost_usd) in words
    assert {"$400:", "$0.36/h"} <= {*words}
    newest = "stop requested by me" if stopping else "is gone: the cloud's record"
    assert newest in " ".join(shown.split())


def test_of_a_gang_it_says_what_all_members_cost_and_what_each_does() -> None:
    history = GangHistory(2)
    history.training_gang()
    shown = screen(history, 120, 40)
    assert "2 x " in shown
    assert "at $0.72/h" in shown
    assert "1.0 trains; 1.1 trains" in shown
