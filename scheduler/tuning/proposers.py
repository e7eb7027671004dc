"""Where proposals are computed: what is quick here, what is slow in a process of its own, so that no tick waits for it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from trainmaster.studies import Algorithm

from scheduler.tuning.propose import Proposal, Question, propose, startup_trials

# GP takes a second of a core for a hundred trials; twice that of the largest history that it is given.
_WITHIN_S: Final = 120.0
_NICE: Final = 5


class Proposers:
    """Answers questions; safe for threads. Close it."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def __call__(self, question: Question) -> list[Proposal]:
        """The same as :func:`propose`. Blocks while it is computed.

        Where the process dies (out of memory, say) or takes too long, the points are TPE's, with a note at each.
        """
        if is_quick(question):
            return propose(question)
        try:
            return self._in_a_process().submit(propose, question).result(_WITHIN_S)
        except (BrokenExecutor, TimeoutError):
            self.close()
            instead = propose(replace(question, algorithm=Algorithm.TPE))
            return [Proposal(one.parameters, {**one.memo, "instead_of": question.algorithm.value}) for one in instead]

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _in_a_process(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)
            return self._pool


def is_quick(question: Question) -> bool:
    """Whether it takes some tens of milliseconds at most."""
    return question.algorithm is not Algorithm.GP or len(question.finished) < startup_trials(question.space)


def _begin() -> None:
    os.nice(_NICE)
    # Before torch is loaded: GP's matrices are small, and threads only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
