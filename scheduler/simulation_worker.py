"""``python -m scheduler.simulation_worker``: one what-if simulation in a process of its own, so that no tick waits.

It reads ``{"url", "ask", "now"}`` as one line from stdin and writes lines to stdout: ``{"doing": sentence}`` as
progress, at last ``{"answer": ...}``. It ends as soon as stdin closes or its parent is gone: it must not outlive the
scheduler.
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
    """Exits with 0 once the answer is written, and with 1 after a failure, reported on stderr."""
    _end_with_parent()
    os.nice(_NICE)
    line = sys.stdin.buffer.readline()
    if not line:  # the parent is gone already
        return
    request = orjson.loads(line)
    threading.Thread(target=_end_when_closed, args=(sys.stdin.fileno(),), daemon=True).start()
    # Output of libraries must not mix with our lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(line: dict[str, Any]) -> None:
        lines.write(orjson.dumps(line) + b"\n")
        lines.flush()

    send({"answer": _answer(request, lambda doing: send({"doing": doing}))})
    os._exit(0)


def _answer(request: dict[str, Any], report: Any) -> dict[str, Any]:
    report("reads the jobs that have ended")
    engine = make_engine(request["url"], pool_size=1)
    try:
        with unit_of_work(make_sessions(engine), read_only=True, is_snapshot=True) as session:
            what_if = load_what_if(session, request["ask"], datetime.fromisoformat(request["now"]))
    except ValueError as error:
        field, _, _ = str(error).partition(":")
        return {ERROR: {"code": "invalid_request", "sentence": str(error), "field": field}}
    finally:
        engine.dispose()
    return run_what_if(what_if, report)


def _end_with_parent() -> None:
    # A kill -9 of the scheduler also closes the pipe, unless another child of the scheduler has inherited a copy of it.
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_when_closed(stdin: int) -> None:
    while os.read(stdin, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
