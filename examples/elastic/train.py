"""Trains a small network on the digits with as many workers as there are: one that dies is missed for a moment only.

The same as ``examples/allreduce``, in a gang whose size changes while it trains. Started by hand it trains alone:

    python train.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import trainmaster_train as tm
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainmaster_train import elastic

BATCH = 120  # images of all processes together in one step: what is learned does not depend on how many there are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="rest after each step, to have time to watch")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    # All that the training goes on from. A restart of the whole gang begins with the newest checkpoint.
    state = elastic.State(model=model, optimizer=optimizer, step=0)
    resume = tm.latest()
    if resume is not None:
        checkpoint = tm.load_checkpoint(resume)
        model.load_state_dict(checkpoint.state["model"])
        optimizer.load_state_dict(checkpoint.state["optimizer"])
        state.step = checkpoint.step
    train(state, options)


@elastic.run
def train(state: elastic.State, options: argparse.Namespace) -> None:
    """Called anew for each world; everything that belongs to one world is made in here."""
    rank, size = dist.get_rank(), dist.get_world_size()
    output = tm.current().output_dir
    images, labels = load(tm.current().data_dir / "train.npz")
    ddp = DistributedDataParallel(state.model)
    while state.step < options.steps:
        batch = choose(len(labels), state.step, options.seed).chunk(size)[rank]
        state.optimizer.zero_grad()
        # The mean over all images of the step, however unevenly they are dealt out (DDP divides by the number of
        # ranks).
        loss = nn.functional.cross_entropy(ddp(images[batch]), labels[batch], reduction="sum") * size / BATCH
        loss.backward()  # allreduce happens in here
        state.optimizer.step()
        state.step += 1
        if rank == 0:
            note(output / "steps.jsonl", step=state.step, world=elastic.world().number, size=size, pid=os.getpid())
            if state.step % 10 == 0:
                tm.progress(state.step, options.steps, loss=loss)
            if state.step % 60 == 0:
                save(state, loss=loss.item())
        if options.step_seconds:
            time.sleep(options.step_seconds)
        state.commit()
    if rank == 0:
        accuracy = evaluate(state.model, tm.current().data_dir / "test.npz")
        (output / "result.json").write_text(
            json.dumps({"accuracy": accuracy, "steps": state.step, "size": size}) + "\n"
        )
        tm.progress(state.step, options.steps, accuracy=accuracy)
        print(f"test accuracy {accuracy:.4f} with {size} workers at the end", flush=True)


def load(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n × 8 × 8) and labels (n)."""
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])


def choose(count: int, step: int, seed: int) -> torch.Tensor:
    """The images of one step: a function of its number alone, whoever is there to share them."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + step))[:BATCH]


def evaluate(model: nn.Module, file: Path) -> float:
    """The share of the test images that are read right."""
    images, labels = load(file)
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def save(state: elastic.State, **metrics: float) -> None:
    checkpoint = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
    tm.save_checkpoint(checkpoint, state.step, metrics)


def note(file: Path, **facts: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        stream.write(json.dumps({**facts, "at": time.time()}) + "\n")


if __name__ == "__main__":
    main()
