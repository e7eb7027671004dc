"""Parameter servers: samples per second against torch's RPC and TensorFlow, bandwidth, a slow worker, a slow link.

    python3 dev.py frameworks tf && python3 dev.py bench ps_throughput [--only mlp mlp_tcp embedding bandwidth straggler
    link]
        [--rounds 3] [--seconds 6] [--minutes 15] [--batch 32] [--json]

- ``mlp``: 1 ps and 2 workers, an MLP of 10 million parameters, SGD, asynchronous; against the parameter servers of
  torch's RPC tutorials (``rpc_ps``) and TensorFlow's ParameterServerStrategy with the same model and batch
  (``tensorflow_ps``), in turn. Without TensorFlow: without it. The batch of 32 is the one of torch's example of a
  parameter server. What it costs beside the computing itself: ``ps_cost``.
- ``mlp_tcp``: the same as between machines: without shared memory, both.
- ``embedding``: the same with an embedding of 50 million parameters before a small MLP, against TensorFlow's.
- ``bandwidth``: push and pull of 100 MB against the same bytes there and back over a plain TCP connection.
- ``straggler``: three workers whose computing is a pause (20 ms; one takes five times as long), until the same loss.
- ``link``: one worker behind a proxy that lets 100 Mbit/s through each way: seconds per step of 2.6 million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from trainmaster_train import ps

from benchmarks.support import rpc_ps
from benchmarks.support.ps_cluster import SPAWN, WITHIN_S, cluster, slow_link
from benchmarks.training import tensorflow_ps

BATCH = 32
BANDWIDTH_BYTES = 100 * 2**20
TARGET = {"torch RPC": 2.0, "TensorFlow": 1.5, "bandwidth": 0.5, "async": 2.8, "backup": 2.0, "bf16": 1.8, "topk": 10.0}
TF_PYTHON = Path(__file__).resolve().parents[2] / ".frameworks" / "tf" / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement of samples per second")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of one step of one worker, of the MLP")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=15.0, help="after which no other round begins")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    found: dict[str, Any] = {}
    for name in options.only:
        rows: dict[str, list[float]] = {}
        for number in range(options.rounds):
            if time.monotonic() > deadline:
                print(f"{name}: {number} of {options.rounds} rounds, for the time is over", file=sys.stderr)
                break
            for kind, value in PARTS[name](options).items():
                rows.setdefault(kind, []).append(value)
        found[name] = rows
        if not options.json:
            for kind, values in rows.items():
                middle = statistics.median(values)
                print(f"{name:10} {kind:48} {middle:9.3f}  ({min(values):.3f} - {max(values):.3f})", flush=True)
    print(json.dumps(found, indent=2) if options.json else f"wanted factors: {TARGET}")


# Samples per second.


def mlp_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(784, 3072), nn.ReLU(), nn.Linear(3072, 2432), nn.ReLU(), nn.Linear(2432, 10))


def mlp(arguments: argparse.Namespace) -> dict[str, float]:
    batch, seconds = partial(mlp_batch, arguments.batch), arguments.seconds
    rows: dict[str, float] = {}
    platform = rows["samples/s"] = mlp_samples_per_s(arguments, ps.Options())
    ahead = rows["samples/s, prefetch and overlap"] = mlp_samples_per_s(
        arguments, ps.Options(prefetch=True, overlap=True)
    )
    for kind in rpc_ps.KINDS:
        peer = rpc_ps.steps_per_s(kind, mlp_model, batch, rate, seconds) * arguments.batch
        rows[f"samples/s, torch RPC, {kind}"] = peer
        rows[f"factor, torch RPC, {kind}"] = platform / peer
        rows[f"factor, torch RPC, {kind}, prefetch and overlap"] = ahead / peer
    return {**rows, **by_tensorflow("MLP of 10 M parameters", arguments.batch, platform, ahead)}


def mlp_tcp(arguments: argparse.Namespace) -> dict[str, float]:
    batch = partial(mlp_batch, arguments.batch)
    platform = mlp_samples_per_s(arguments, ps.Options(shared_memory=False))
    peer = rpc_ps.steps_per_s("batch", mlp_model, batch, rate, arguments.seconds, is_tcp=True) * arguments.batch
    return {"samples/s": platform, "samples/s, torch RPC, batch": peer, "factor, torch RPC, batch": platform / peer}


def mlp_samples_per_s(arguments: argparse.Namespace, options: ps.Options) -> float:
    return samples_per_s(partial(mlp_worker, arguments.batch), mlp_model, arguments.seconds, options=options)


def by_tensorflow(model: str, batch: int, platform: float, ahead: float) -> dict[str, float]:
    """TensorFlow's samples per second, and the factors to them."""
    if not has_tensorflow():
        return {}
    training = replace(tensorflow_ps.MODELS[model], batch=batch)
    peer = tensorflow_ps.measure(TF_PYTHON, training, workers=2, servers=1)
    return {
        "samples/s, TensorFlow": peer,
        "factor, TensorFlow": platform / peer,
        "factor, TensorFlow, prefetch and overlap": ahead / peer,
    }


