"""Peer monitor: threads in each process that send heartbeats, report stalls, and end a wait for a dead peer.

A collective waits for a stalled process until torch's time-out, half an hour by default, and the error does not name
it. A killed process is noticed otherwise: its connections are closed, and the platform sees its end. The heartbeats
tell which process holds up the others.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from trainmaster_train import steps

_SHOWN = 4  # ranks in one sentence

# Rare enough to cost nothing, often enough that a running process is hardly ever sampled twice at the same position.
_SAMPLE_S = 0.25
_HEARTBEAT_S = 5.0
_VERDICT = "trainmaster/verdict"
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Heartbeat(NamedTuple):
    """``sequence`` grows with each heartbeat. ``collectives``: number that this process has begun. ``stalled_s``: for
    how long it has made no progress. ``location``: the current line of the script.
    """

    sequence: int
    collectives: int
    stalled_s: float
    location: str
    has_left: bool = False

    def to_text(self) -> str:
        return json.dumps(self)


def parse_heartbeat(text: bytes) -> Optional[Heartbeat]:
    """``None``: the process has joined, but sent no heartbeat yet."""
    fields: List[Any] = json.loads(text)
    return Heartbeat(*fields) if fields else None


class HeartbeatTable:
    """The newest heartbeats of all processes, as one process sees them.

    Args:
        name_of: the name of a rank in messages.
        now_s: of a monotonic clock, as everywhere here.
    """

    def __init__(self, size: int, name_of: Callable[[int], str], now_s: float) -> None:
        self._name_of = name_of
        self._heartbeats: Dict[int, Heartbeat] = {}
        self._received_at = dict.fromkeys(range(size), now_s)

    def record(self, rank: int, heartbeat: Optional[Heartbeat], now_s: float) -> None:
        """Store a heartbeat of ``rank``; a repeated one is ignored."""
        known = self._heartbeats.get(rank)
        if heartbeat is not None and (known is None or heartbeat.sequence != known.sequence):
            self._heartbeats[rank] = heartbeat
            self._received_at[rank] = now_s

    def reset(self, now_s: float) -> None:
        """Restart the silence of all ranks at ``now_s``."""
        self._received_at = dict.fromkeys(self._received_at, now_s)

    def silent(self, now_s: float, for_s: float) -> List[int]:
        """Ranks without a heartbeat for ``for_s`` seconds that did not announce their exit."""
        return [
            rank
            for rank, location in self._received_at.items()
            if now_s - location >= for_s and not self._latest(rank).has_left
        ]

    def sentence(self, now_s: float, after_s: float) -> str:
        """Which ranks have waited for which, for ``after_s`` or longer; empty if none has."""
        heartbeats = {rank: self._latest(rank) for rank in self._received_at if not self._latest(rank).has_left}
        silent = self.silent(now_s, after_s)
        furthest = max((heartbeat.collectives for heartbeat in heartbeats.values()), default=0)
        late = [rank for rank, heartbeat in heartbeats.items() if rank in silent or heartbeat.collectives < furthest]
        stalled = [
            rank for rank, heartbeat in heartbeats.items() if rank not in late and heartbeat.stalled_s >= after_s
        ]
        if not stalled:
            return ""
        waited_s = min(heartbeats[rank].stalled_s for rank in stalled)
        where = heartbeats[stalled[0]].location
        if late:
            others_text = "; ".join(
                f"{self._name_of(rank)} {self._describe_late(rank, silent, now_s)}" for rank in late[:_SHOWN]
            )
            more = f"; and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
            return f"{_ranks(stalled)} waited for {waited_s:.0f} s at {where}: {others_text}{more}"
        if len(stalled) == len(heartbeats) and len(stalled) > 1:
            return f"all {len(stalled)} processes are stalled for {waited_s:.0f} s, {_ranks(stalled[:1])} at {where}"
        return ""

    def _describe_late(self, rank: int, silent: Sequence[int], now_s: float) -> str:
        if rank in silent:
            return describe_silence(now_s - self._received_at[rank])
        return f"is still at {self._latest(rank).location}"

    def _latest(self, rank: int) -> Heartbeat:
        return self._heartbeats.get(rank, Heartbeat(-1, 0, 0.0, "its start"))


def describe_silence(for_s: float) -> str:
    """Describe a silent process."""
    return f"has sent no heartbeat for {for_s:.0f} s, so it is stopped or its machine is unreachable"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" and others" if len(ranks) > _SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def heartbeat_key(rank: int) -> str:
    """The key in the store of the heartbeats of ``rank``; it exists once the rank has joined."""
    return f"trainmaster/rank/{rank}"


class PeerMonitor:
    """Monitors the other processes of a training, from :meth:`start` to :meth:`leave`.

    Args:
        store: a separate connection: its calls block for as long as the process that serves the store is stopped.
        silence_s: a process without a heartbeat for this long is given up: processes that have waited for it just as
            long end. It is reported after a fifth of that time.
        name_of: the name of a rank in messages.
    """

    def __init__(self, store: Any, *, rank: int, size: int, silence_s: float, name_of: Callable[[int], str]) -> None:
        now = time.monotonic()
        self._store = store
        self._rank = rank
        self._size = size
        self._silence_s = silence_s
        self._warn_after_s = self._next_warning_s = silence_s / 5
        self._interval_s = min(_HEARTBEAT_S, silence_s / 20)
        self._name_of = name_of
        self._activity = _ThreadActivity(threading.main_thread().ident or 0)
        self._table = HeartbeatTable(size, name_of, now)
        self._verdict_at = now  # last verdict of rank 0, which usually serves the store
        self._verdict_sequence = -1
        self._stall = ""  # the current stall, according to rank 0
        self._silent: List[int] = []  # ranks that are silent for too long, according to rank 0
        self._is_store_lost = False
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=loop, name="trainmaster peers", daemon=True)
            for loop in (self._exchange_heartbeats, self._watch_peers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Announce to the others that this process needs them no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * self._interval_s)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.leave()
        if self._stall:  # torch has ended the wait: the last line names its cause
            print(f"trainmaster: {self._stall}.", file=sys.stderr, flush=True)

    def _exchange_heartbeats(self) -> None:
        sequence = 0
        with suppress(RuntimeError):  # the store ended with its process, which gloo and the platform notice themselves
            while True:
                has_left = self._stopped.wait(self._interval_s)
                sequence += 1
                self._store.set(
                    heartbeat_key(self._rank), self._activity.heartbeat(sequence, has_left=has_left).to_text()
                )
                if has_left:
                    return
                if self._rank == 0:
                    self._gather(sequence)
                elif self._store.check([_VERDICT]):
                    self._apply_verdict(json.loads(self._store.get(_VERDICT)))
        self._is_store_lost = True

    def _gather(self, sequence: int) -> None:
        for rank in range(self._size):
            heartbeat = parse_heartbeat(self._store.get(heartbeat_key(rank)))
            self._table.record(rank, heartbeat, time.monotonic())
        now = time.monotonic()
        silent = self._table.silent(now, self._silence_s)
        verdict = {"sequence": sequence, "stall": self._table.sentence(now, self._warn_after_s), "silent": silent}
        self._store.set(_VERDICT, json.dumps(verdict))
        self._apply_verdict(verdict)

    def _apply_verdict(self, verdict: Dict[str, Any]) -> None:
        if verdict["sequence"] != self._verdict_sequence:
            self._verdict_sequence, self._verdict_at = verdict["sequence"], time.monotonic()
            self._stall, self._silent = verdict["stall"], verdict["silent"]

    def _watch_peers(self) -> None:
        sampled_at = time.monotonic()
        # Rank 0 ends last: the others read the silent ranks from its store.
        patience_s = self._silence_s + (2 * self._interval_s if self._rank == 0 else 0.0)
        while not self._stopped.wait(min(_SAMPLE_S, self._interval_s)):
            now = time.monotonic()
            if now - sampled_at >= self._warn_after_s / 2:
                self._reset(now)
            sampled_at = now
            self._activity.sample(now)
            stalled_s = self._activity.stalled_s(now)
            silent_s = 0.0 if self._is_store_lost else now - self._verdict_at
            if silent_s >= self._warn_after_s:
                self._stall = (
                    f"{self._name_of(0)} {describe_silence(silent_s)}" if stalled_s >= self._warn_after_s else ""
                )
            if self._rank == 0 or silent_s >= self._warn_after_s:
                self._report_stall(stalled_s)
            silent = [0] if silent_s >= self._silence_s else self._silent
            if silent and stalled_s >= patience_s:
                self._terminate(silent)

    def _reset(self, now: float) -> None:
        """This process, or its machine, was stopped: its knowledge of the others is outdated."""
        self._verdict_at, self._silent = now, []
        self._activity.reset(now)
        self._table.reset(now)

    def _report_stall(self, stalled_s: float) -> None:
        """Print the current stall, less often the longer it lasts."""
        if not self._stall:
            self._next_warning_s = self._warn_after_s
        elif max(stalled_s, self._warn_after_s) >= self._next_warning_s:
            self._next_warning_s *= 2
            print(f"trainmaster: {self._stall}.", file=sys.stderr, flush=True)

    def _terminate(self, silent: List[int]) -> None:
        names = ", ".join(self._name_of(rank) for rank in silent)
        print(
            f"trainmaster: {names} {describe_silence(self._silence_s)}: this process has waited for it as long, and "
            "ends (`init(silence=…)` sets the limit).",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        # The training thread is in a collective that will never end: no exception reaches it there.
        os._exit(1)


class _ThreadActivity:
    """Progress of a thread: it is active if it began a collective or a step, or its stack has changed."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._position: Tuple[Any, ...] = ()
        self._since = time.monotonic()
        self._timer = steps.timer()
        self._collectives = 0
        self._location = "its start"

    def sample(self, now: float) -> None:
        # Do not keep a reference to the frame: it would keep all objects of its function alive.
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 (the documented way to another thread's stack)
        self._collectives = _collectives()
        position: List[Any] = [self._collectives, self._timer.count]
        place = ""
        while frame is not None:
            position.append((id(frame), frame.f_lasti))
            code = frame.f_code
            if not place and not code.co_filename.startswith(("<frozen", _OWN)) and not _is_library(code.co_filename):
                place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            frame = frame.f_back
        if tuple(position) != self._position:
            self._position, self._since, self._location = tuple(position), now, place or "its end"

    def stalled_s(self, now: float) -> float:
        return max(0.0, now - self._since)

    def reset(self, now: float) -> None:
        self._since = now

    def heartbeat(self, sequence: int, *, has_left: bool) -> Heartbeat:
        stalled_s = round(self.stalled_s(time.monotonic()), 1)
        return Heartbeat(sequence, self._collectives, stalled_s, self._location, has_left)


def _is_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES)


def _collectives() -> int:
    """Number of collectives that this process has begun in the default group."""
    import torch.distributed as dist

    try:
        group: Any = dist.group.WORLD
        return int(group._get_sequence_number_for_group())  # noqa: SLF001 (torch has no public one)
    except (AttributeError, RuntimeError, ValueError):
        return 0  # the group is gone, or of a kind that does not count
