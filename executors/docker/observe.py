"""From what the engine shows of a container to an :class:`Observation`.

Facts that need a request of their own and cannot change any more are cached: the end of a container, and that its
command runs. A lost cache costs the requests again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from core.domain.ids import AttemptId
from executors.base import ExitCause, Observation, Phase, ReplicaExit, ReplicaKey
from executors.containers import exits, labels, paths
from executors.docker.engine import DockerEngine, EngineObjectMissing
from executors.docker.render import container_name

_MAX_KNOWN: Final = 20_000
# The engine's word for a container that ran when the machine went down and was found dead at the next start.
_FOUND_DEAD: Final = 255
_KILLED: Final = 137
# The user's code never ran.
_NEVER_RAN: Final = frozenset(
    {
        ExitCause.START_FAILED,
        ExitCause.COMMAND_NOT_FOUND,
        ExitCause.INTERPRETER_MISSING,
        ExitCause.PEERS_MISSING,
    }
)
_LOG_TAIL_LINES: Final = 20  # lines


_FRESH: Final = exits.ReplicaStatus(Phase.PENDING, "The runtime is being started.")


@dataclass(slots=True)
class _Known:
    """Cached facts of one container. ``stamp``: of the status file when it was read. ``announced_world``: the newest
    world that this process has sent to it.
    """

    key: ReplicaKey
    stamp: str | None = None
    status: exits.ReplicaStatus = _FRESH
    end: Observation | None = None
    announced_world: int = 0
    is_starting: bool = False
    has_died: bool = False


class ContainerObserver:
    """Safe for many threads."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def observe(self, summary: Mapping[str, Any]) -> Observation | None:
        """The observation of one container from the engine's list.

        ``None`` for what is no replica: a container that was never started (its creator died, the next one starts it)
        or that is not complete.
        """
        key = labels.key_of(summary.get("Labels") or {})
        if key is None or f"/{container_name(key)}" not in (summary.get("Names") or ()):
            return None
        container = str(summary["Id"])
        match summary.get("State"):
            case "created" | "removing":
                return None
            case "exited" | "dead":
                return self._observe_ended(container, key)
            case state:
                return self._observe_running(container, key, is_paused=state == "paused", address=_address_of(summary))

    def forget(self, attempt: AttemptId) -> None:
        """Its containers are gone."""
        with self._lock:
            names = [name for name, known in self._known.items() if known.key.attempt_id == attempt]
            for name in names:
                del self._known[name]

    def attempts_with_news(self) -> list[AttemptId]:
        """Attempts with a starting or world-changing replica whose status file has changed since the last
        observation.
        """
        with self._lock:
            starting = [(name, known) for name, known in self._known.items() if known.is_starting]
        return [
            known.key.attempt_id
            for name, known in starting
            if self._engine.stamp(name, paths.STATUS) not in (None, known.stamp)
        ]

    def needs_world(self, container: str, key: ReplicaKey, world: int) -> bool:
        """Whether the replica has no world this new yet; then its status is polled until it reports the world."""
        known = self._get(container, key)
        self._refresh_status(container, known)
        if int(known.status.facts.get("world", -1)) >= world:
            return False
        known.announced_world = max(known.announced_world, world)
        return known.announced_world == world

    def record_death(self, container: str) -> None:
        """The engine reported the container's death. Its list may show it as running for a moment longer."""
        with self._lock:
            known = self._known.get(container)
            if known is not None:
                known.has_died = True

    # Running

    def _observe_running(self, container: str, key: ReplicaKey, *, is_paused: bool, address: str) -> Observation:
        known = self._get(container, key)
        if known.end is None and known.has_died:
            inspected = self._engine.container(container)
            if inspected is not None and not inspected["State"].get("Running"):
                return self._observe_ended(container, key) or Observation(key, Phase.LOST)
        if known.end is not None:
            return known.end  # started twice by two creators: the runtime refuses the second time
        # One of an elastic gang goes on telling when it runs.
        if known.status.phase is not Phase.RUNNING or known.status.facts:
            self._refresh_status(container, known)
        status = known.status
        is_changing = bool(status.facts) and status.facts["world"] < known.announced_world
        known.is_starting = status.phase is not Phase.RUNNING or is_changing
        detail = "It is paused (`docker pause`)." if is_paused else status.detail
        facts = {"container": container[:12], **({"address": address} if address else {}), **status.facts}
        return Observation(key, status.phase, status.started_at, None, detail, facts)

    def _refresh_status(self, container: str, known: _Known) -> None:
        """Read its status if it is another one."""
        stamp = self._engine.stamp(container, paths.STATUS)
        if stamp is not None and stamp != known.stamp:
            known.status = exits.read_status(self._engine.read(container, paths.STATUS) or b"")
            known.stamp = stamp

    # Ended

    def _observe_ended(self, container: str, key: ReplicaKey) -> Observation | None:
        known = self._get(container, key)
        known.is_starting = False
        if known.end is None:
            try:
                known.end = self._read_exit(container, key, known.status.started_at)
            except EngineObjectMissing:  # removed in this moment
                return None
        return known.end

    def _read_exit(self, container: str, key: ReplicaKey, started_at: datetime | None) -> Observation | None:
        inspected = self._engine.container(container)
        if inspected is None:
            return None
        state = inspected["State"]
        record = self._engine.read(container, paths.EXIT_RECORD) or b""
        ended = exits.read_exit(record)
        ended = self._without_record(container, inspected) if ended is None else _with_oom(ended, inspected)
        if started_at is None and ended.cause not in _NEVER_RAN:
            started_at = _time(state.get("StartedAt"))
        facts = {"container": container[:12], **exits.read_facts(record)}
        return Observation(key, exits.phase_of(ended), started_at, ended, "", facts)

    def _without_record(self, container: str, inspected: Mapping[str, Any]) -> ReplicaExit:
        """The runtime was killed itself, or could not write."""
        state = inspected["State"]
        code, at = int(state["ExitCode"]), _time(state.get("FinishedAt")) or datetime.now(UTC)  # noqa: TID251 (edge)
        message = self._engine.logs(container, _LOG_TAIL_LINES)
        if code == _FOUND_DEAD:
            sentence = "The Docker engine or its machine went down and took the container with it."
            return ReplicaExit(ExitCause.NODE_LOST, None, sentence, at, message)
        if code == _KILLED and not state.get("OOMKilled"):
            return ReplicaExit(
                ExitCause.SIGNALLED,
                code,
                "Its container was killed from outside the platform (`docker kill`).",
                at,
                message,
            )
        return exits.exit_without_record(
            code,
            at=at,
            is_out_of_memory=bool(state.get("OOMKilled")),
            reason=str(state.get("Error") or ""),
            was_requested=self._engine.stamp(container, paths.STOP_MARK) is not None,
            memory_bytes=_limit(inspected),
            log_tail=message,
        )

    def _get(self, container: str, key: ReplicaKey) -> _Known:
        with self._lock:
            known = self._known.get(container)
            if known is None:
                while len(self._known) >= _MAX_KNOWN:
                    self._known.pop(next(iter(self._known)))
                known = self._known[container] = _Known(key)
            return known


