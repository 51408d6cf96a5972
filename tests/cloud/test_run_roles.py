"""
The role of a run on EC2: who makes it, what a crash or a lost answer leaves of it, and who takes it away.

tests/cloud/test_iam.py has what such a role may do, and what whoever makes it may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto.iam.models import iam_backends

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.run_role import FOLDER, IMAGE, POLICY, RunRoles
from spotrun.clouds.identities import SETTLES_WITHIN
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, QuotaExceeded
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.secrets.reference import PARAMETER, Reference
from tests.support.aws_launches import count, launches
from tests.support.ec2_run import UID, URI, Ec2Run
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.iam import Document
from tests.support.manual_clock import ManualClock
from tests.support.world.faults import Killed

NAME = f"spotrun-run-{UID}"
MAKING = ("CreateRole", "AttachRolePolicy", "CreateInstanceProfile", "AddRoleToInstanceProfile")
REMOVING = ("RemoveRoleFromInstanceProfile", "DeleteInstanceProfile", "DetachRolePolicy", "DeleteRole")
INTERRUPTED = "Server.SpotInstanceTermination"


@pytest.fixture
def run(account: GuardedAccount) -> Ec2Run:
    return Ec2Run(account)


def roles(*secrets: str) -> RunRoles:
    """What a runner that has asked nothing yet asks, for a job with secrets at these paths."""
    clock = ManualClock()
    return RunRoles(Region(REGION, clock), clock, secrets=[Reference(PARAMETER, path) for path in secrets])


def made() -> dict[str, Any] | None:
    """What IAM has of the run's role, and None where it has nothing."""
    iam = iam_backends[ACCOUNT]["aws"]
    role = next((each for each in iam.get_roles() if each.name == NAME), None)
    profile = next((each for each in iam.get_instance_profiles() if each.name == NAME), None)
    if role is None and profile is None:
        return None
    return {
        "policies": [] if role is None else [each.name for each in role.managed_policies.values()],
        "inline": {} if role is None else role.policies,
        "boundary": None if role is None else role.permissions_boundary_arn,
        "tags": {} if role is None else {each["Key"]: each["Value"] for each in role.tags},
        "profile": None if profile is None else [each.name for each in profile.roles],
    }


WHOLE = {
    "policies": [POLICY],
    "inline": {},
    "boundary": f"arn:aws:iam::{ACCOUNT}:policy/{POLICY}",
    "tags": {"spotrun:run": UID, FOLDER: f"runs/r-{UID}"},
    "profile": [NAME],
}


# -- making ----------------------------------------------------------------------------------------------------------


def test_a_run_gets_a_role_of_its_own_before_its_first_launch_and_asks_once(
    account: GuardedAccount, run: Ec2Run
) -> None:
    runner = run.runner()
    for _ in range(3):
        run.ticks(runner)
    assert made() == WHOLE
    (asked,) = launches(account)
    assert asked["IamInstanceProfile.Name"] == NAME
    assert [count(account, action) for action in MAKING] == [1, 1, 1, 1]
    trust = iam_backends[ACCOUNT]["aws"].get_role(NAME).assume_role_policy_document
    assert '"ec2.amazonaws.com"' in trust
    assert "AWS" not in trust


def test_two_runners_at_once_make_one_role(run: Ec2Run) -> None:
    first, second = roles(), roles()
    for each in (first, second, first):
        each.make(UID, URI)
    assert made() == WHOLE


@pytest.mark.parametrize("action", MAKING)
def test_object_made_by_a_call_with_a_lost_answer_is_adopted(account: GuardedAccount, action: str) -> None:
    account.lose_answer(action)
    roles().make(UID, URI)
    assert count(account, action) == 2
    assert made() == WHOLE


