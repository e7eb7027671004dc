"""Decide which jobs start now and why the others wait: ``plan(snapshot) -> Plan``, a pure function."""

from core.domain.sharing.policy import Defragment, Policy, QueueOrder
from scheduler.planning.model import (
    Account,
    Booking,
    Estimate,
    Grow,
    GrowingGang,
    NodeSnapshot,
    Placement,
    Plan,
    PreemptCode,
    QueuedGang,
    Quota,
    Reason,
    RunningGang,
    Snapshot,
    Start,
    WaitReasonCode,
)
from scheduler.planning.planner import plan, plan_to_apply

__all__ = [
    "Account",
    "Booking",
    "Defragment",
    "Estimate",
    "Grow",
    "GrowingGang",
    "NodeSnapshot",
    "Placement",
    "Plan",
    "Policy",
    "PreemptCode",
    "QueueOrder",
    "QueuedGang",
    "Quota",
    "Reason",
    "RunningGang",
    "Snapshot",
    "Start",
    "WaitReasonCode",
    "plan",
    "plan_to_apply",
]
