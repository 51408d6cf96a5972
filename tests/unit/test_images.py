"""Which machine image a run launches with, by what became of those it has launched with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy
from spotrun.policy.images import with_good_image
from spotrun.run.events import Cause, ResumeRequested, RunStopped
from tests.support.histories import History, offering


def trained(history: History, image: str) -> None:
    launch = history.after(60).launch(image=image)
    history.after(10).record(launch)
    history.after(60).start(launch)
    history.after(60).gone(launch)


def ended_before_its_agent(history: History, image: str, by: EndedBy = EndedBy.ITSELF) -> None:
    launch = history.after(60).launch(image=image)
    history.after(10).record(launch)
    history.after(60).gone(launch, by=by)


def refused(history: History, image: str, cause: Cause = Cause.EXTERNAL) -> None:
    history.close(history.after(60).launch(image=image), cause)


def chosen(history: History, newest: str = "new", region: str = "local") -> str:
    return with_good_image(history.state, replace(offering(), image=newest, region=region)).image


def test_the_newest_image_is_taken_as_long_as_nothing_is_known_against_it() -> None:
    history = History()
    assert chosen(history) == "new"
    trained(history, "old")
    assert chosen(history) == "new"


@pytest.mark.parametrize("fails", [ended_before_its_agent, refused])
def test_an_image_that_fails_is_left_for_the_last_one_that_trained(fails: Callable[[History, str], None]) -> None:
    history = History()
    trained(history, "older")
    trained(history, "old")
    fails(history, "new")
    assert chosen(history) == "old"
    assert chosen(history, "newest") == "newest"
    assert chosen(history, region="elsewhere") == "new", "an image is of one region"


@pytest.mark.parametrize("cause", [Cause.CAPACITY, Cause.QUOTA, Cause.ACCESS])
def test_refusals_of_market_and_account_do_not_blame_the_image(cause: Cause) -> None:
    history = History()
    trained(history, "old")
    refused(history, "new", cause)
    assert chosen(history) == "new"


def test_nor_does_an_instance_that_the_cloud_took_during_its_boot() -> None:
    history = History()
    trained(history, "old")
    ended_before_its_agent(history, "new", by=EndedBy.CLOUD)
    assert chosen(history) == "new"


def test_an_image_that_trained_before_its_failure_is_left_too_and_comes_back_when_it_trains_again() -> None:
    history = History()
    trained(history, "old")
    trained(history, "new")
    ended_before_its_agent(history, "new")
    assert chosen(history) == "old"
    ended_before_its_agent(history, "old")
    assert chosen(history) == "new", "no other is known to be better"
    trained(history, "new")
    assert chosen(history) == "new"


def test_resumed_run_tries_its_image_again() -> None:
    history = History()
    trained(history, "old")
    ended_before_its_agent(history, "new")
    history.after(60).write(RunStopped(reason="no use"))
    history.after(60).write(ResumeRequested(by="me"))
    assert chosen(history) == "new"
