"""Trains a small convolutional network on the digits, as scripts for Horovod do.

From such a script this one differs by the line that imports ``hvd``, and by nothing else:

    python train.py                             # alone
    torchrun --nproc-per-node 2 train.py        # two processes of this machine
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import trainmaster_train.horovod.torch as hvd  # was: import horovod.torch as hvd
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as half precision")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(7)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    data, output = folders()
    train_set, test_set = load(data / "train.npz"), load(data / "test.npz")
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=7, drop_last=True
    )
    loader = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)

    model = make_network().to(device)
    # As many ranks make a batch as many times larger: the rate grows with it.
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr * hvd.size())
    first = resume(output, model, optimizer) if hvd.rank() == 0 else 0
    first = int(hvd.broadcast(torch.tensor(first), root_rank=0, name="first epoch").item())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)

    accuracy = 0.0
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        model.train()
        loss = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        mean_loss = hvd.allreduce(loss.detach(), name="loss").item()
        accuracy = evaluate(model, test_set, device)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:3d}  loss {mean_loss:.4f}  accuracy {accuracy:.4f}", flush=True)
            save(output, model, optimizer, epoch + 1)
    if hvd.rank() == 0:
        result = {"accuracy": accuracy, "world": hvd.size(), "resumed_at": first}
        (output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"test accuracy {accuracy:.4f}", flush=True)


def folders() -> tuple[Path, Path]:
    """Input and output: the platform's, or those of this folder."""
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)
    return Path(os.environ.get("TRAINMASTER_DATA_DIR", "data")), output


def load(file: Path) -> TensorDataset:
    if not file.exists():
        sys.exit(f"{file} is missing: give the job `input: data/digits`, made by examples/data/make_digits.py.")
    with np.load(file) as arrays:
        return TensorDataset(torch.from_numpy(arrays["images"]).unsqueeze(1), torch.from_numpy(arrays["labels"]))


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


def evaluate(model: nn.Module, test_set: TensorDataset, device: torch.device) -> float:
    """The share of the test images that are read right: each rank counts its part, allreduce adds up."""
    images, labels = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in test_set.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum()
    counts = torch.stack([right.cpu(), torch.tensor(len(labels))])
    right_of_all, all_images = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").tolist()
    return float(right_of_all / all_images)


def save(output: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    partial = output / "state.pt.partial"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, partial)
    partial.replace(output / "state.pt")


def resume(output: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """How many epochs are done, after what an earlier attempt left was read."""
    if not (output / "state.pt").exists():
        return 0
    state = torch.load(output / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


if __name__ == "__main__":
    main()
