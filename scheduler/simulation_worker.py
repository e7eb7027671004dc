"""``python -m scheduler.simulation_worker``: one simulation, in a process of its own, so that no tick waits for it.

It reads ``{"url", "ask", "now"}`` as one line from stdin and writes lines to stdout: ``{"doing": sentence}`` as it goes on, at last
``{"answer": ...}``. It ends as soon as stdin closes or whoever started it is gone: nothing of it may outlive a scheduler.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from datetime import datetime
from typing import Any, Final

import orjson

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.questions import ERROR
from scheduler.control.questions.what_if import load_what_if, run_what_if

_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Exits with 0 once the answer is written, and with 1 after a failure, told on stderr."""
    _end_with_the_starter()
    os.nice(_NICE)
    line = sys.stdin.buffer.readline()
    if not line:  # the starter is gone already
        return
    asked = orjson.loads(line)
    threading.Thread(target=_end_when_closed, args=(sys.stdin.fileno(),), daemon=True).start()
    # Whatever a library prints is no line of ours.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(line: dict[str, Any]) -> None:
        lines.write(orjson.dumps(line) + b"\n")
        lines.flush()

    tell({"answer": _answer(asked, lambda doing: tell({"doing": doing}))})
    os._exit(0)


def _answer(asked: dict[str, Any], tell: Any) -> dict[str, Any]:
    tell("reads the jobs that have ended")
    engine = make_engine(asked["url"], pool_size=1)
    try:
        with unit_of_work(make_sessions(engine), read_only=True, is_snapshot=True) as session:
            what_if = load_what_if(session, asked["ask"], datetime.fromisoformat(asked["now"]))
    except ValueError as error:
        field, _, _ = str(error).partition(":")
        return {ERROR: {"code": "invalid_request", "sentence": str(error), "field": field}}
    finally:
        engine.dispose()
    return run_what_if(what_if, tell)


def _end_with_the_starter() -> None:
    # A kill -9 of the scheduler closes the pipe too, unless something that it started meanwhile holds a copy of it.
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_when_closed(stdin: int) -> None:
    while os.read(stdin, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
