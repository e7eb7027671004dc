"""Trains on the digits with TensorFlow's MultiWorkerMirroredStrategy and Keras' ``fit``: allreduce over all workers.

TensorFlow reads TF_CONFIG by itself; started by hand, without it, one worker trains alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

# Keras 3 cannot `fit` over several workers, Keras 2 (the package tf_keras) can. Before TensorFlow is imported.
if importlib.util.find_spec("tf_keras"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

DATA = Path(os.environ.get("TRAINMASTER_DATA_DIR", "data"))
OUTPUT = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
BATCH = 64  # images of one step, over all workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epoch-seconds", type=float, default=0.0, help="rest after each epoch, to have time to watch")
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    is_chief = strategy.cluster_resolver.task_id in (None, 0)
    world = strategy.num_replicas_in_sync
    images, labels = load("train")
    steps = len(labels) // BATCH
    # Every worker reads all images; TensorFlow gives each its share of every batch.
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=7).repeat().batch(BATCH)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Flatten(input_shape=(8, 8)),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(options.lr),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    started: list[int] = []  # the epoch that this attempt began with

    def report(epoch: int, logs: dict[str, Any] | None) -> None:
        started.append(epoch)
        print(f"epoch {epoch + 1}/{options.epochs} of {world} workers: {logs}", flush=True)
        if is_chief:
            progress((epoch + 1) * steps, options.epochs * steps, {"loss": (logs or {})["loss"]})
        time.sleep(options.epoch_seconds)

    model.fit(
        data.with_options(sharding),
        epochs=options.epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[
            # A gang that is started again goes on with the epoch after the last whole one.
            tf.keras.callbacks.BackupAndRestore(str(OUTPUT / "backup")),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=report),
        ],
    )
    accuracy = float(model.evaluate(*load("test"), batch_size=360, verbose=0)[1])
    # All workers have to save, for it is an operation of the whole gang; the chief's file is the one to keep.
    with tempfile.TemporaryDirectory() as scratch:
        model.save((OUTPUT if is_chief else Path(scratch)) / "model.keras")
    if is_chief:
        result = {"accuracy": accuracy, "world": world, "first_epoch": started[0] if started else options.epochs}
        (OUTPUT / "result.json").write_text(json.dumps(result))
        print(f"test accuracy {accuracy:.4f}", flush=True)


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n × 8 × 8) and labels (n)."""
    with np.load(DATA / f"{name}.npz") as arrays:
        return arrays["images"], arrays["labels"]


def progress(step: int, steps: int, metrics: dict[str, float]) -> None:
    """Tell the platform, where there is one."""
    if "TRAINMASTER_REPORT_FILE" in os.environ:
        with Path(os.environ["TRAINMASTER_REPORT_FILE"]).open("a") as report:
            report.write(json.dumps({"kind": "progress", "step": step, "steps": steps, "metrics": metrics}) + "\n")


if __name__ == "__main__":
    OUTPUT.mkdir(parents=True, exist_ok=True)
    main()
