"""Trains a small convolutional network on the digits with torch's DistributedDataParallel.

Every process holds the whole model, computes gradients on its share of each batch, and allreduce averages them.
Started by the platform (or torchrun) the ranks come from the environment; started by hand it trains alone:

    python train.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
import trainmaster_train as tm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64  # images of one process in one step
STOPPED = 128 + signal.SIGTERM  # what a shell would say of a process that the signal ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=0.0,
        help="rest after each step, to have time to watch (or to kill a worker)",
    )
    options = parser.parse_args()
    stop = StopFlag()
    context = tm.current()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    images, labels = load(context.data_dir / "train.npz")
    join(context)
    try:
        train(context, options, images, labels, stop)
    except Exception as error:  # noqa: BLE001 (whatever it was, this process must end now)
        # A peer that left lets gloo's threads hang in the middle of a collective: an orderly end could wait for ever.
        if stop.is_set:
            leave(STOPPED)
        if "gloo" in str(error):
            print(f"rank {dist.get_rank()}: a peer is gone, so this process ends too; a restart goes on from the "
                  "newest checkpoint.", flush=True)  # fmt: skip
        else:
            traceback.print_exc()
        leave(1)
    dist.destroy_process_group()


class StopFlag:
    """Set by SIGTERM. Rank 0 looks at it between two steps; the others go on until rank 0 has left."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, _signum: int, _frame: FrameType | None) -> None:
        self.is_set = True


def join(context: tm.Context) -> None:
    """Meet the other processes. The address is new for each attempt, so nothing is found of an earlier one."""
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
    else:  # alone
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} joined ({context.role}-{context.index}).", flush=True)


def leave(exit_code: int) -> NoReturn:
    """End this process at once, without any of the teardown that could wait for a peer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def train(
    context: tm.Context, options: argparse.Namespace, images: torch.Tensor, labels: torch.Tensor, stop: StopFlag
) -> None:
    """Train from the newest checkpoint to the last epoch, and evaluate. The model is gone when it returns: one that
    is freed after the process group was destroyed may hang.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)  # the same first weights everywhere
    network = make_network()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    per_epoch = len(labels) // (BATCH * world)
    steps = per_epoch * options.epochs

    first = 0
    resume = tm.latest()
    if resume is not None:
        checkpoint = tm.load_checkpoint(resume)
        network.load_state_dict(checkpoint.state["model"])
        optimizer.load_state_dict(checkpoint.state["optimizer"])
        first = checkpoint.step
        print(f"resuming from {resume.name}: {first} of {steps} steps are done.", flush=True)

    loss = torch.zeros(())
    for step in range(first + 1, steps + 1):
        batch = choose(len(labels), step - 1, per_epoch, rank, world, options.seed)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()  # allreduce happens in here
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            tm.progress(step, steps, epoch=step // per_epoch, loss=loss)
        if rank == 0 and (step % options.checkpoint_every == 0 or stop.is_set) and step < steps:
            save(network, optimizer, step, loss=loss.item())
        if rank == 0 and stop.is_set:
            # All processes hold the same model after a step: this one checkpoint serves all of them.
            print(f"asked to stop: left after step {step}.", flush=True)
            leave(STOPPED)
        if rank == 0 and step % per_epoch == 0:
            print(f"epoch {step // per_epoch:3d}  step {step:4d}/{steps}  loss {loss.item():.4f}", flush=True)
        if options.step_seconds:
            time.sleep(options.step_seconds)

    if rank == 0:
        accuracy = evaluate(network, context.data_dir / "test.npz")
        save(network, optimizer, steps, loss=loss.item(), accuracy=accuracy)
        tm.progress(steps, steps, epoch=options.epochs, loss=loss, accuracy=accuracy)
        write_result(context.output_dir, accuracy=accuracy, steps=steps, resumed_at=first, world=world)
        print(f"test accuracy {accuracy:.4f}", flush=True)
    dist.barrier()  # nobody leaves while rank 0 still writes


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n × 1 × 8 × 8) and labels (n)."""
    if not file.exists():
        sys.exit(f"{file} is missing: give the job `input: data/digits`, made by examples/data/make_digits.py.")
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["images"]).unsqueeze(1), torch.from_numpy(arrays["labels"])


def choose(count: int, step: int, per_epoch: int, rank: int, world: int, seed: int) -> torch.Tensor:
    """The images of ``rank`` in ``step`` (counted from 0). A function of its arguments alone, so a resumed training
    sees the same data in the same order as one that was never stopped.
    """
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    begin = (place * world + rank) * BATCH
    return order[begin : begin + BATCH]


def evaluate(network: nn.Module, file: Path) -> float:
    """The share of the test images that are read right."""
    images, labels = load(file)
    network.eval()
    with torch.no_grad():
        right = (network(images).argmax(dim=1) == labels).float().mean()
    network.train()
    return float(right)


def save(network: nn.Module, optimizer: torch.optim.Optimizer, step: int, **metrics: float) -> None:
    tm.save_checkpoint({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, step, metrics)


def write_result(folder: Path, **result: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".result.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(folder / "result.json")


if __name__ == "__main__":
    main()
