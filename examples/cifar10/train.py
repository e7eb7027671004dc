"""Trains on CIFAR-10 as UAI Train's example does: called with its five arguments, alone or on several nodes.

The input holds the standard binary files (``data_batch_*.bin`` and ``test_batch.bin``), at its top or in a folder
``cifar-10-batches-bin``. One process per GPU, or one on the CPUs; DistributedDataParallel makes them one training.
By hand:

    python train.py --work_dir=. --data_dir=data --output_dir=output --log_dir=output --num_gpus=0
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import trainmaster_train as tm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes: the label, then the red, green and blue planes


@dataclass(frozen=True)
class Pictures:
    """``images``: n × 3 × 32 × 32 bytes; ``labels``: n."""

    images: torch.Tensor
    labels: torch.Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=128, help="images of one step, over all processes")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=7)
    uai = parser.add_argument_group("what UAI Train puts behind the command")
    uai.add_argument("--work_dir", type=Path, default=Path())
    uai.add_argument("--data_dir", type=Path, default=Path("data"))
    uai.add_argument("--output_dir", type=Path, default=Path("output"))
    uai.add_argument("--log_dir", type=Path, default=Path("output"))
    uai.add_argument("--num_gpus", type=int, default=0, help="of this node; 0 trains on its CPUs")
    options = parser.parse_args()
    if options.num_gpus > 1:
        torch.multiprocessing.spawn(run, args=(options,), nprocs=options.num_gpus)
    else:
        run(0, options)


def run(local_rank: int, options: argparse.Namespace) -> None:
    """One process of the training. In this mode ``RANK`` is the node's number and ``WORKER_NUM`` counts the nodes."""
    per_node = max(1, options.num_gpus)
    rank = int(os.environ.get("RANK", "0")) * per_node + local_rank
    world = int(os.environ.get("WORKER_NUM", "1")) * per_node
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)  # the same first weights everywhere
    device = torch.device("cuda", local_rank) if options.num_gpus else torch.device("cpu")
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("nccl" if options.num_gpus else "gloo", rank=rank, world_size=world)
    else:  # by hand
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    try:
        train(options, device)
    finally:
        # The model is gone by now: one that is freed after the process group may hang.
        dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint to the last epoch, and test."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pictures = read_all(sorted(folder_of(options.data_dir).glob("data_batch_*.bin")))
    count = len(pictures.labels)
    share = max(1, options.batch_size // world)
    steps = count // (share * world)
    if steps == 0:
        sys.exit(f"--batch_size: {options.batch_size} is more than the {count} images that there are; choose less.")
    network = make_network().to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.epochs * steps)
    first = 0
    found = tm.latest(options.output_dir / "checkpoints")
    if found is not None:
        checkpoint = tm.load_checkpoint(found, map_location=device)
        for part, name in ((network, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(checkpoint.state[name])
        first = checkpoint.state["epoch"]
        print(f"rank {rank} goes on from {found.name}: {first} of {options.epochs} epochs are done.", flush=True)

    for epoch in range(first, options.epochs):
        began_s = time.monotonic()
        # The order is a function of seed and epoch alone, so a resumed training sees the same data.
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        loss = torch.zeros(())
        for step in range(steps):
            begin = (step * world + rank) * share
            chosen = order[begin : begin + share]
            images = prepared(pictures.images[chosen], device)
            if (epoch + step) % 2:  # a horse that looks the other way is a horse
                images = images.flip(3)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), pictures.labels[chosen].to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
        if rank == 0:
            done = (epoch + 1) * steps
            metrics = {
                "epoch": epoch + 1,
                "loss": loss.item(),
                "images_per_s": steps * share * world / (time.monotonic() - began_s),
            }
            tm.progress(done, options.epochs * steps, **metrics)
            write_log(options.log_dir, metrics)
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"schedule": schedule.state_dict(), "epoch": epoch + 1}
            tm.save_checkpoint(state, done, {"loss": metrics["loss"]}, directory=options.output_dir / "checkpoints")

    if rank == 0:
        accuracy = test(network, read_all([folder_of(options.data_dir) / "test_batch.bin"]), device)
        result = {"accuracy": accuracy, "images": count, "world": world, "first_epoch": first}
        (options.output_dir / "result.json").write_text(json.dumps(result))
        print(f"test accuracy {accuracy:.4f}", flush=True)
    dist.barrier()  # nobody leaves while rank 0 still writes


def folder_of(data_dir: Path) -> Path:
    inner = data_dir / "cifar-10-batches-bin"
    return inner if inner.is_dir() else data_dir


def read_all(files: list[Path]) -> Pictures:
    """The records of all ``files``; ends with a sentence where one is not what it should be."""
    if not files:
        sys.exit(
            "--data_dir: no data_batch_*.bin in it; give the job the folder with CIFAR-10's binary files as input."
        )
    parts = []
    for file in files:
        if not file.exists():
            sys.exit(f"{file} is missing: it belongs to CIFAR-10's binary version.")
        data = np.fromfile(file, dtype=np.uint8)
        if len(data) == 0 or len(data) % RECORD:
            sys.exit(
                f"{file}: {len(data)} bytes are no whole number of records of {RECORD}; take the *binary* version."
            )
        parts.append(data.reshape(-1, RECORD))
    records = torch.from_numpy(np.concatenate(parts))
    labels = records[:, 0].long()
    if int(labels.max()) >= CLASSES:
        sys.exit(
            f"--data_dir: label {int(labels.max())} is none of CIFAR-10's 0 to 9; these may be files of CIFAR-100."
        )
    return Pictures(records[:, 1:].reshape(-1, 3, SIDE, SIDE), labels)


def prepared(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Bytes as numbers of mean 0 and deviation 1, each image by itself."""
    scaled = images.to(device).float()
    mean = scaled.mean(dim=(1, 2, 3), keepdim=True)
    deviation = scaled.std(dim=(1, 2, 3), keepdim=True)
    return (scaled - mean) / deviation.clamp(min=1.0)


def make_network() -> nn.Module:
    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(3, 32),
        *block(32, 64),
        *block(64, 128),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, CLASSES),
    )


def test(network: nn.Module, pictures: Pictures, device: torch.device) -> float:
    """The share of the pictures that are named right."""
    network.eval()
    right = 0
    with torch.no_grad():
        for images, labels in zip(pictures.images.split(500), pictures.labels.split(500), strict=True):
            right += int((network(prepared(images, device)).argmax(dim=1).cpu() == labels).sum())
    return right / len(pictures.labels)


def write_log(folder: Path, metrics: dict[str, float]) -> None:
    """One JSON line for each epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("a") as log:
        log.write(json.dumps(metrics) + "\n")
    print(" ".join(f"{name} {value:.4g}" for name, value in metrics.items()), flush=True)


if __name__ == "__main__":
    main()
