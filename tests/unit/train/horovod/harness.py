"""Runs scenarios of the folder scenarios in real processes; each line of the input is a call of ``run_scenario``.

torch is imported once and all ranks are forked from there, before any operation ran: a rank costs milliseconds. Each
writes what its scenario returns (or the exception that ended it) into ``FOLDER/<rank>.json``; what they print goes into
``FOLDER/log``. A line of the output tells that all ranks have ended, or that they were killed because they hung.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

WITHIN_S = 280
LOOK_S = 0.02


def main():
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            run_scenario(**json.loads(line))
            os._exit(0)
        print(wait_for(pid), flush=True)


def wait_for(leader):
    deadline = time.monotonic() + WITHIN_S
    while os.waitpid(leader, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(leader, signal.SIGKILL)
            os.waitpid(leader, 0)
            return "hung"
        time.sleep(LOOK_S)
    return "ended"


def run_scenario(scenario, size, folder, environment):
    """``scenario``: MODULE.FUNCTION."""
    os.environ.update(environment)
    log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    module, _, function = scenario.partition(".")
    run = getattr(importlib.import_module(f"scenarios.{module}"), function)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(size),
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            run_rank(run, Path(folder, f"{rank}.json"))
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def run_rank(scenario, file):
    try:
        result = {"result": scenario()}
    except BaseException as error:  # noqa: BLE001 (the test reads it)
        result = {"error": type(error).__name__, "text": str(error), "traceback": traceback.format_exc()}
    file.write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
