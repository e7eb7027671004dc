"""What a job went through, for who reads a failed test."""

from __future__ import annotations

from typing import Any


def story_of(job: Any) -> str:
    """Events and logs of all attempts."""
    lines = [f"{event.at} {event.kind} {event.reason}" for event in job.events()]
    for attempt in job.attempts():
        lines += [f"{line.attempt} {line.role}-{line.index} {line.text}" for line in job.logs(attempt=attempt.number)]
    return "\n".join(lines)
