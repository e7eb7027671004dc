"""Ids as distinct types, so that a job's id is never passed for an attempt's."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
NodeId = NewType("NodeId", str)
