"""A run whose folder is in a bucket: through a notice and a SIGKILL it ends like one in a folder on this disk."""

from __future__ import annotations

import pytest

from spotrun.checkpoint.restore import verify
from spotrun.cli.runs import open_run
from tests.support.eventually import eventually
from tests.support.local_runs import Site, final_tensors
from tests.support.object_stores import RunningServer
from tests.support.strikes import strike

NOTICE = "{when: epoch 2 at 40%, then: interrupt, notice: 120s}"
ARGS = "--epochs, '3', --step-s, '0.05'"


@pytest.mark.slow
def test_a_run_in_a_bucket_is_the_run_in_a_folder(site: Site, bucket: RunningServer) -> None:
    site.call("launch", site.job("calm", args=ARGS, scale=60), "-y")
    quiet = site.trace_by_step()
    site.trace.unlink()

    uri = bucket.new_prefix()
    launch = site.start("launch", site.job("far", args=ARGS, scale=60, script=NOTICE), "-y", "--store", uri)
    eventually(lambda: site.last_step() >= 6, within_s=60)
    strike(site, "trainer")
    output, _ = launch.communicate(timeout=150)
    assert launch.returncode == 0, output

    assert site.trace_by_step() == quiet
    assert final_tensors(open_run("far", uri)) == final_tensors(site.run("calm"))
    assert "whole" in site.call("checkpoints", "verify", "far", "--store", uri)
    assert [run["state"] for run in site.call_json("status", "--store", uri)] == ["completed"]
    assert site.left_running() == []

    bucket.download(uri, site.folder / "copy")
    assert_the_run_reads_alike(site, uri, str(site.folder / "copy"))


def assert_the_run_reads_alike(site: Site, uri: str, copy: str) -> None:
    """In the copy that another client made, each object has the size and the checksum that the run says it has."""
    near, far = open_run("far", copy), open_run("far", uri)
    listed = {stored.key: stored.size_bytes for stored in far.store.list("")}
    assert {stored.key: stored.size_bytes for stored in near.store.list("")} == listed
    state = near.ledger.refresh()
    assert state == far.ledger.refresh()
    for commit in state.restore_candidates():
        verify(near.store, commit)
    assert site.call_json("report", "far", "--store", copy) == site.call_json("report", "far", "--store", uri)
