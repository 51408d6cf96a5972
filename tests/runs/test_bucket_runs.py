"""A run whose folder is in a bucket: through a notice and a SIGKILL it ends like one in a folder on this disk."""

from __future__ import annotations

import pytest

from spotrun.checkpoint.restore import verify
from spotrun.runs.open_run import open_run
from tests.support.eventually import eventually
from tests.support.object_stores import RunningServer
from tests.support.process_signals import send_signal
from tests.support.sandbox import Sandbox, final_tensors

NOTICE = "{when: epoch 2 at 40%, then: interrupt, notice: 120s}"
ARGS = "--epochs, '3', --step-s, '0.05'"


@pytest.mark.parametrize("bucket", [pytest.param("s3", marks=pytest.mark.nightly), "gs"], indirect=True)
def test_a_run_in_a_bucket_is_the_run_in_a_folder(sandbox: Sandbox, bucket: RunningServer) -> None:
    sandbox.call("launch", sandbox.job("calm", args=ARGS, scale=60), "-y")
    quiet = sandbox.trace_by_step()
    sandbox.trace.unlink()

    uri = bucket.new_prefix()
    launch = sandbox.start("launch", sandbox.job("far", args=ARGS, scale=60, script=NOTICE), "-y", "--store", uri)
    eventually(lambda: sandbox.last_step() >= 6, within_s=60)
    send_signal(sandbox, "trainer")
    output, _ = launch.communicate(timeout=150)
    assert launch.returncode == 0, output

    assert sandbox.trace_by_step() == quiet
    assert final_tensors(open_run("far", uri)) == final_tensors(sandbox.run("calm"))
    assert "whole" in sandbox.call("checkpoints", "verify", "far", "--store", uri)
    assert [run["state"] for run in sandbox.ask_json("status", "--store", uri)] == ["completed"]
    assert sandbox.left_running() == []

    bucket.download(uri, sandbox.folder / "copy")
    assert_the_run_reads_alike(sandbox, uri, str(sandbox.folder / "copy"))


def assert_the_run_reads_alike(sandbox: Sandbox, uri: str, copy: str) -> None:
    """In the copy that another client made, each object has the size and the checksum that the run says it has."""
    near, far = open_run("far", copy), open_run("far", uri)
    listed = {stored.key: stored.size_bytes for stored in far.store.list("")}
    assert {stored.key: stored.size_bytes for stored in near.store.list("")} == listed
    state = near.ledger.refresh()
    assert state == far.ledger.refresh()
    for commit in state.restore_candidates():
        verify(near.store, commit)
    assert sandbox.ask_json("report", "far", "--store", copy) == sandbox.ask_json("report", "far", "--store", uri)
