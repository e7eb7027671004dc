"""Phrases of the planner about all jobs of one shape, and their form for the job that they mention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RESERVED_FOR = "reserved_for"  # among a reason's numbers: id of the job that the resources are reserved for


def reserved_for(job: str) -> str:
    return f"is kept for job {job}, the first that asks for this"


def starts_first(job: str) -> str:
    return f"job {job}, the first that asks for this, is to start"


def addressed_to(job_id: str, name: str, sentence: str, numbers: Mapping[str, Any]) -> str:
    """``sentence`` for the job itself, which is not mentioned in the third person."""
    if numbers.get(RESERVED_FOR) != job_id:
        return sentence
    return sentence.replace(reserved_for(name), "is kept for it").replace(starts_first(name), "it is to start")


def in_full(reason: str) -> str:
    """A planner's phrase, such as "needs 2 GPUs", as a full sentence."""
    return f"{reason[:1].upper()}{reason[1:]}{'' if reason.endswith('.') else '.'}"
