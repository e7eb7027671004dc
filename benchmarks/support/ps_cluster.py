"""One ps of Trainmaster and its workers, each a process of this machine with one thread. For the benchmarks beside this
file.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from trainmaster_train import ps
from trainmaster_train.context import current
from trainmaster_train.ps.wire.messages import job_key

from benchmarks.support import free_ports

SPAWN = multiprocessing.get_context("spawn")
WITHIN_S = 120.0  # for what takes seconds on a machine that is not busy
END_S = 10.0
LEARNING_RATE = 0.02
LINK_BYTES_PER_S = 100e6 / 8


class Job:
    def __init__(self, make: Any, options: ps.Options, workers: int, address: str, folder: str) -> None:
        self.make, self.options, self.workers, self.folder = make, options, workers, folder
        self.peers = {"ps": [address], "worker": [f"127.0.0.1:{number}" for number in range(1, workers + 1)]}

    def run(self, work: Any, *arguments: Any) -> list[float]:
        """What ``work(servers, *arguments)`` returns in each worker."""
        results = SPAWN.Queue()
        processes = [
            SPAWN.Process(
                target=work_process, args=(self.env("worker", index), self.make, self.options, results, work, arguments)
            )
            for index in range(self.workers)
        ]
        for process in processes:
            process.start()
        return gather(results, processes, len(processes))

    def env(self, role: str, index: int) -> dict[str, str]:
        config = {"cluster": self.peers, "task": {"type": role, "index": index}}
        return {"TF_CONFIG": json.dumps(config), "PS_KEY": "benchmark", "TRAINMASTER_OUTPUT_DIR": self.folder}


def gather(results: Any, processes: Sequence[Any], count: int) -> list[Any]:
    """``count`` results of ``processes``, which are ended then. Raises ``RuntimeError`` at once when one of them
    fails.
    """
    found: list[Any] = []
    deadline = time.monotonic() + WITHIN_S
    try:
        while len(found) < count:
            with suppress(queue.Empty):
                found.append(results.get(timeout=1.0))
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed or time.monotonic() > deadline:
                raise RuntimeError(f"{len(found)} of {count} results; exit codes {failed}, within {WITHIN_S:.0f} s")
        return found
    finally:
        for process in processes:
            process.join(END_S if len(found) == count else 0)
            process.kill()


@contextmanager
def cluster(make: Any, options: ps.Options, *, workers: int, proxy: Any = None) -> Iterator[Job]:
    """``proxy(port, target)``: a process between the workers and the ps."""
    port, outside = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        inside = Job(make, options, workers, f"127.0.0.1:{port}", folder)
        processes = [SPAWN.Process(target=ps_process, args=(inside.env("ps", 0), make, options))]
        if proxy is not None:
            processes.append(SPAWN.Process(target=proxy, args=(outside, port)))
        for process in processes:
            process.start()
        try:
            yield Job(make, options, workers, f"127.0.0.1:{port if proxy is None else outside}", folder)
        finally:
            for process in processes:
                process.terminate()
                process.join(END_S)
                process.kill()


def slow_link(port: int, target: int) -> None:
    """A link of LINK_BYTES_PER_S each way: each piece waits until the bytes before it would have been through."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        free_at = 0.0
        while data := await reader.read(16 * 1024):
            free_at = max(free_at, time.monotonic()) + len(data) / LINK_BYTES_PER_S
            await asyncio.sleep(max(0.0, free_at - time.monotonic()))
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()  # the ps is not there yet: the worker knocks again
            return
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(main())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def ps_process(env: dict[str, str], make: Any, options: ps.Options) -> None:
    os.environ.update(env)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 (for the whole process)
    torch.set_num_threads(1)
    model = make()
    ps.run(model, sgd(model), lambda _: None, options=options)


def work_process(
    env: dict[str, str], make: Any, options: ps.Options, results: Any, work: Any, arguments: tuple[Any, ...]
) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    model = make()
    servers = ps.Servers(model, sgd(model), context=current(), key=job_key(None), options=options)
    results.put(work(servers, *arguments))
    servers.close()
