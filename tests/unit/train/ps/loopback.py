"""Real ps and workers in threads of one process, over the loopback."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trainmaster_train.context import Context
from trainmaster_train.ps import Options, Servers
from trainmaster_train.ps.checkpoint.shard_checkpoint import restore_shard
from trainmaster_train.ps.layout import layout_of
from trainmaster_train.ps.server.server import ParameterServer
from trainmaster_train.ps.server.shard import Shard

KEY = b"the key of the tests"
# For what must happen, however busy the machine is.
WITHIN_S = 120.0

Make = Callable[[Any], Any]
_write = os.write


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_model(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))


def batch(seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, 8, generator=generator)
    return inputs, inputs[:, :3].cumsum(1)


def loss_of(model: Any, seed: int) -> Any:
    inputs, wanted = batch(seed)
    return (model(inputs) - wanted).square().mean()


class Cluster:
    """Real ps in threads of this process, and workers that join them over the loopback."""

    def __init__(
        self,
        ps: int,
        options: Options,
        *,
        workers: int = 1,
        make: Callable[[], Any] = make_model,
        optimizer: Make = sgd,
        make_server: Callable[..., ParameterServer] = ParameterServer,
    ) -> None:
        self.make_server = make_server
        self.options = options
        self.workers = workers
        self.make = make
        self.optimizer = optimizer
        self.addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(ps))
        self.servers: list[Any] = [None] * ps
        self.threads: list[Any] = [None] * ps
        self.errors: list[BaseException] = []
        self.joined: list[Servers] = []
        for index in range(ps):
            self.start(index)

    def start(self, index: int, checkpoint: Path | None = None) -> None:
        model = self.make()
        optimizer = self.optimizer(model)
        shard = Shard(layout_of(model, optimizer), optimizer, index, len(self.addresses))
        if checkpoint is not None:
            restore_shard(shard, checkpoint)
        server = self.make_server(
            shard,
            self.options,
            key=KEY,
            address=self.addresses[index],
            workers=self.workers,
            is_initialised=checkpoint is not None,
        )

        def serve() -> None:
            try:
                server.serve()
            except BaseException as error:  # noqa: BLE001 (raised or looked at later)
                self.errors.append(error)

        self.servers[index] = server
        self.threads[index] = threading.Thread(target=serve)
        self.threads[index].start()

    def stop(self, index: int) -> None:
        self.servers[index].stop()
        self.threads[index].join(WITHIN_S)
        assert not self.threads[index].is_alive()

    def join(self, rank: int = 0, *, key: bytes = KEY, model: Any = None, **options: Any) -> tuple[Any, Servers]:
        model = model or self.make()
        context = Context(rank=rank, world_size=self.workers, peers={"ps": self.addresses})
        merged = Options(**{**self.options.__dict__, **options})
        servers = Servers(model, self.optimizer(model), context=context, key=key, options=merged)
        self.joined.append(servers)
        return model, servers

    def leave(self) -> None:
        for servers in self.joined:
            servers.close(is_done=False)
        for index in range(len(self.servers)):
            self.stop(index)


def step(model: Any, servers: Servers, seed: int) -> float:
    servers.zero_grad()
    loss = loss_of(model, seed)
    loss.backward()
    servers.step()
    return float(loss.detach())


def values_of(model: Any) -> Any:
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def full_disk(file: int, data: Any) -> int:
    """``os.write`` of a full disk; pipes still take what they are given."""
    if stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return _write(file, data)


def flip_a_bit(file: Path, shard: Shard) -> None:
    """Of a value in a shard's file, which has the values that ``shard`` has now."""
    data = bytearray(file.read_bytes())
    data[data.index(shard.values[0].numpy().tobytes())] ^= 1
    file.write_bytes(data)


def together(*functions: Callable[[], None]) -> None:
    """Run them at the same time; the first error is raised."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (raised or looked at later)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
