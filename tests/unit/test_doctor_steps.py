"""The engine of `spotrun doctor`: steps that need others, and what a refusal of a step means."""

from __future__ import annotations

from collections.abc import Iterator

from spotrun.doctor.finding import Check, Finding, Refusal, Step, Verdict, findings_of, findings_of_steps, ok, unknown
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, SpotrunError


def passing(name: str) -> Step:
    return Step(name, lambda: [ok(name, "fine")])


def refused(error: SpotrunError) -> Check:
    def check() -> Iterator[Finding]:
        yield ok("first", "fine")
        raise error

    return check


def names(*steps: Step) -> list[str]:
    return [f"{each.name} {each.verdict}" for each in findings_of_steps(steps)]


def test_a_failure_leaves_out_the_steps_that_need_it_and_those_that_need_them() -> None:
    network = Step("network", refused(CloudError("gone")))
    capacity = passing("capacity")._replace(needs=("network",))
    quota = passing("quota")._replace(needs=("capacity",), otherwise=lambda: [unknown("quota", "no capacity")])
    assert names(network, capacity, quota, passing("guard")) == [
        *("first ok", "network failed", "quota unknown", "guard ok")
    ]


def test_a_vital_step_that_fails_is_the_last_one() -> None:
    identity = Step("identity", refused(AccessDenied("who are you")), is_vital=True)
    assert names(identity, passing("image")) == ["first ok", "identity failed"]
    assert names(passing("identity")._replace(is_vital=True), passing("image")) == ["identity ok", "image ok"]


def test_a_step_that_is_unknown_is_enough_for_those_that_need_it() -> None:
    rights = Step("rights", refused(AccessDenied("no")), Refusal("untold"))
    assert names(rights, passing("trial")._replace(needs=("rights",))) == ["first ok", "rights unknown", "trial ok"]


def test_later_steps_follow_from_what_earlier_ones_have_found() -> None:
    regions = ["here", "nowhere"]

    def keep_known() -> list[Finding]:
        regions.remove("nowhere")
        return []

    def steps() -> Iterator[Step]:
        yield Step("regions", keep_known)
        yield from map(passing, regions)

    assert [each.name for each in findings_of_steps(steps())] == ["here"]


def test_the_first_refusal_of_an_errors_class_says_what_it_means() -> None:
    refusals = (Refusal("untold", "attach a policy"), Refusal(advice="wait", error=CloudError, verdict=Verdict.WARNED))

    def last(error: SpotrunError) -> Finding:
        return [*findings_of("x", refused(error), *refusals)][-1]

    assert last(AccessDenied("no", hint="log in")) == unknown("x", "untold: no", "attach a policy")
    assert last(CloudError("no", hint="its own")).hint == "its own"
    assert last(CloudError("no")).hint == "wait"
    assert "try again" in last(CloudUnavailable("down")).hint
    assert last(SpotrunError("other")).verdict is Verdict.FAILED