@cache
def has_tensorflow() -> bool:
    if not TF_PYTHON.exists():
        print(f"without TensorFlow: there is no {TF_PYTHON} (`python3 dev.py frameworks tf` makes it)", file=sys.stderr)
    return TF_PYTHON.exists()


def mlp_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 784), torch.randint(10, (size,))


def mlp_worker(size: int, servers: ps.Servers, barrier: Any, seconds: float) -> float:
    def step() -> None:
        servers.zero_grad()
        rpc_ps.loss_of(servers.model, partial(mlp_batch, size)).backward()
        servers.step()

    return rate(step, barrier, seconds) * size


EMBEDDING = tensorflow_ps.MODELS["embedding of 50 M parameters"]


def embedding_model() -> nn.Module:
    torch.manual_seed(2)
    first, hidden, last = EMBEDDING.sizes
    table = nn.EmbeddingBag(EMBEDDING.rows, EMBEDDING.dim, mode="mean", sparse=True)
    return nn.Sequential(table, nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))


def embedding(arguments: argparse.Namespace) -> dict[str, float]:
    seconds = arguments.seconds
    platform = samples_per_s(embedding_worker, embedding_model, seconds, options=ps.Options())
    ahead = samples_per_s(embedding_worker, embedding_model, seconds, options=ps.Options(prefetch=True, overlap=True))
    rates = {"samples/s": platform, "samples/s, prefetch and overlap": ahead}
    return {**rates, **by_tensorflow("embedding of 50 M parameters", EMBEDDING.batch, platform, ahead)}


def embedding_worker(servers: ps.Servers, barrier: Any, seconds: float) -> float:
    def batch() -> torch.Tensor:
        return torch.randint(EMBEDDING.rows, (EMBEDDING.batch, EMBEDDING.ids))

    rows = batch()

    def step() -> None:
        nonlocal rows
        servers.zero_grad()
        labels = torch.randint(EMBEDDING.sizes[-1], (EMBEDDING.batch,))
        loss = nn.functional.cross_entropy(servers.model(rows), labels)
        rows = batch()
        if servers.options.prefetch:
            servers.prefetch(servers.model[0], rows)  # type: ignore[index]
        loss.backward()
        servers.step()

    return rate(step, barrier, seconds) * EMBEDDING.batch


def rate(step: Callable[[], None], barrier: Any, seconds: float) -> float:
    """Steps per second, after all workers have made two."""
    for _ in range(2):
        step()
    barrier.wait(WITHIN_S)
    started = time.perf_counter()
    count = 0
    while time.perf_counter() - started < seconds:
        step()
        count += 1
    return count / (time.perf_counter() - started)


def samples_per_s(work: Any, make: Any, seconds: float, *, options: ps.Options) -> float:
    barrier = SPAWN.Barrier(2)
    with cluster(make, options, workers=2) as job:
        return sum(job.run(work, barrier, seconds))


# Bandwidth.


