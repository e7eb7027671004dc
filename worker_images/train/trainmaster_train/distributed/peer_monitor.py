"""A thread in each process that tells the others how it goes, says who holds them up, and ends what waits for the dead.

A collective waits for a process that stands still until torch's time-out, half an hour as it stands, and then says no
name. A killed process is another matter: its connections are closed, and the platform sees its end.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Tuple

from trainmaster_train import steps
from trainmaster_train.distributed.heartbeats import Board, Sign, missing, read_sign

# Seldom enough to cost nothing, often enough that a process which moves is hardly ever seen twice in the same place.
_LOOK_S = 0.25
_TALK_S = 5.0
_VERDICT = "trainmaster/verdict"
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def sign_key(rank: int) -> str:
    """Where in the store ``rank`` leaves its signs; there from the moment when it has come."""
    return f"trainmaster/rank/{rank}"


class Peers:
    """The watch of one process over the others of its training, from :meth:`start` to :meth:`leave`.

    Args:
        store: a connection of the watch's own: its calls block for as long as the process that serves it is stopped.
        silence_s: a process that says nothing for so long is given up: whoever has waited for it just as long ends. It
            is told after a fifth of that.
        name_of: how a sentence calls a rank.
    """

    def __init__(self, store: Any, *, rank: int, size: int, silence_s: float, name_of: Callable[[int], str]) -> None:
        now = time.monotonic()
        self._store = store
        self._rank = rank
        self._size = size
        self._silence_s = silence_s
        self._tell_s = self._tell_at_s = silence_s / 5
        self._talk_s = min(_TALK_S, silence_s / 20)
        self._name_of = name_of
        self._motion = _Motion(threading.main_thread().ident or 0)
        self._board = Board(size, name_of, now)
        self._heard_at = now  # of rank 0, where the store is as a rule
        self._heard_beat = -1
        self._stall = ""  # what holds this training up now, as rank 0 sees it
        self._silent: List[int] = []  # for too long, as rank 0 sees it
        self._is_store_gone = False
        self._left = threading.Event()
        self._threads = [
            threading.Thread(target=loop, name="trainmaster peers", daemon=True) for loop in (self._talk, self._look)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        atexit.register(self._at_exit)

    def leave(self) -> None:
        """Tell the others that this process needs them no more."""
        self._left.set()
        for thread in self._threads:
            thread.join(2 * self._talk_s)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.leave()
        if self._stall:  # torch has ended the wait: the last line says for whom it was
            print(f"trainmaster: {self._stall}.", file=sys.stderr, flush=True)

    def _talk(self) -> None:
        beat = 0
        with suppress(RuntimeError):  # the store ends with its process, which gloo and the platform notice themselves
            while True:
                has_left = self._left.wait(self._talk_s)
                beat += 1
                self._store.set(sign_key(self._rank), self._motion.sign(beat, has_left=has_left).to_text())
                if has_left:
                    return
                if self._rank == 0:
                    self._gather(beat)
                elif self._store.check([_VERDICT]):
                    self._take(json.loads(self._store.get(_VERDICT)))
        self._is_store_gone = True

    def _gather(self, beat: int) -> None:
        for rank in range(self._size):
            sign = read_sign(self._store.get(sign_key(rank)))
            self._board.note(rank, sign, time.monotonic())
        now = time.monotonic()
        silent = self._board.silent(now, self._silence_s)
        told = {"beat": beat, "stall": self._board.sentence(now, self._tell_s), "silent": silent}
        self._store.set(_VERDICT, json.dumps(told))
        self._take(told)

    def _take(self, told: Dict[str, Any]) -> None:
        if told["beat"] != self._heard_beat:
            self._heard_beat, self._heard_at = told["beat"], time.monotonic()
            self._stall, self._silent = told["stall"], told["silent"]

    def _look(self) -> None:
        looked_at = time.monotonic()
        # Rank 0 ends last: the others have it from its store for whom they wait in vain.
        patience_s = self._silence_s + (2 * self._talk_s if self._rank == 0 else 0.0)
        while not self._left.wait(min(_LOOK_S, self._talk_s)):
            now = time.monotonic()
            if now - looked_at >= self._tell_s / 2:
                self._begin_anew(now)
            looked_at = now
            self._motion.look(now)
            still_s = self._motion.still_s(now)
            unheard_s = 0.0 if self._is_store_gone else now - self._heard_at
            if unheard_s >= self._tell_s:
                self._stall = f"{self._name_of(0)} {missing(unheard_s)}" if still_s >= self._tell_s else ""
            if self._rank == 0 or unheard_s >= self._tell_s:
                self._tell(still_s)
            silent = [0] if unheard_s >= self._silence_s else self._silent
            if silent and still_s >= patience_s:
                self._end(silent)

    def _begin_anew(self, now: float) -> None:
        """This process was stopped itself, or its whole machine: what it knows of the others is old."""
        self._heard_at, self._silent = now, []
        self._motion.begin_anew(now)
        self._board.begin_anew(now)

    def _tell(self, still_s: float) -> None:
        """Print what holds the training up, less often the longer it lasts."""
        if not self._stall:
            self._tell_at_s = self._tell_s
        elif max(still_s, self._tell_s) >= self._tell_at_s:
            self._tell_at_s *= 2
            print(f"trainmaster: {self._stall}.", file=sys.stderr, flush=True)

    def _end(self, silent: List[int]) -> None:
        names = ", ".join(self._name_of(rank) for rank in silent)
        print(
            f"trainmaster: {names} {missing(self._silence_s)}: this process has waited for it as long, and ends "
            "(`init(silence=…)` says for how long it waits).",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        # The training thread is in a collective that nobody will finish: no exception reaches it there.
        os._exit(1)


class _Motion:
    """Whether a thread gets on: it moves when it begins a collective or a step, or is seen somewhere else."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._seen: Tuple[Any, ...] = ()
        self._since = time.monotonic()
        self._timer = steps.timer()
        self._collectives = 0
        self._at = "its start"

    def look(self, now: float) -> None:
        # Without a reference to it that stays: a frame keeps all that its function holds.
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 (the documented way to another thread's stack)
        self._collectives = _collectives()
        seen: List[Any] = [self._collectives, self._timer.count]
        place = ""
        while frame is not None:
            seen.append((id(frame), frame.f_lasti))
            code = frame.f_code
            if not place and not code.co_filename.startswith(("<frozen", _OWN)) and not _is_library(code.co_filename):
                place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            frame = frame.f_back
        if tuple(seen) != self._seen:
            self._seen, self._since, self._at = tuple(seen), now, place or "its end"

    def still_s(self, now: float) -> float:
        return max(0.0, now - self._since)

    def begin_anew(self, now: float) -> None:
        self._since = now

    def sign(self, beat: int, *, has_left: bool) -> Sign:
        still_s = round(self.still_s(time.monotonic()), 1)
        return Sign(beat, self._collectives, still_s, self._at, has_left)


def _is_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES)


def _collectives() -> int:
    """How many this process has begun in the default group."""
    import torch.distributed as dist

    try:
        group: Any = dist.group.WORLD
        return int(group._get_sequence_number_for_group())  # noqa: SLF001 (torch has no public one)
    except (AttributeError, RuntimeError, ValueError):
        return 0  # the group is gone, or of a kind that does not count