def _with_oom(ended: ReplicaExit, inspected: Mapping[str, Any]) -> ReplicaExit:
    """The engine counts this container's kills alone; the runtime, without a group of its own, all of the machine's."""
    is_killed = ended.exit_code == _KILLED and ended.cause in (ExitCause.SIGNALLED, ExitCause.EXITED)
    if not (is_killed and inspected["State"].get("OOMKilled")):
        return ended
    plain = exits.exit_without_record(_KILLED, at=ended.at, is_out_of_memory=True, memory_bytes=_limit(inspected))
    return replace(plain, log_tail=ended.log_tail)


def _limit(inspected: Mapping[str, Any]) -> int | None:
    return int((inspected.get("HostConfig") or {}).get("Memory") or 0) or None


def _time(text: object) -> datetime | None:
    """The engine's times have nanoseconds, and the year 1 for never."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return None
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC) if len(text) < 27 else _precise(text)


def _precise(text: str) -> datetime:
    seconds, _, fraction = text.partition(".")
    digits = "".join(char for char in fraction if char.isdigit())[:6]
    return datetime.fromisoformat(f"{seconds}.{digits:0<6}+00:00")


def _address_of(summary: Mapping[str, Any]) -> str:
    """A container's address in its attempt's network, its only one; empty while it has none."""
    networks = (summary.get("NetworkSettings") or {}).get("Networks") or {}
    return next((str(entry["IPAddress"]) for entry in networks.values() if entry and entry.get("IPAddress")), "")