def large_model() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(BANDWIDTH_BYTES // 4))
    return model


def bandwidth(_: argparse.Namespace) -> dict[str, float]:
    rates = {}
    for kind, options in {"": ps.Options(), ", over TCP": ps.Options(shared_memory=False)}.items():
        with cluster(large_model, options, workers=1) as job:
            (rates[kind],) = job.run(push_and_pull)
    plain = over_tcp()
    return {
        **{f"GB/s, push and pull{kind}": value / 1e9 for kind, value in rates.items()},
        "GB/s, TCP there and back": plain / 1e9,
        **{f"share{kind}": value / plain for kind, value in rates.items()},
    }


def push_and_pull(servers: ps.Servers) -> float:
    servers.model.weight.grad = torch.zeros(BANDWIDTH_BYTES // 4)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        servers.step()
        seconds.append(time.perf_counter() - started)
    return 2 * BANDWIDTH_BYTES / statistics.median(seconds[1:])


def over_tcp() -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = SPAWN.Process(target=echo, args=(listener.getsockname()[1],))
        process.start()
        sock, _ = listener.accept()
    memory = memoryview(bytearray(BANDWIDTH_BYTES))
    seconds = []
    with sock:
        for _ in range(6):
            started = time.perf_counter()
            sock.sendall(memory)
            receive(sock, memory)
            seconds.append(time.perf_counter() - started)
    process.join()
    return 2 * BANDWIDTH_BYTES / statistics.median(seconds[1:])


def echo(port: int) -> None:
    memory = memoryview(bytearray(BANDWIDTH_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while receive(sock, memory):
            sock.sendall(memory)


def receive(sock: socket.socket, memory: memoryview) -> bool:
    done = 0
    while done < len(memory):
        count = sock.recv_into(memory[done:])
        if not count:
            return False
        done += count
    return True


# A slow worker.


def small_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))


def straggler(_: argparse.Namespace) -> dict[str, float]:
    found = {}
    for name, options in (
        ("sync", ps.Options(mode="sync")),
        ("async", ps.Options()),
        ("backup", ps.Options(mode="sync", backup_workers=1)),
    ):
        stop = SPAWN.Event()
        with cluster(small_model, options, workers=3) as job:
            found[name] = max(job.run(until_loss, SPAWN.Barrier(3), stop))
    rows = {f"s to the loss, {name}": seconds for name, seconds in found.items()}
    return {**rows, "factor, async": found["sync"] / found["async"], "factor, backup": found["sync"] / found["backup"]}


def until_loss(servers: ps.Servers, barrier: Any, stop: Any) -> float:
    generator = torch.Generator().manual_seed(servers.worker)
    truth = torch.linspace(-1, 1, 20).unsqueeze(1) / 3
    test = torch.randn(512, 20, generator=torch.Generator().manual_seed(9))
    pause_s = 0.1 if servers.worker == 2 else 0.02
    barrier.wait(WITHIN_S)
    started = time.perf_counter()
    while not stop.is_set():
        servers.zero_grad()
        inputs = torch.randn(64, 20, generator=generator)
        (servers.model(inputs) - inputs @ truth).square().mean().backward()
        threading.Event().wait(pause_s)
        servers.step()
        with torch.no_grad():
            loss = (servers.model(test) - test @ truth).square().mean()
        if servers.worker == 0 and loss < 0.03:
            stop.set()
            return time.perf_counter() - started
    return 0.0


# A slow link.


def link_model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(1024, 2560)


def link(_: argparse.Namespace) -> dict[str, float]:
    found = {}
    for wire in ("full", "bf16", "topk"):
        with cluster(link_model, ps.Options(wire=wire), workers=1, proxy=slow_link) as job:
            (found[wire],) = job.run(link_worker)
    rows = {f"s per step, {wire}": seconds for wire, seconds in found.items()}
    return {**rows, "factor, bf16": found["full"] / found["bf16"], "factor, topk": found["full"] / found["topk"]}


def link_worker(servers: ps.Servers) -> float:
    seconds = []
    for _ in range(4):
        servers.zero_grad()
        servers.model(torch.randn(8, 1024)).square().mean().backward()
        started = time.perf_counter()
        servers.step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "mlp": mlp,
    "mlp_tcp": mlp_tcp,
    "embedding": embedding,
    "bandwidth": bandwidth,
    "straggler": straggler,
    "link": link,
}

if __name__ == "__main__":
    main()
