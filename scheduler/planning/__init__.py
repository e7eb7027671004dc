"""Decide what starts now and why everybody else waits: ``plan(snapshot) -> Plan``, a pure function."""

from scheduler.planning.model import (
    Grow,
    GrowingGang,
    NodeView,
    Placement,
    Plan,
    QueuedGang,
    Reason,
    ReasonCode,
    RunningGang,
    Snapshot,
    Start,
)
from scheduler.planning.planner import plan

__all__ = [
    "Grow",
    "GrowingGang",
    "NodeView",
    "Placement",
    "Plan",
    "QueuedGang",
    "Reason",
    "ReasonCode",
    "RunningGang",
    "Snapshot",
    "Start",
    "plan",
]
