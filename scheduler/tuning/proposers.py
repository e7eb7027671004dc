"""Proposals in or out of process: quick ones here, slow ones in a worker process, so that no tick waits for them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from typing import Final

from trainmaster.studies import Algorithm

from scheduler.tuning.propose import gp_may_draw, propose
from scheduler.tuning.request import Proposal, ProposalRequest, startup_trials

_log = logging.getLogger(__name__)

# GP takes a core-second per hundred trials; this is twice the time of the largest history.
_WITHIN_S: Final = 120.0
_NICE: Final = 5
_SMALL_GRID: Final = 5_000
# Modules that the first draw of each algorithm imports.
_LOADED: Final[Mapping[Algorithm, tuple[str, ...]]] = {
    Algorithm.TPE: ("scheduler.tuning.engine",),
    Algorithm.CMA_ES: ("scheduler.tuning.engine",),
    Algorithm.GP: ("scheduler.tuning.engine", "scheduler.tuning.expected_improvement"),
    Algorithm.AUTO: ("scheduler.tuning.engine", "scheduler.tuning.expected_improvement"),
}
_IN_A_PROCESS: Final = (Algorithm.GP, Algorithm.AUTO)
# Memo key of a proposal: the algorithm that could not draw it.
REPLACED_PROPOSER: Final = "instead_of"


class Proposers:
    """Thread-safe. Close it.

    ``loads_ahead``: :meth:`expect` preloads modules. A process that draws no point for long would load much for
    nothing. ``make_pool``: makes the worker process, again after it has died.
    """

    def __init__(self, *, loads_ahead: bool = False, make_pool: Callable[[], Executor] | None = None) -> None:
        self._loads_ahead = loads_ahead
        self._make_pool = make_pool or _worker_process
        self._expected: set[Algorithm] = set()
        self._pool: Executor | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def expect(self, algorithm: Algorithm) -> None:
        """Preload what an algorithm needs, while no request waits for it. Returns at once.

        A study begins with space-filling points, and its first trials run for a while. Loading Optuna when the first
        trial ends would leave a machine idle for longer than everything else between two trials.
        """
        with self._lock:
            if self._is_closed or not self._loads_ahead or algorithm in self._expected or algorithm not in _LOADED:
                return
            self._expected.add(algorithm)
        # A preload does not delay the exit.
        threading.Thread(target=self._load, args=(algorithm,), name="tuning-load", daemon=True).start()

    def _load(self, algorithm: Algorithm) -> None:
        try:
            if algorithm in _IN_A_PROCESS:
                self._in_a_process().submit(_load, algorithm).result(_WITHIN_S)
            else:
                _load(algorithm)
        except Exception:  # noqa: BLE001 (the draw itself meets the same, and has an answer to it)
            _log.debug("%s could not be loaded ahead", algorithm.value, exc_info=True)

    def __call__(self, request: ProposalRequest) -> list[Proposal]:
        """Same as :func:`propose`. Blocks while it is computed.

        If the worker process dies (out of memory, say), takes too long or finds no point (a matrix that cannot be
        factored, say), and if GP is requested for several metrics without torch, the points come from TPE, with
        ``REPLACED_PROPOSER`` in each memo. If TPE fails as well, they are random.
        """
        if request.algorithm is Algorithm.GP and len(request.goals) > 1 and not gp_may_draw(request.space):
            return propose(request) if is_quick(request) else _fallback_points(request)
        try:
            if is_quick(request):
                return propose(request)
            return self._in_a_process().submit(propose, request).result(_WITHIN_S)
        except (BrokenExecutor, TimeoutError):
            self._end_process()
            return _fallback_points(request)
        except Exception:  # noqa: BLE001 (Optuna, torch and scipy raise what they like; a study must go on)
            _log.warning("%s found no point; others are taken", request.algorithm.value, exc_info=True)
            return _fallback_points(request)

    def close(self) -> None:
        """No worker process is started any more; requests that need one get the fallback of :meth:`__call__`."""
        with self._lock:
            self._is_closed = True
        self._end_process()

    def _end_process(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _in_a_process(self) -> Executor:
        with self._lock:
            if self._is_closed:
                raise BrokenExecutor("closed")
            if self._pool is None:
                self._pool = self._make_pool()
            return self._pool


def _worker_process() -> Executor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)


def _load(algorithm: Algorithm) -> None:
    for name in _LOADED[algorithm]:
        import_module(name)


def is_quick(request: ProposalRequest) -> bool:
    """Whether it takes some tens of milliseconds at most."""
    space = request.space
    match request.algorithm:
        case Algorithm.GRID:  # all positions are visited to find that no point is left
            return space.grid_size <= _SMALL_GRID or not (space.constraints or space.is_conditional)
        case Algorithm.GP | Algorithm.AUTO:
            return len(request.finished) < startup_trials(space)
        case _:
            return True


def _fallback_points(request: ProposalRequest) -> list[Proposal]:
    if request.algorithm is Algorithm.GRID:
        return propose(request)  # no other algorithm has its points
    try:
        proposals = propose(replace(request, algorithm=Algorithm.TPE))
    except Exception:  # noqa: BLE001 (the same)
        _log.warning("TPE found no point; chance draws them", exc_info=True)
        proposals = propose(replace(request, algorithm=Algorithm.RANDOM))
    return [
        Proposal(proposal.parameters, {**proposal.memo, REPLACED_PROPOSER: request.algorithm.value})
        for proposal in proposals
    ]


def _begin() -> None:
    os.nice(_NICE)
    # Before torch is loaded: GP's matrices are small, and threads would only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
