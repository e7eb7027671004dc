"""Running what-if simulations, each in a process of its own. A scheduler owns one while it sends heartbeats for it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import orjson
import structlog
from sqlalchemy import Engine

from core.db.engine import unit_of_work
from core.db.repositories import simulations
from core.db.repositories.questions import ERROR
from core.db.repositories.simulations import HEARTBEAT_S, SimulationClaim
from core.domain.errors import TrainmasterError, Unavailable
from scheduler.control.context import ControlContext
from scheduler.control.leased_loop import PollingWorker

log = structlog.get_logger(__name__)

# A simulation that a dead scheduler left unfinished sends no wake-up.
_POLL_S: Final = 5.0
_MAX_DURATION_S: Final = 3600.0
# A simulation that kills its scheduler, for example by its memory, is not tried for ever.
_MAX_TRIES: Final = 3

# Works on a question: yields its progress, at last the answer.
Work = Callable[[Mapping[str, Any]], Generator[dict[str, Any]]]


class SimulationRunner:
    """Runs simulations one after the other, in a thread; one per process.

    Args:
        work: replaces the process; yields ``{}`` or ``{"doing": sentence}`` every second or so, at last
            ``{"answer": ...}``.
    """

    def __init__(self, control: ControlContext, work: Work | None = None) -> None:
        self._control = control
        self._work = work or self._in_a_process
        self._worker = PollingWorker("simulation", "simulations", self.work, threads=1, every_s=_POLL_S)

    def start(self) -> None:
        """Start with the requested simulations, and go on polling for more. Returns at once."""
        self._worker.start()

    def close(self) -> None:
        """End the running simulation, and leave it to the next scheduler."""
        self._worker.close()

    def work(self) -> None:
        """Run all requested simulations.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        while not self._worker.is_stopping:
            with unit_of_work(control.sessions) as session:
                claim = simulations.claim_next(session, control.holder, control.clock())
            if claim is None:
                return
            if claim.tries > _MAX_TRIES:
                self._finish(claim, _failed(_TOO_MANY_TRIES))
            else:
                self._work_on(claim)

    def _work_on(self, claim: SimulationClaim) -> None:
        try:
            answer = self._answer_to(claim)
        except Exception:
            log.exception("simulation.failed", question=claim.id)
            answer = _failed(_BUG)
        if answer is not None:
            self._finish(claim, answer)
        elif self._worker.is_stopping:
            with suppress(TrainmasterError), unit_of_work(self._control.sessions) as session:
                simulations.give_back(session, claim, self._control.clock())

    def _answer_to(self, claim: SimulationClaim) -> Mapping[str, Any] | None:
        """``None``: another scheduler has taken it over."""
        doing, written_s = "begins", time.monotonic()
        with closing(self._work(claim.arguments)) as work:
            for line in work:
                if "answer" in line:
                    answer: Mapping[str, Any] = line["answer"]
                    return answer
                if self._worker.is_stopping:
                    return None
                now_s = time.monotonic()
                if line.get("doing", doing) != doing or now_s - written_s >= HEARTBEAT_S:
                    doing, written_s = line.get("doing", doing), now_s
                    if not self._heartbeat(claim, doing):
                        return None
        return _failed(_BUG)

    def _heartbeat(self, claim: SimulationClaim, doing: str) -> bool:
        try:
            with unit_of_work(self._control.sessions) as session:
                return simulations.keep(session, claim, doing, self._control.clock())
        except Unavailable:
            return True  # sent again in two seconds; a scheduler that takes it over counts one more try

    def _finish(self, claim: SimulationClaim, answer: Mapping[str, Any]) -> None:
        for _ in range(3):
            with suppress(Unavailable), unit_of_work(self._control.sessions) as session:
                simulations.finish(session, claim, answer, self._control.clock())
                return
            if self._worker.is_stopping:
                break
            time.sleep(1.0)  # noqa: TID251 - a thread that has nothing else to do
        log.warning("simulation.not_written", question=claim.id)  # the next poll takes it up again

    def _in_a_process(self, ask: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        engine = self._control.sessions.kw["bind"]
        assert isinstance(engine, Engine)  # noqa: S101 - as core.db.engine makes them
        request = {
            "url": engine.url.render_as_string(hide_password=False),
            "ask": dict(ask),
            "now": self._control.clock().isoformat(),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.simulation_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in a terminal is meant for the scheduler
        )
        try:
            yield from _lines(process, orjson.dumps(request) + b"\n")
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _lines(process: subprocess.Popen[bytes], request: bytes) -> Generator[dict[str, Any]]:
    """Its lines, and ``{}`` each second; if it ends without an answer, the reason."""
    assert process.stdin is not None  # noqa: S101 - pipes, as asked for
    assert process.stdout is not None  # noqa: S101
    with suppress(BrokenPipeError):
        process.stdin.write(request)
    until_s, rest = time.monotonic() + _MAX_DURATION_S, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < until_s:
            if not selector.select(1.0):
                yield {}
                continue
            data = os.read(process.stdout.fileno(), 2**16)
            if not data:
                yield {"answer": _failed(_ended(process.wait()))}
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield orjson.loads(line)
    yield {"answer": _failed(_TOO_LONG)}


def _ended(code: int) -> str:
    log.error("simulation.failed", exit_code=code)
    if code == -signal.SIGKILL:
        return _KILLED
    return _BUG


def _failed(sentence: str) -> dict[str, Any]:
    return {ERROR: {"code": "internal", "sentence": sentence, "field": None}}


_BUG: Final = "The simulation failed, which is a bug; the scheduler's log says where (simulation.failed)."
_KILLED: Final = (
    "The process that worked on the simulation was killed, most likely because the machine ran out of memory. Ask for "
    "fewer days."
)
_TOO_LONG: Final = "The simulation took longer than an hour and was ended. Ask for fewer days."
_TOO_MANY_TRIES: Final = (
    f"The scheduler ended {_MAX_TRIES} times while it worked on this simulation, so it is not begun again. Its log "
    "says why it ended; asking for fewer days needs less memory."
)
