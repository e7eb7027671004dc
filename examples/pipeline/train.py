"""Trains a network on the digits that is cut into stages, one for each process: pipeline parallelism (PipeDream's
1F1B).

Each process holds only its stage. A batch is cut into microbatches; while a later stage works on one, the earlier
stages work on those behind it, and torch's schedule "one forward, one backward" keeps few of them in memory. Started by
the platform, torchrun or any launcher that sets ranks; by hand it is one stage:

    python train.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trainmaster_train as tm
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from trainmaster_train import distributed, steps

BATCH = 64  # images of one step
MICROBATCHES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()
    context = tm.current()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    images, labels = load(context.data_dir / "train.npz")
    world = distributed.init()
    print(f"stage {world.rank} of {world.size}, as {world.contract} says.", flush=True)
    try:
        train(world, options, images, labels)
        distributed.shutdown()
    except Exception:  # noqa: BLE001 (whatever it was, this process must end now)
        # A neighbour that left lets gloo's threads hang: an orderly end could wait for ever.
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def train(world: distributed.RankInfo, options: argparse.Namespace, images: torch.Tensor, labels: torch.Tensor) -> None:
    torch.manual_seed(options.seed)
    layers = make_layers()
    if world.size > len(layers):
        sys.exit(f"{world.size} stages want at least as many layers, and there are {len(layers)}: use fewer workers.")
    module = cut(layers, world.rank, world.size)
    stage = PipelineStage(module, world.rank, world.size, world.device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.Adam(module.parameters(), lr=options.lr)
    per_epoch = len(labels) // BATCH
    total = per_epoch * options.epochs

    first = resume(module, optimizer, world.rank)
    if first and world.rank == 0:
        print(f"resuming: {first} of {total} steps are done.", flush=True)
    losses: list[torch.Tensor] = []
    saver = tm.Saver(sharded=True)  # each stage writes its own part
    for step in range(first + 1, total + 1):
        batch = choose(len(labels), step - 1, per_epoch, options.seed)
        with steps.timer().step():
            optimizer.zero_grad()
            losses = run(schedule, world, images[batch], labels[batch])
            optimizer.step()
        if world.rank == world.size - 1 and step % 10 == 0:
            tm.progress(step, total, epoch=step // per_epoch, loss=mean(losses))
        if world.rank == world.size - 1 and step % per_epoch == 0:
            print(f"epoch {step // per_epoch:3d}  step {step:4d}/{total}  loss {mean(losses):.4f}", flush=True)
        if step % options.checkpoint_every == 0 and step < total:
            saver.save(state_of(module, optimizer, world.rank), step)

    accuracy = evaluate(schedule, world, tm.current().data_dir / "test.npz")
    saver.save(state_of(module, optimizer, world.rank), total, {"accuracy": accuracy})
    saver.close()
    if world.rank == 0:
        tm.progress(total, total, epoch=options.epochs, accuracy=accuracy)
        write_result(tm.current().output_dir, accuracy=accuracy, steps=total, resumed_at=first, stages=world.size)
        print(f"test accuracy {accuracy:.4f}", flush=True)


def make_layers() -> list[nn.Module]:
    return [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, 64)),
        nn.Sequential(nn.ReLU(), nn.Linear(64, 10)),
    ]


def cut(layers: list[nn.Module], rank: int, stages: int) -> nn.Module:
    """The layers of one stage: neighbours, as many in each stage as in any other, or one less."""
    begin, end = (len(layers) * number // stages for number in (rank, rank + 1))
    return nn.Sequential(*layers[begin:end])


def run(
    schedule: Schedule1F1B, world: distributed.RankInfo, images: torch.Tensor, labels: torch.Tensor
) -> list[torch.Tensor]:
    """One batch, forwards and backwards. Only the first stage needs the images, only the last one the labels."""
    losses: list[torch.Tensor] = []
    inputs = (images,) if world.rank == 0 else ()
    if world.rank == world.size - 1:
        schedule.step(*inputs, target=labels, losses=losses)
    else:
        schedule.step(*inputs)
    return losses


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> dict[str, Any]:
    """The state of one stage under a name of its own."""
    return {f"stage-{rank}": {"model": module.state_dict(), "optimizer": optimizer.state_dict()}}


def resume(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> int:
    """Go on from the newest checkpoint; the steps that are done."""
    # Adam has no state before its first step, and what is not there cannot be read into.
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    fresh = state_of(module, optimizer, rank)
    found = tm.resume(into=fresh)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    if found is None:
        optimizer.state.clear()
        return 0
    state = fresh[f"stage-{rank}"]
    tm.load_state(module, state["model"], source=found)
    tm.load_state(optimizer, state["optimizer"], source=found)
    return found.step


def evaluate(schedule: Schedule1F1B, world: distributed.RankInfo, file: Path) -> float:
    """The share of the test images that are read right, known to every stage."""
    images, labels = load(file)
    right = torch.zeros(1)
    for begin in range(0, len(labels), BATCH):
        part, wanted = images[begin : begin + BATCH], labels[begin : begin + BATCH]
        # The stages have agreed on the shape of a batch.
        full, marks = torch.zeros(BATCH, *part.shape[1:]), torch.zeros(BATCH, dtype=torch.long)
        full[: len(part)] = part
        inputs = (full,) if world.rank == 0 else ()
        output = schedule.eval(*inputs, target=marks) if world.rank == world.size - 1 else schedule.eval(*inputs)
        if world.rank == world.size - 1:
            right += (output[: len(part)].argmax(dim=1) == wanted).sum()
    torch.distributed.broadcast(right, src=world.size - 1)
    return float(right) / len(labels)


def load(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n × 1 × 8 × 8) and labels (n)."""
    if not file.exists():
        sys.exit(f"{file} is missing: give the job `input: data/digits`, made by examples/data/make_digits.py.")
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["images"]).unsqueeze(1), torch.from_numpy(arrays["labels"])


def choose(count: int, step: int, per_epoch: int, seed: int) -> torch.Tensor:
    """The images of ``step`` (counted from 0): a function of its arguments alone, so a resumed training sees
    the same.
    """
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    return order[place * BATCH : (place + 1) * BATCH]


def mean(losses: list[torch.Tensor]) -> float:
    return float(torch.stack(losses).detach().mean())


def write_result(folder: Path, **result: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".result.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(folder / "result.json")


if __name__ == "__main__":
    main()
