"""A ps's part in a checkpoint: pause at the requested version, copy the shard, and write it while training continues.

The writing thread only stores its result in ``_written``; everything else belongs to the serving thread. So no second
write of the same file can begin before the result of the first one is taken.
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

HOLD_S = 60.0  # a pause for a checkpoint that does not proceed ends after this time

Answer = Tuple[WorkerRequest, Dict[str, Any]]


class ShardWriter:
    def __init__(self, shard: Shard, wake: Callable[[], None]) -> None:
        """``wake``: called by the writing thread when it is done, so that :meth:`answers` is called."""
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
        """Whether updates of the shard are paused."""
        return self._hold_version is not None and self._shard.version >= self._hold_version

    def hold(self, now: float) -> int:
        """Pause after the current update; returns its version."""
        if self._hold_version is None:
            self._hold_version, self._hold_since = self._shard.version, now
        return self._hold_version

    def release(self) -> None:
        self._hold_version = None
        if not self._is_writing:
            self._request = None

    def release_after(self, now: float) -> None:
        """Resume if the pause has timed out."""
        if self._hold_version is not None and now - self._hold_since > HOLD_S:
            self.release()

    def ask(self, request: WorkerRequest, now: float) -> None:
        """Write the shard at ``request``'s version (``None``: now).

        Raises:
            RefusedError: another one is being written, or that version has passed.
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
        """Begin to write if requested, once the version is reached."""
        if self._request is None or self._is_writing:
            return
        target = self._request.header.get("version")
        if target is not None and self._shard.version < int(target):
            return
        self._hold_version = None
        folder = staged_path(int(self._request.header["step"]), directory=self._request.header.get("directory"))
        if not folder.is_dir():
            self._answer({"refused": f"{folder} does not exist: all replicas must share the output of the chief"})
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
        """The answers to send since the last call."""
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
        except Exception as error:  # noqa: BLE001 (the chief waits for an answer in any case)
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            answer = {"refused": f"ps {about['ps']} cannot write its shard to {folder}: {reason}"}
        self._written.append(answer)
        self._wake()

    def _answer(self, answer: Dict[str, Any]) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._answers.append((request, answer))
