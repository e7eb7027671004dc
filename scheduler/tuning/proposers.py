"""Where proposals are computed: what is quick here, what is slow in a process of its own, so that no tick waits for it."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from trainmaster.studies import Algorithm

from scheduler.tuning.propose import Proposal, Question, gp_may_draw, propose, startup_trials

_log = logging.getLogger(__name__)

# GP takes a second of a core for a hundred trials; twice that of the largest history that it is given.
_WITHIN_S: Final = 120.0
_NICE: Final = 5
_SMALL_GRID: Final = 5_000
# Key of a proposal's memo: the algorithm that could not draw it.
INSTEAD_OF: Final = "instead_of"


class Proposers:
    """Answers questions; safe for threads. Close it."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def __call__(self, question: Question) -> list[Proposal]:
        """The same as :func:`propose`. Blocks while it is computed.

        Where the process dies (out of memory, say), takes too long or finds no point (a matrix that cannot be factored, say),
        and where GP is asked for several metrics without torch, the points are TPE's, with ``INSTEAD_OF`` in each memo. Where
        TPE finds none either, they are drawn by chance.
        """
        if question.algorithm is Algorithm.GP and len(question.goals) > 1 and not gp_may_draw(question.space):
            return propose(question) if is_quick(question) else _instead(question)
        try:
            if is_quick(question):
                return propose(question)
            return self._in_a_process().submit(propose, question).result(_WITHIN_S)
        except (BrokenExecutor, TimeoutError):
            self.close()
            return _instead(question)
        except Exception:  # noqa: BLE001 (Optuna, torch and scipy raise what they like; a study must go on)
            _log.warning("%s found no point; others are taken", question.algorithm.value, exc_info=True)
            return _instead(question)

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
    space = question.space
    match question.algorithm:
        case Algorithm.GRID:  # to find that no point is left, all places are looked at
            return space.grid_size <= _SMALL_GRID or not (space.constraints or space.is_conditional)
        case Algorithm.GP | Algorithm.AUTO:
            return len(question.finished) < startup_trials(space)
        case _:
            return True


def _instead(question: Question) -> list[Proposal]:
    if question.algorithm is Algorithm.GRID:
        return propose(question)  # nothing else has its points
    try:
        found = propose(replace(question, algorithm=Algorithm.TPE))
    except Exception:  # noqa: BLE001 (the same)
        _log.warning("TPE found no point; chance draws them", exc_info=True)
        found = propose(replace(question, algorithm=Algorithm.RANDOM))
    return [Proposal(one.parameters, {**one.memo, INSTEAD_OF: question.algorithm.value}) for one in found]


def _begin() -> None:
    os.nice(_NICE)
    # Before torch is loaded: GP's matrices are small, and threads only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
