"""
After an attempt, whether or not its final commit was in time: an instance that the cloud takes back in its first hour
costs nothing, and one that leaves by itself is billed (protocol 15;
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.agent.node import Node
from spotrun.run.events import BillingRule

TAKEN_WITHIN = timedelta(minutes=3)
"""After the deadline of its notice. An instance that the cloud has not taken by then was forgotten, and bills."""


def idle_until(rule: BillingRule, billed_from: datetime, deadline_at: datetime | None) -> datetime | None:
    """Until when to wait for the cloud to take the instance at `deadline_at`; None if waiting saves nothing."""
    if deadline_at is None or deadline_at - billed_from >= timedelta(seconds=rule.free_if_interrupted_within_s):
        return None
    return deadline_at + TAKEN_WITHIN


def await_the_cloud(node: Node, attempt: int) -> None:
    """Do nothing, as long as being taken is cheaper than leaving. On most machines that never returns."""
    state = node.recorder.state
    mine = state.attempts[attempt]
    launch = state.launch_of(mine)
    billed_from = node.booted_at if launch.recorded is None else launch.recorded.billed_from
    until = idle_until(node.created.billing, billed_from, None if mine.notice is None else mine.notice.deadline_at)
    left_s = 0.0 if until is None else (until - node.clock.now()).total_seconds()
    if left_s > 0:
        node.note("the instance waits for the cloud to take it, which makes it free")
        node.status.change(phase="idle")
        node.clock.sleep(left_s)