@pytest.mark.parametrize("action", MAKING)
def test_a_runner_that_dies_while_it_makes_a_role_is_followed_by_one_that_completes_it(
    account: GuardedAccount, run: Ec2Run, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the call of that name: the calls before it are done."""
    with monkeypatch.context() as patch:
        patch.setattr(RunRoles, "_ask", dying_before(action))
        with pytest.raises(Killed):
            run.ticks(run.runner())
    assert launches(account) == []
    assert made() != WHOLE
    run.ticks(run.runner())
    assert made() == WHOLE
    assert len(launches(account)) == 1


def dying_before(action: str) -> Callable[..., Any]:
    ask = RunRoles._ask

    def dying(self: RunRoles, what: str, operation: str, **parameters: Any) -> Any:
        if operation.replace("_", "") == action.lower():
            raise Killed
        return ask(self, what, operation, **parameters)

    return dying


@pytest.mark.parametrize(
    "theirs",
    [
        {"Tags": [{"Key": "spotrun:run", "Value": UID}, {"Key": FOLDER, "Value": f"runs/r-{UID}"}]},
        {"PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/{POLICY}"},
    ],
    ids=["no boundary", "no tags"],
)
def test_a_role_of_that_name_that_is_not_ours_is_neither_used_nor_removed(
    account: GuardedAccount, run: Ec2Run, theirs: dict[str, Any]
) -> None:
    with account.as_administrator():
        boto3.client("iam").create_role(RoleName=NAME, AssumeRolePolicyDocument="{}", **theirs)
    before = made()
    run.ticks(run.runner())
    assert launches(account) == []
    closed = [launch.closed for launch in run.state.launches.values()]
    assert {each.cause for each in closed if each is not None} == {Cause.EXTERNAL}
    assert f"the role {NAME} does not have the boundary" in str(closed[0])
    with pytest.raises(CloudError, match="does not have the boundary"):
        roles().remove(UID)
    assert made() == before


def test_a_role_that_reaches_another_folder_is_not_used(account: GuardedAccount) -> None:
    roles().make(UID, "s3://bucket/runs/another")
    with pytest.raises(CloudError, match="or this run's tags"):
        roles().make(UID, URI)


def test_account_that_forbids_roles_fails_the_launch_with_a_fix(account: GuardedAccount, run: Ec2Run) -> None:
    account.policies = [without(policy, "MakeRolesOfRuns") for policy in account.policies or ()]
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    terminal = run.state.terminal
    assert terminal is not None
    assert (terminal.outcome, terminal.cause) == ("failed", Cause.ACCESS)
    assert "iam:CreateRole" in terminal.detail
    assert "aws.instance_profile" in terminal.detail
    assert launches(account) == []
    assert {each.action for each in account.denied} == {"iam:CreateRole"}
    account.denied.clear()


def test_account_full_of_roles_gets_the_reap_command(account: GuardedAccount, run: Ec2Run) -> None:
    account.refuse("CreateRole", "LimitExceeded", 409, times=2)
    with pytest.raises(QuotaExceeded) as raised:
        roles().make(UID, URI)
    assert "spotrun reap --cloud aws" in str(raised.value)
    list(run.runner().ticks())
    first, *_ = run.state.launches.values()
    assert first.closed is not None
    assert first.closed.cause is Cause.QUOTA
    assert "spotrun reap --cloud aws" in first.closed.detail


def test_account_without_the_policy_gets_the_template_that_makes_it(account: GuardedAccount) -> None:
    with account.as_administrator():
        roles().remove("0123456789")
        boto3.client("iam").delete_policy(PolicyArn=WHOLE["boundary"])
    with pytest.raises(CloudError, match=f"no policy {POLICY}") as raised:
        roles().make(UID, URI)
    assert "account.yaml" in str(raised.value)


# -- the secrets of its job ------------------------------------------------------------------------------------------

WITH_SECRETS = {**WHOLE["tags"], "spotrun:secret-1": "team/hf", "spotrun:secret-2": "wandb"}
NAMED = ("/spotrun/wandb", "/spotrun/team/hf", "/database/password")


def test_a_role_names_the_secrets_of_its_job_that_roles_may_read(account: GuardedAccount) -> None:
    for _ in range(2):
        roles(*NAMED).make(UID, URI)
    assert made() == WHOLE | {"tags": WITH_SECRETS}
    assert count(account, "TagRole") == 0


def test_a_role_that_an_earlier_spotrun_made_learns_the_secrets_of_its_job_before_the_next_launch(
    account: GuardedAccount,
) -> None:
    roles().make(UID, URI)
    for _ in range(2):
        roles(*NAMED).make(UID, URI)
    assert made() == WHOLE | {"tags": WITH_SECRETS}
    assert count(account, "TagRole") == 1


def test_an_account_with_the_policies_of_before_keeps_what_was_begun_there_going_and_begins_nothing(
    account: GuardedAccount,
) -> None:
    account.policies = [only_these_tags(policy, ["spotrun:run", FOLDER]) for policy in account.policies or ()]
    roles().make(UID, URI)
    roles(*NAMED).make(UID, URI)
    assert made() == WHOLE
    with pytest.raises(AccessDenied, match="iam:TagRole") as refused:
        roles(*NAMED).make("0123456780", "s3://bucket/runs/r-0123456780")
    assert "infra/aws" in str(refused.value.hint)
    account.denied.clear()


def only_these_tags(policy: Document, tags: list[str]) -> Document:
    found = [{**each} for each in policy["Statement"]]
    for each in found:
        if each["Sid"] == "TagRolesOfRuns":
            each["Condition"] = {"ForAllValues:StringEquals": {"aws:TagKeys": tags}}
    return {"Statement": found}


@pytest.mark.parametrize("job", [(), ("/spotrun/wandb",), ("/spotrun/wandb", "/spotrun/hf", "/spotrun/c")], ids=str)
def test_a_role_that_names_other_secrets_is_not_used(account: GuardedAccount, job: tuple[str, ...]) -> None:
    roles("/spotrun/wandb", "/spotrun/hf").make(UID, URI)
    with pytest.raises(CloudError, match="or this run's tags"):
        roles(*job).make(UID, URI)
    roles().remove(UID)
    assert made() is None


# -- the image of its job --------------------------------------------------------------------------------------------


def with_image(repository: str, *secrets: str) -> RunRoles:
    clock = ManualClock()
    named = [Reference(PARAMETER, path) for path in secrets]
    return RunRoles(Region(REGION, clock), clock, secrets=named, repository=repository)


def test_a_role_names_the_repository_of_its_image(account: GuardedAccount) -> None:
    for _ in range(2):
        with_image("team/train").make(UID, URI)
    assert made() == WHOLE | {"tags": {**WHOLE["tags"], IMAGE: "team/train"}}
    assert count(account, "TagRole") == 0
    with pytest.raises(CloudError, match="or this run's tags"):
        with_image("team/another").make(UID, URI)


def test_a_role_with_secrets_that_an_earlier_spotrun_made_learns_its_image(account: GuardedAccount) -> None:
    roles(*NAMED).make(UID, URI)
    for _ in range(2):
        with_image("team/train", *NAMED).make(UID, URI)
    assert made() == WHOLE | {"tags": {**WITH_SECRETS, IMAGE: "team/train"}}
    assert count(account, "TagRole") == 1


# -- until EC2 knows it ----------------------------------------------------------------------------------------------


def test_a_role_that_ec2_does_not_know_yet_is_waited_for_with_the_same_token(
    account: GuardedAccount, run: Ec2Run
) -> None:
    account.profiles_are_known = False
    runner = run.runner()
    run.ticks(runner)
    blind = runner.tick().blind
    assert blind is not None
    assert "Invalid IAM Instance Profile name" in blind
    account.profiles_are_known = True
    run.ticks(runner)
    assert {asked["ClientToken"] for asked in launches(account)} == {f"{UID}-1"}
    assert len(run.state.launches) == 1


def test_another_runner_waits_for_a_role_that_the_first_one_has_just_made(account: GuardedAccount, run: Ec2Run) -> None:
    account.profiles_are_known = False
    run.ticks(run.runner())
    assert "Invalid IAM Instance Profile" in (run.runner().tick().blind or "")


def test_role_that_ec2_never_sees_is_reported_in_the_end(account: GuardedAccount, run: Ec2Run) -> None:
    account.profiles_are_known = False
    runner = run.runner()
    run.ticks(runner)
    run.clock.advance(SETTLES_WITHIN.total_seconds())
    run.ticks(runner)
    first, *_ = run.state.launches.values()
    assert first.closed is not None
    assert first.closed.cause is Cause.EXTERNAL
    assert "Invalid IAM Instance Profile name" in first.closed.detail


@pytest.mark.parametrize("action", ["AttachRolePolicy", "AddRoleToInstanceProfile", "RunInstances"])
def test_denial_of_a_new_role_is_retried_and_reported_meanwhile(
    account: GuardedAccount, run: Ec2Run, action: str
) -> None:
    """What IAM has just made is not known everywhere, nor are its tags, on which policies depend."""
    account.refuse(action, "AccessDenied", 403, times=3)
    runner = run.runner()
    list(runner.ticks())
    blind = runner.tick().blind
    assert blind is not None
    assert "AccessDenied" in blind
    assert "try: " in blind
    for _ in range(3):
        run.ticks(runner)
    assert run.state.terminal is None
    assert len(run.instances()) == 1


@pytest.mark.parametrize("action", ["AttachRolePolicy", "RunInstances"])
def test_denial_that_outlasts_the_wait_is_reported_as_denied(account: GuardedAccount, run: Ec2Run, action: str) -> None:
    account.refuse(action, "AccessDenied", 403, times=100)
    runner = run.runner()
    run.ticks(runner)
    assert run.state.terminal is None
    run.clock.advance(SETTLES_WITHIN.total_seconds())
    for _ in range(2):
        run.ticks(runner)
    terminal = run.state.terminal
    assert terminal is not None
    assert (terminal.outcome, terminal.cause) == ("failed", Cause.ACCESS)


# -- removing --------------------------------------------------------------------------------------------------------


def ended(run: Ec2Run) -> None:
    """The run was told to stop, and has no attempt that could go on."""
    run.ledger().append(lambda _: ev.StopRequested(by="a test"))


def test_the_role_goes_with_the_run_but_not_before_its_last_instance(account: GuardedAccount, run: Ec2Run) -> None:
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    (instance_id,) = run.instances()
    run.ledger().append(lambda _: ev.RunStopped(reason="a test"))

    def cannot_end(call: str) -> None:
        if call == "terminate":
            raise CloudUnavailable("503 from EC2")

    run.ticks(run.runner(cannot_end))
    assert run.instances() == [instance_id]
    assert made() == WHOLE
    for _ in range(2):
        run.ticks(run.runner())
    assert run.instances() == []
    assert made() is None


def test_a_run_that_is_resumed_gets_its_role_again(account: GuardedAccount, run: Ec2Run) -> None:
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    ended(run)
    for _ in range(3):
        run.ticks(runner)
    assert made() is None
    run.ledger().append(lambda _: ev.ResumeRequested(by="a test"))
    for _ in range(2):
        run.ticks(runner)
    assert made() == WHOLE
    assert len(run.instances()) == 1


def test_a_role_that_another_runner_took_away_is_made_again(account: GuardedAccount, run: Ec2Run) -> None:
    """The other one saw the run ended, and did not see that it was resumed."""
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    account.end(run.instances()[0], INTERRUPTED)
    roles().remove(UID)
    for _ in range(2):
        run.ticks(runner)
    assert made() == WHOLE
    assert len(run.instances()) == 1


@pytest.mark.parametrize("action", REMOVING)
def test_removing_goes_on_where_it_was_cut_off(
    account: GuardedAccount, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles().make(UID, URI)
    with monkeypatch.context() as patch:
        patch.setattr(RunRoles, "_ask", dying_before(action))
        with pytest.raises(Killed):
            roles().remove(UID)
    assert UID in roles().runs()
    for _ in range(2):
        roles().remove(UID)
    assert made() is None
    assert UID not in roles().runs()


@pytest.mark.parametrize("action", REMOVING)
def test_a_lost_answer_to_a_removal_is_no_failure(account: GuardedAccount, action: str) -> None:
    roles().make(UID, URI)
    account.lose_answer(action)
    roles().remove(UID)
    assert made() is None


@pytest.mark.parametrize("action", ["DeleteRole", "DeleteInstanceProfile"])
def test_a_conflict_of_what_was_just_taken_from_a_role_passes(account: GuardedAccount, action: str) -> None:
    roles().make(UID, URI)
    account.refuse(action, "DeleteConflict", 409, times=2)
    roles().remove(UID)
    assert made() is None


def test_a_role_that_cannot_be_removed_is_no_failure_of_the_run(account: GuardedAccount, run: Ec2Run) -> None:
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    ended(run)
    account.refuse("DeleteRole", "AccessDenied", 403, times=10)
    for _ in range(3):
        run.ticks(runner)
    last = runner.tick()
    assert last.done
    assert "`spotrun reap` removes them" in (last.remark or "")
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "stopped"
    assert UID in roles().runs()


def test_incomplete_role_can_be_completed_or_removed(account: GuardedAccount) -> None:
    with account.as_administrator():
        boto3.client("iam").create_instance_profile(InstanceProfileName=NAME)
    roles().make(UID, URI)
    assert made() == WHOLE
    roles().remove(UID)
    with account.as_administrator():
        boto3.client("iam").create_instance_profile(InstanceProfileName=NAME)
    roles().remove(UID)
    assert made() is None


def test_a_profile_that_holds_another_role_is_not_used(account: GuardedAccount) -> None:
    with account.as_administrator():
        iam = boto3.client("iam")
        iam.create_role(RoleName="administrator", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=NAME)
        iam.add_role_to_instance_profile(InstanceProfileName=NAME, RoleName="administrator")
    with pytest.raises(CloudError, match="administrator"):
        roles().make(UID, URI)


def test_the_policy_denies_what_the_driver_never_asks_for(account: GuardedAccount) -> None:
    """Through the wire, as a caller who has the runner's policy would try it."""
    iam = boto3.client("iam")
    roles().make(UID, URI)
    trust = '{"Version": "2012-10-17", "Statement": []}'
    for attempt in (
        lambda: iam.create_role(RoleName="spotrun-run-mine", AssumeRolePolicyDocument=trust),
        lambda: iam.attach_role_policy(RoleName=NAME, PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess"),
        lambda: iam.delete_role(RoleName="spotrun-guard"),
    ):
        with pytest.raises(iam.exceptions.ClientError, match="not authorized"):
            attempt()
    assert len(account.denied) == 3
    account.denied.clear()


def without(policy: Document, sid: str) -> Document:
    return {**policy, "Statement": [each for each in policy["Statement"] if each["Sid"] != sid]}
