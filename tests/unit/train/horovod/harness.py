"""Runs one scenario in real processes: ``harness.py MODULE.FUNCTION SIZE FOLDER``, of the folder scenarios.

torch is imported once and the ranks are forked from there, before any operation ran: a rank costs milliseconds. Each
writes what its scenario returns (or the exception that ended it) into ``FOLDER/<rank>.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path


def main(scenario, size, folder):
    import torch

    torch.set_num_threads(1)
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
            run_rank(run, folder / f"{rank}.json")
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
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
