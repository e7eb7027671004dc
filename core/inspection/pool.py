"""A pool of inspector processes with limits of time and memory, a few at a time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from core.domain.errors import CheckpointUnreadable, Unavailable
from core.inspection.model import Unreadable
from core.storage.tree import Tree

_AT_ONCE: Final = 2
WAIT_S: Final = 20.0
# Per caller one inspection runs and so many wait; more are refused at once. Each waiting one blocks a thread of the
# API, and one caller's files must not block the inspections of others.
_WAITING: Final = 4
_LINE_LIMIT: Final = 256 * 2**20
_ROOT: Final = Path(__file__).resolve().parents[2]
_LATE: Final = "Its inspection took too long and was aborted."
_DIED: Final = "Its inspection was aborted: the file is damaged, or too large to be inspected."


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint: ``path`` in ``tree``."""

    tree: Tree
    path: str

    def to_json(self) -> dict[str, str]:
        return {**self.tree.to_json(), "path": self.path}


class Inspectors:
    """Thread-safe. Processes are started on demand, and reused."""

    def __init__(self) -> None:
        self._turns = _Turns(_AT_ONCE)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end_all, self._idle)

    def close(self) -> None:
        """End the idle processes; a running inspection ends its own."""
        with self._lock:
            _end_all(self._idle)

    def contents(self, place: CheckpointRef, *, caller: str, deadline_s: float = 30.0) -> dict[str, Any]:
        """The contents of a checkpoint: ``format``, ``values``, ``notes`` and ``tensors``. Each caller has one
        running inspection at a time.

        Raises:
            CheckpointUnreadable: it cannot be inspected.
            Unavailable: too many inspections are running.
        """
        request = {"what": "list", "place": place.to_json()}
        found: dict[str, Any] = {"tensors": []}
        # In parts: parsing one line of a hundred thousand tensors would stop every other thread for a second. Layers,
        # dtypes and files are few distinct texts, interned.
        texts: dict[str, str] = {}
        for answer in self._ask(request, caller, deadline_s):
            found |= answer.get("contents", {})
            for tensor in answer.get("tensors", ()):
                for key in ("dtype", "layer", "file", "note"):
                    tensor[key] = texts.setdefault(tensor[key], tensor[key])
                found["tensors"].append(tensor)
        return found

    def statistics(
        self, place: CheckpointRef, names: list[str], *, caller: str, budget_s: float, deadline_s: float = 120.0
    ) -> Iterator[dict[str, Any]]:
        """The figures of these tensors in order, as many as ``budget_s`` allows, at least one."""
        request = {"what": "statistics", "place": place.to_json(), "names": names, "budget_s": budget_s}
        for answer in self._ask(request, caller, deadline_s):
            yield answer["item"]

    def differences(
        self,
        before: CheckpointRef,
        after: CheckpointRef,
        names: list[str],
        *,
        caller: str,
        budget_s: float,
        deadline_s: float = 120.0,
    ) -> Iterator[dict[str, Any]]:
        """The distances of these tensors, like ``statistics``."""
        places = {"place": before.to_json(), "other": after.to_json()}
        request = {"what": "difference", **places, "names": names, "budget_s": budget_s}
        for answer in self._ask(request, caller, deadline_s):
            yield answer["item"]

    def _ask(self, request: Mapping[str, Any], caller: str, deadline_s: float) -> Iterator[dict[str, Any]]:
        if not self._turns.take(caller):
            raise Unavailable("Other checkpoints are being inspected; try again in a moment.", retry_after_s=5.0)
        line = orjson.dumps({**request, "deadline_s": deadline_s}, option=orjson.OPT_APPEND_NEWLINE)
        until_s = time.monotonic() + deadline_s
        process: subprocess.Popen[bytes] | None = None
        try:
            process, answers = self._begin(line, until_s)
            problem: str | None = None
            is_spent = False
            for answer in answers:
                problem = answer.get("problem", problem)
                if "end" in answer:
                    is_spent = answer["is_spent"]
                    break
                if "problem" not in answer:
                    yield answer
            if not is_spent:
                with self._lock:
                    self._idle.append(process)
                process = None
            if problem is not None:
                raise CheckpointUnreadable(problem, field="path")
        except Unreadable as error:
            raise CheckpointUnreadable(error.sentence, field="path") from error
        finally:
            # On any failure, or if the reader gave up: it may be in an endless loop.
            if process is not None:
                _end(process)
            self._turns.give_back(caller)

    def _begin(self, line: bytes, until_s: float) -> tuple[subprocess.Popen[bytes], Iterator[dict[str, Any]]]:
        """A process that has accepted the request, and its answers. An idle process may have ended just now."""
        with self._lock:
            waiting = self._idle.pop() if self._idle else None
        for known in (waiting, None):
            process = known or _start()
            answers = _request(process, line, until_s)
            if answers is not None:
                return process, answers
            _end(process)
        raise Unreadable(_LATE if time.monotonic() >= until_s else _DIED)


class _Turns:
    """A semaphore with one slot per caller."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._looking: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._change = threading.Condition()

    def take(self, caller: str) -> bool:
        """Whether a slot became free in time."""
        with self._change:
            if self._waiting[caller] >= _WAITING:
                return False
            self._waiting[caller] += 1
            try:
                is_admitted = self._change.wait_for(lambda: self._left > 0 and caller not in self._looking, WAIT_S)
            finally:
                self._waiting[caller] -= 1
                self._waiting += Counter()  # drops zero counts
            if is_admitted:
                self._left -= 1
                self._looking.add(caller)
            return is_admitted

    def give_back(self, caller: str) -> None:
        with self._change:
            self._left += 1
            self._looking.discard(caller)
            self._change.notify_all()


def _request(process: subprocess.Popen[bytes], line: bytes, until_s: float) -> Iterator[dict[str, Any]] | None:
    """The answers of a process to a request; ``None`` if it does not accept it."""
    assert process.stdin is not None  # noqa: S101 (a pipe, as asked for)
    answers = _answers(process, until_s)
    try:
        process.stdin.write(line)
        process.stdin.flush()
        next(answers)
    except (OSError, Unreadable):
        return None
    return answers


def _start() -> subprocess.Popen[bytes]:
    # The environment holds no setting of the platform, hence no secret. Without site-packages hooks it starts twice as
    # fast.
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *(path for path in sys.path if path)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
    try:
        return subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-m", "core.inspection.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable("The process that inspects checkpoints cannot be started.") from error


def _answers(process: subprocess.Popen[bytes], until_s: float) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None  # noqa: S101 (a pipe, as asked for)
    fd = process.stdout.fileno()
    parts: list[bytes] = []
    size = 0
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            raise Unreadable(_LATE)
        data = os.read(fd, 2**20)
        size += len(data)
        if not data or size > _LINE_LIMIT:
            raise Unreadable(_DIED)
        parts.append(data)
        if b"\n" not in data:
            continue
        *lines, rest = b"".join(parts).split(b"\n")
        parts, size = [rest] if rest else [], len(rest)
        for line in lines:
            yield orjson.loads(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:
            pass  # an unread request


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    while processes:
        _end(processes.pop())
