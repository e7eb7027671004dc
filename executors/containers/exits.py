"""How a container ended: by the runtime's exit record, or without one by the engine's exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from executors.base import ExitCause, Phase, ReplicaExit

_WORLD_FACTS: Final = ("world", "keeps_processes", "is_ready")
_DONE: Final = (ExitCause.EXITED, ExitCause.HANGING_EXIT)
# What an engine says when the container's first process could not even be started.
_NEVER_STARTED: Final = frozenset({"ContainerCannotRun", "StartError", "CreateContainerError", "RunContainerError"})


def read_exit(record: bytes, *, was_requested: bool = False) -> ReplicaExit | None:
    """The exit in the runtime's record (``EXIT_RECORD``, or the same as termination message).

    ``None`` when there is none, or something else stands there: then :func:`exit_without_record` decides.

    Args:
        was_requested: this platform requested its stop. An engine that passes on SIGTERM alone leaves no stop mark, and
            the runtime takes it for a shutdown of the machine.
    """
    data = _object(record)
    at = _time(data.get("at"))
    if at is None or "cause" not in data:
        return None
    try:
        cause = ExitCause(data["cause"])
    except ValueError:
        cause = ExitCause.UNKNOWN
    code = data.get("exit_code")
    ended = ReplicaExit(
        cause,
        code if isinstance(code, int) else None,
        str(data.get("sentence") or ""),
        at,
        str(data.get("log_tail") or ""),
    )
    if was_requested and cause is ExitCause.NODE_LOST:
        return replace(ended, cause=ExitCause.STOPPED, sentence="Stopped because the platform asked.")
    return ended


def read_facts(record: bytes) -> dict[str, Any]:
    """The facts in the record, for people."""
    facts = _object(record).get("facts")
    return dict(facts) if isinstance(facts, dict) else {}


def exit_without_record(
    code: int | None,
    *,
    at: datetime,
    is_out_of_memory: bool = False,
    reason: str = "",
    was_requested: bool = False,
    memory_bytes: int | None = None,
    log_tail: str = "",
) -> ReplicaExit:
    """The exit of a container whose runtime left no record: killed itself, or never started.

    Args:
        code: the engine's exit code, 128 + n for signal n.
        is_out_of_memory: the engine says so (``OOMKilled``).
        reason: the engine's own word or message, quoted in the sentence.
        was_requested: this platform requested its stop.
        memory_bytes: the container's limit.
    """

    def end(cause: ExitCause, sentence: str) -> ReplicaExit:
        return ReplicaExit(cause, code, sentence, at, log_tail)

    cause_note = f" ({reason})" if reason and reason not in ("Error", "Completed") else ""
    if code == 0 and not is_out_of_memory:
        return end(ExitCause.EXITED, "The command ended with exit code 0.")
    if is_out_of_memory:
        limit = f"its limit of {memory_bytes / 2**20:.0f} MiB" if memory_bytes else "the memory of its machine"
        return end(
            ExitCause.OUT_OF_MEMORY,
            f"It needed more than {limit} and the kernel killed it; give it more `memory`, or make the batch smaller.",
        )
    if was_requested:
        return end(ExitCause.STOPPED, "Stopped because the platform asked.")
    if reason in _NEVER_STARTED or reason.partition(":")[0] in _NEVER_STARTED:
        return end(ExitCause.START_FAILED, f"The container could not be started{cause_note}.")
    if code is None:
        return end(ExitCause.UNKNOWN, f"The container is gone and left no exit code{cause_note}.")
    number = _signal(code)
    if number is not None:
        return end(
            ExitCause.SIGNALLED,
            f"The container was killed by {number} from outside, before the runtime could say why{cause_note}.",
        )
    return end(ExitCause.EXITED, f"The container ended with exit code {code}{cause_note}.")


def phase_of(ended: ReplicaExit) -> Phase:
    return Phase.SUCCEEDED if ended.cause in _DONE and ended.exit_code == 0 else Phase.FAILED


def stop_mark(grace: timedelta) -> bytes:
    """Content for ``STOP_MARK``: the stop is the platform's, and so much is its grace. Write it before SIGTERM."""
    return json.dumps({"grace_s": grace.total_seconds()}).encode()


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status file of a replica that has not ended. ``started_at``: of the user's code. ``facts``: of an
    elastic gang, see ``executors.base.ChangesWorlds``; none of any other.
    """

    phase: Phase
    detail: str = ""
    started_at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_status(status: bytes) -> ReplicaStatus:
    """From the bytes of ``STATUS`` (empty: the runtime has not written it yet)."""
    data = _object(status)
    facts_of_runtime = data.get("facts")
    facts = (
        {name: facts_of_runtime[name] for name in _WORLD_FACTS if name in facts_of_runtime}
        if isinstance(facts_of_runtime, dict)
        else {}
    )
    if data.get("phase") == "running":
        detail = str(data.get("detail") or "") if facts else ""
        return ReplicaStatus(Phase.RUNNING, detail, _time(data.get("started_at")), facts)
    return ReplicaStatus(Phase.PENDING, str(data.get("detail") or "Preparing."), None, facts)


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(content)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _signal(code: int) -> str | None:
    if not 128 < code < 128 + 65:
        return None
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"signal {code - 128}"
