"""Trains on the digits with TensorFlow's ParameterServerStrategy: asynchronous, one chief, any number of workers and
ps.

One script for all roles; TF_CONFIG says which one this process has. ``--loop fit`` trains with Keras, ``--loop
coordinator`` with a loop of one's own. An evaluator, if the job has one, looks at every checkpoint beside the training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

# Keras 3 cannot `fit` with parameter servers, Keras 2 (the package tf_keras) can. Before TensorFlow is imported.
if importlib.util.find_spec("tf_keras"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

DATA = Path(os.environ.get("TRAINMASTER_DATA_DIR", "data"))
OUTPUT = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
BATCH = 64  # images of one step of one worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=("fit", "coordinator"), default="fit")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epoch-seconds", type=float, default=0.0, help="rest after each epoch, to have time to watch")
    options = parser.parse_args()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in ("worker", "ps"):
        # Serves for ever: the platform ends it when the chief is done.
        tf.distribute.Server(
            cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id, protocol="grpc"
        ).join()
    elif cluster.task_type == "evaluator":
        evaluate_during_training(options)
    elif options.loop == "fit":
        fit(cluster, options)
    else:
        coordinate(cluster, options)


def fit(cluster: Any, options: argparse.Namespace) -> None:
    """The chief, with Keras."""
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    with strategy.scope():
        model = make_model(options)
    steps = steps_per_epoch()
    creator = tf.keras.utils.experimental.DatasetCreator(batches)

    def report(epoch: int, logs: dict[str, Any] | None) -> None:
        report_progress(epoch + 1, options, steps, (logs or {})["loss"])

    model.fit(
        creator,
        epochs=options.epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[
            tf.keras.callbacks.BackupAndRestore(str(OUTPUT / "backup")),
            tf.keras.callbacks.ModelCheckpoint(str(OUTPUT / "checkpoints" / "ckpt-{epoch}"), save_weights_only=True),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=report),
        ],
    )
    finish(model, options)


def coordinate(cluster: Any, options: argparse.Namespace) -> None:
    """The chief, with a loop of its own: it schedules steps, and whichever worker is free runs them."""
    strategy = tf.distribute.ParameterServerStrategy(
        cluster, variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model(options)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)

    @tf.function
    def step(iterator: Any) -> Any:
        def train(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(loss_of(labels, model(images, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train, args=next(iterator)), axis=None)

    data = coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(batches))
    iterator = iter(data)
    steps = steps_per_epoch()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=tf.Variable(0))
    manager = tf.train.CheckpointManager(checkpoint, str(OUTPUT / "checkpoints"), max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    for epoch in range(int(checkpoint.epoch.numpy()), options.epochs):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
        coordinator.join()  # a worker that dies meanwhile has its steps done by the others
        checkpoint.epoch.assign(epoch + 1)
        manager.save()
        report_progress(epoch + 1, options, steps, float(losses[-1].fetch()))
    finish(model, options)


def evaluate_during_training(options: argparse.Namespace) -> None:
    """The evaluator: waits for ever for the chief's next checkpoint, and the platform ends it after the chief."""
    model = make_model(options)
    model.build((None, 8, 8))
    evaluated = None
    while True:
        newest = tf.train.latest_checkpoint(str(OUTPUT / "checkpoints"))
        if newest is not None and newest != evaluated:
            evaluated = newest
            if options.loop == "fit":
                model.load_weights(newest).expect_partial()
            else:
                tf.train.Checkpoint(model=model).restore(newest).expect_partial()
            loss, accuracy = model.evaluate(*load("test"), batch_size=360, verbose=0)
            print(f"evaluated {Path(newest).name}: loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        time.sleep(0.5)


def make_model(options: argparse.Namespace) -> Any:
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
    return model


def batches(context: Any = None) -> Any:
    """What one worker reads: all images, in an order of its own, again and again."""
    images, labels = load("train")
    seed = 7 if context is None else 7 + context.input_pipeline_id
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data.shuffle(len(labels), seed=seed).repeat().batch(BATCH).prefetch(2)


def steps_per_epoch() -> int:
    return len(load("train")[1]) // BATCH


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n × 8 × 8) and labels (n)."""
    with np.load(DATA / f"{name}.npz") as arrays:
        return arrays["images"], arrays["labels"]


def report_progress(epoch: int, options: argparse.Namespace, steps: int, loss: float) -> None:
    """Print how far the training is, tell the platform, and rest."""
    print(f"epoch {epoch}/{options.epochs}: loss {loss:.4f}", flush=True)
    if "TRAINMASTER_REPORT_FILE" in os.environ:
        fact = {"step": epoch * steps, "steps": options.epochs * steps, "metrics": {"loss": loss}}
        with Path(os.environ["TRAINMASTER_REPORT_FILE"]).open("a") as report:
            report.write(json.dumps({"kind": "progress", **fact}) + "\n")
    time.sleep(options.epoch_seconds)


def finish(trained: Any, options: argparse.Namespace) -> None:
    """Test and save the model as one of this process alone: what lies on the ps goes away with them."""
    model = make_model(options)
    model.build((None, 8, 8))
    model.set_weights(trained.get_weights())
    accuracy = float(model.evaluate(*load("test"), batch_size=360, verbose=0)[1])
    model.save(OUTPUT / "model.keras")
    (OUTPUT / "result.json").write_text(json.dumps({"accuracy": accuracy}))
    print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    OUTPUT.mkdir(parents=True, exist_ok=True)
    main()
