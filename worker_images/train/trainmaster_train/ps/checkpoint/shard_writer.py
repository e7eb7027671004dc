"""A ps's part in a checkpoint: stop at the wanted version, copy the shard, and write it while training goes on.

The thread that writes only leaves what came of it in ``_written``; all else belongs to the serving thread. So no second
write of the same file can begin before the first one's answer is taken.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from trainmaster_train.checkpoint import staged_path
from trainmaster_train.ps.checkpoint.shard_checkpoint import write_shard
from trainmaster_train.ps.errors import RefusedError
from trainmaster_train.ps.server.sessions import WorkerRequest
from trainmaster_train.ps.server.shard import Shard

HOLD_S = 60.0  # who holds this ps for a checkpoint and does not go on is not waited for any longer

Answer = Tuple[WorkerRequest, Dict[str, Any]]


class ShardWriter:
    def __init__(self, shard: Shard, wake: Callable[[], None]) -> None:
        """``wake``: called from the writing thread when it is done, so that :meth:`answers` is asked."""
        self._shard = shard
        self._wake = wake
        self._hold_version: Optional[int] = None
        self._hold_since = 0.0
        self._request: Optional[WorkerRequest] = None
        self._is_writing = False
        self._written: List[Dict[str, Any]] = []
        self._answers: List[Answer] = []

    @property
    def is_paused(self) -> bool:
        """Whether the shard may not be updated now."""
        return self._hold_version is not None and self._shard.version >= self._hold_version

    def hold(self, now: float) -> int:
        """Let no update follow the current one; its version."""
        if self._hold_version is None:
            self._hold_version, self._hold_since = self._shard.version, now
        return self._hold_version

    def release(self) -> None:
        self._hold_version = None
        if not self._is_writing:
            self._request = None

    def release_after(self, now: float) -> None:
        """Go on when whoever holds this ps does not."""
        if self._hold_version is not None and now - self._hold_since > HOLD_S:
            self.release()

    def ask(self, request: WorkerRequest, now: float) -> None:
        """Write the shard as it is at ``request``'s version (``None``: now).

        Raises:
            RefusedError: another one is being written, or that version is past.
        """
        name = f"ps {self._shard.ps}"
        if self._request is not None:
            raise RefusedError(f"{name} is still writing its part of step {self._request.header['step']}")
        target = request.header.get("version")
        if target is not None and self._shard.version > int(target):
            self.release()
            raise RefusedError(f"{name} is past update {target} already")
        self._request = request
        if target is not None:
            self._hold_version, self._hold_since = int(target), now

    def proceed(self) -> None:
        """Begin to write if that was asked for and the version is right."""
        if self._request is None or self._is_writing:
            return
        target = self._request.header.get("version")
        if target is not None and self._shard.version < int(target):
            return
        self._hold_version = None
        folder = staged_path(int(self._request.header["step"]), directory=self._request.header.get("directory"))
        if not folder.is_dir():
            self._answer({"refused": f"{folder} is not there: all replicas must share the output of the chief"})
            return
        try:
            state = self._shard.state()
        except MemoryError as error:
            self._answer({"refused": f"ps {self._shard.ps} has no memory for {error}"})
            return
        about: Dict[str, Any] = {"ps": self._shard.ps, "count": self._shard.count, "version": self._shard.version}
        about.update(signature=dict(self._shard.layout.signature), rates=self._shard.learning_rates)
        self._is_writing = True
        threading.Thread(target=self._write, args=(folder, state, about), daemon=True).start()

    def answers(self) -> List[Answer]:
        """What is to be answered since the last call."""
        if self._written:
            self._answer(self._written.pop())
            self._is_writing = False
        answers: List[Answer] = []
        while self._answers:
            answers.append(self._answers.pop(0))
        return answers

    def _write(self, folder: Path, state: Any, about: Dict[str, Any]) -> None:
        try:
            name, digest = write_shard(folder, state, about)
            answer: Dict[str, Any] = {"version": about["version"], "file": name, "sha256": digest}
        except Exception as error:  # noqa: BLE001 (whatever it is, the chief waits for an answer)
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            answer = {"refused": f"ps {about['ps']} cannot write its shard to {folder}: {reason}"}
        self._written.append(answer)
        self._wake()

    def _answer(self, answer: Dict[str, Any]) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._answers.append((request, answer))
