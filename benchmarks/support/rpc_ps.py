"""torch's RPC parameter servers: the peers of ours. 1 ps and 2 trainers, each a process of this machine with one
thread.

- ``batch``: the one of torch's tutorial "Implementing Batch RPC Processing Using Asynchronous Executions", as it is
  written there, with batches of one: trainers send gradients, the server adds them up, steps and returns its model.
- ``lean``: the same idea with as little work as RPC allows: gradients are put in place, parameters come back as
  tensors. What it returns is not guarded: another trainer's update may change it while it is sent.

torch's other example (``dist_autograd`` and ``DistributedOptimizer``, where the model computes on the ps and trainers
send inputs) is no peer: with two trainers one's step changes the weights under the other's backward pass, which ends
with "one of the variables needed for gradient computation has been modified by an inplace operation" (torch 2.13).

https://docs.pytorch.org/tutorials/intermediate/rpc_async_execution.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import rpc

from benchmarks.support.ps_cluster import LEARNING_RATE, SPAWN, WITHIN_S, free_ports, gather

KINDS = ("batch", "lean")
# Makes a model; makes a batch of inputs and labels; calls the step again and again and tells how many there were a
# second.
Make = Callable[[], nn.Module]
Batch = Callable[[], tuple[torch.Tensor, torch.Tensor]]
Rate = Callable[[Callable[[], None], Any, float], float]


def steps_per_s(
    kind: str,
    make: Make,
    batch: Batch,
    rate: Rate,
    seconds: float,
    barrier: Any = None,
    *,
    is_tcp: bool = False,
) -> float:
    """What ``rate(step, barrier, seconds)`` says in both trainers together, such as steps per second.

    Args:
        barrier: theirs, unless others wait at it too.
        is_tcp: without memory that processes of one machine share.
    """
    (port,) = free_ports(1)
    barrier, results = barrier or SPAWN.Barrier(2), SPAWN.Queue()
    about = (kind, make, batch, rate, port, seconds, barrier, results, is_tcp)
    processes = [SPAWN.Process(target=process, args=(rank, *about)) for rank in range(3)]
    for child in processes:
        child.start()
    return sum(gather(results, processes, 2))


def process(
    rank: int,
    kind: str,
    make: Make,
    batch: Batch,
    rate: Rate,
    port: int,
    seconds: float,
    barrier: Any,
    results: Any,
    is_tcp: bool,
) -> None:
    torch.set_num_threads(1)
    backend = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}",
        rpc_timeout=120,
        **({"_transports": ["uv"], "_channels": ["basic"]} if is_tcp else {}),
    )
    rpc.init_rpc("ps" if rank == 2 else f"worker{rank}", rank=rank, world_size=3, rpc_backend_options=backend)
    if rank != 2:
        # Both trainers use one server: the first one's.
        made = rpc.remote("ps", SERVERS[kind], args=(make,)) if rank == 0 else None
        server = rpc.rpc_sync("ps", keep_server, (made,))
        results.put(rate(STEPS[kind](server, make, batch), barrier, seconds))
    rpc.shutdown()


_served: Any = None
_is_served = threading.Event()


def keep_server(server: Any) -> Any:
    """On the ps: the server that the first trainer made."""
    global _served  # noqa: PLW0603 (what a process serves)
    if server is not None:
        _served = server
        _is_served.set()
    _is_served.wait(WITHIN_S)
    return _served


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
    inputs, labels = batch()
    return nn.functional.cross_entropy(model(inputs), labels)


class BatchServer:
    batch_update_size = 1

    def __init__(self, make: Make) -> None:
        self.model = make()
        self.lock = threading.Lock()
        self.future_model: torch.futures.Future[nn.Module] = torch.futures.Future()
        self.curr_update_size = 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def get_model(self) -> nn.Module:
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch_model(reference: Any, gradients: list[torch.Tensor]) -> Any:
        self = reference.local_value()
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad += gradient
            self.curr_update_size += 1
            future = self.future_model
            if self.curr_update_size >= self.batch_update_size:
                for parameter in self.model.parameters():
                    parameter.grad /= self.batch_update_size
                self.curr_update_size = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                future.set_result(self.model)
                self.future_model = torch.futures.Future()
        return future


def batch_step(server: Any, _make: Make, batch: Batch) -> Callable[[], None]:
    model = server.rpc_sync().get_model()

    def step() -> None:
        nonlocal model
        loss_of(model, batch).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model = rpc.rpc_sync(server.owner(), BatchServer.update_and_fetch_model, args=(server, gradients))

    return step


class LeanServer:
    def __init__(self, make: Make) -> None:
        self.model = make()
        self.lock = threading.Lock()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

    def update_and_fetch(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            return [parameter.detach() for parameter in self.model.parameters()]


def lean_step(server: Any, make: Make, batch: Batch) -> Callable[[], None]:
    model = make()

    def step() -> None:
        model.zero_grad()
        loss_of(model, batch).backward()
        values = server.rpc_sync(timeout=0).update_and_fetch([p.grad for p in model.parameters()])
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.copy_(value)

    return step


SERVERS: dict[str, Any] = {"batch": BatchServer, "lean": LeanServer}
STEPS: dict[str, Any] = {"batch": batch_step, "lean": lean_step}
