"""Trains on the digits with parameter servers. The same script runs in every replica; its role says what it does.

Any number of ps (at least 1) and workers, as TRAINMASTER_LAYOUT or TF_CONFIG lists them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import trainmaster_train as tm
from torch import nn
from trainmaster_train import ps


def main() -> None:
    options = arguments()
    context = tm.current()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=options.momentum)

    def train(servers: ps.Servers) -> dict[str, float]:
        images, labels = load(context.data_dir / "train.npz")
        batches = np.random.default_rng([options.seed, servers.worker, context.attempt, servers.version])
        loss = torch.zeros(())
        for step in servers.steps(until=options.updates):
            batch = torch.from_numpy(batches.choice(len(labels), options.batch, replace=False))
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            loss.backward()
            servers.step(loss=loss)
            if servers.own_steps % 100 == 0:
                print(f"update {step}/{options.updates}  loss {loss.item():.4f}  ({servers.staleness})", flush=True)
            time.sleep(options.step_seconds)
        if not servers.is_chief:
            return {}
        servers.pull()
        accuracy = evaluate()["accuracy"]
        print(f"test accuracy {accuracy:.4f}", flush=True)
        result = {"accuracy": accuracy, "updates": servers.version, "own_steps": servers.own_steps}
        write_result(context.output_dir, result)
        return {"loss": loss.item(), "accuracy": accuracy}

    def evaluate() -> dict[str, float]:
        """The share of the test images that are read right."""
        images, labels = load(context.data_dir / "test.npz")
        with torch.no_grad():
            return {"accuracy": float((network(images).argmax(dim=1) == labels).float().mean())}

    is_async = options.mode == "async"
    ps.run(
        network,
        optimizer,
        train,
        evaluate=evaluate,
        options=ps.Options(
            mode=options.mode,
            backup_workers=options.backup_workers,
            wire=options.wire,
            max_staleness=options.max_staleness if is_async else None,
            scale_by_staleness=is_async,
            checkpoint_every=options.checkpoint_every,
        ),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500, help="gradients applied in all, of all workers")
    parser.add_argument("--batch", type=int, default=64)
    # At 0.02 a worker that joins late in the training, whose gradients are then one to three updates old, made the loss
    # of the momentum's steps rise again in 8 of 100 simulated runs; at 0.01 in none.
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--mode", choices=["async", "sync"], default="async")
    parser.add_argument("--backup-workers", type=int, default=0, help="sync: gradients that a step does not wait for")
    parser.add_argument("--wire", choices=["full", "bf16", "fp16", "topk"], default="full")
    parser.add_argument("--max-staleness", type=int, default=64, help="async: a gradient that is staler is dropped")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="UPDATES")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a worker rests this long after each step")
    return parser.parse_args()


def make_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def load(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n × 8 × 8) and labels (n)."""
    if not file.exists():
        sys.exit(f"{file} is missing: give the job `input: data/digits`, made by examples/data/make_digits.py.")
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])


def write_result(folder: Path, result: dict[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".result.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(folder / "result.json")


if __name__ == "__main__":
    main()
