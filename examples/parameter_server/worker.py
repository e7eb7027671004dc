"""The worker: pulls the parameters, computes a gradient on a batch of its own, pushes it, and never waits for the
other workers.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import time
from pathlib import Path

import numpy as np
import torch
import trainmaster_train as tm
from shard import Staleness, bounds
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from wire import Channel, Op, Vector

PATIENCE_S = 120.0  # for a ps to come (back)


class ParameterServers:
    """All ps of the job seen as one vector of parameters.

    ``version`` counts the updates of the first ps: the job's step. A connection that breaks is made again, and
    the gradient that was on its way is given up: so none is ever applied twice.
    """

    def __init__(self, addresses: tuple[str, ...], key: bytes, worker: int) -> None:
        self._addresses = addresses
        self._key = key
        self._worker = worker
        self._channels: list[Channel] = []
        self._versions: list[int] = []
        self.staleness = Staleness()

    @property
    def version(self) -> int:
        return self._versions[0]

    def join(self, values: Vector) -> Vector:
        """Connect to all ps, give ``values`` to those that have none yet, and return the current ones.

        Raises:
            Refused: the model is not the one that the ps hold.
            OSError: a ps did not come within ``PATIENCE_S``.
        """
        deadline = time.monotonic() + PATIENCE_S
        pause_s = 0.05
        while True:
            try:
                return self._join_once(values)
            except OSError:
                self.close()
                if time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2.0, pause_s * 1.5)

    def push(self, gradient: Vector, values: Vector) -> Vector:
        """Send ``gradient``, computed on ``values``; the new values of all ps."""
        try:
            for number, channel in enumerate(self._channels):
                part = gradient[slice(*bounds(gradient.size, number, len(self._channels)))]
                channel.send(Op.PUSH, {"version": self._versions[number]}, part)
            answers = [channel.answer() for channel in self._channels]
        except OSError as error:
            print(f"lost a ps ({error}); waiting for it to come back.", flush=True)
            self.close()
            return self.join(values)
        self._versions = [meta["version"] for meta, _ in answers]
        self.staleness.note(max(meta["staleness"] for meta, _ in answers))
        return np.concatenate([part for _, part in answers])

    def save(self, **metrics: float) -> Path | None:
        """Have every ps write its shard, and seal them as the checkpoint of this version; ``None`` when a ps was lost
        on the way, and with it this checkpoint.
        """
        step = self.version
        tm.stage_checkpoint(step)
        try:
            for channel in self._channels:
                channel.send(Op.SAVE, {"step": step})
            for channel in self._channels:
                channel.answer()
        except OSError as error:
            print(f"no checkpoint of update {step} ({error}).", flush=True)
            return None  # the next push notices, too, and joins again
        return tm.seal_checkpoint(step, metrics)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels = []

    def _join_once(self, values: Vector) -> Vector:
        self.close()
        count = len(self._addresses)
        for number, address in enumerate(self._addresses):
            host, _, port = address.rpartition(":")
            channel = Channel(socket.create_connection((host, int(port)), timeout=5.0), self._key, is_server=False)
            self._channels.append(channel)
            hello = {"worker": self._worker, "parameters": values.size, "ps": count}
            meta, _ = channel.ask(Op.HELLO, hello)
            if not meta["is_ready"]:
                channel.ask(Op.INIT, values=values[slice(*bounds(values.size, number, count))])
        answers = [channel.ask(Op.PULL) for channel in self._channels]
        self._versions = [meta["version"] for meta, _ in answers]
        return np.concatenate([part for _, part in answers])


def train(context: tm.Context, servers: ParameterServers, options: argparse.Namespace) -> None:
    """Train until the ps counted ``options.updates`` updates of all workers; worker 0 writes checkpoints and evaluates."""
    number = context.rank or 0
    images, labels = load(context.data_dir / "train.npz")
    torch.manual_seed(options.seed)  # the same first weights everywhere, whoever comes first
    network = make_network()
    values = servers.join(vector_of(network))
    if servers.version:
        print(f"joined at update {servers.version} of {options.updates}.", flush=True)
    batches = np.random.default_rng([options.seed, number, context.attempt, servers.version])
    next_checkpoint = servers.version - servers.version % options.checkpoint_every + options.checkpoint_every
    steps = 0
    loss = torch.zeros(())
    while servers.version < options.updates:
        vector_to_parameters(torch.from_numpy(values), network.parameters())
        batch = torch.from_numpy(batches.choice(len(labels), options.batch, replace=False))
        network.zero_grad()
        loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
        loss.backward()
        values = servers.push(gradient_of(network), values)
        steps += 1
        if steps % 100 == 0:
            done = f"update {servers.version}/{options.updates}"
            print(f"{done}  own step {steps}  loss {loss.item():.4f}  ({servers.staleness})", flush=True)
        if number == 0:
            if steps % 10 == 0:
                tm.progress(min(servers.version, options.updates), options.updates, loss=loss)
            if next_checkpoint <= servers.version < options.updates:
                servers.save(loss=loss.item())
                next_checkpoint = servers.version + options.checkpoint_every
        if options.step_seconds:
            time.sleep(options.step_seconds)

    print(f"done after {steps} steps of its own; {servers.staleness}.", flush=True)
    if number == 0:
        vector_to_parameters(torch.from_numpy(values), network.parameters())
        accuracy = evaluate(network, context.data_dir / "test.npz")
        servers.save(loss=loss.item(), accuracy=accuracy)
        tm.progress(options.updates, options.updates, loss=loss, accuracy=accuracy)
        write_result(context.output_dir, accuracy=accuracy, updates=servers.version, own_steps=steps)
        print(f"test accuracy {accuracy:.4f}", flush=True)
    servers.close()


def make_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def vector_of(network: nn.Module) -> Vector:
    return parameters_to_vector(network.parameters()).detach().numpy().copy()


def gradient_of(network: nn.Module) -> Vector:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]).numpy()


def load(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n × 8 × 8) and labels (n)."""
    if not file.exists():
        sys.exit(f"{file} is missing: give the job `input: data/digits`, made by examples/data/make_digits.py.")
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])


def evaluate(network: nn.Module, file: Path) -> float:
    """The share of the test images that are read right."""
    images, labels = load(file)
    with torch.no_grad():
        return float((network(images).argmax(dim=1) == labels).float().mean())


def write_result(folder: Path, **result: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".result.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(folder / "result.json")
