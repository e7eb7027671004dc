"""Everything of Horovod's API for TensorFlow once, then a model trained by a tape and by Keras; reported as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
import trainmaster_train.horovod.tensorflow as hvd
import trainmaster_train.horovod.tensorflow.keras as hvd_keras

keras = tf.keras


def main():
    hvd.init()
    rank = hvd.rank()
    results = {"operations": operations(rank), "tape": tape(rank), "fit": fit(rank), "sets": sets(rank)}
    results["joined"] = hvd.join() in (0, 1)
    all_results = hvd.allgather_object(results)
    if rank == 0:
        Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "result.json").write_text(json.dumps({"ranks": all_results}))


def operations(rank):
    slices = hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]) * (rank + 1), tf.constant([rank]), tf.constant([3, 2])))
    rows, counts = hvd.alltoall(tf.range(3) + 10 * rank, splits=[1, 2])
    return {
        "sum": hvd.allreduce(tf.constant([1.0, 2.0]) * (rank + 1), op=hvd.Sum).numpy().tolist(),
        "average": hvd.allreduce(tf.constant(1.0 + rank)).numpy().tolist(),
        "max": hvd.allreduce(tf.constant([rank]), op=hvd.Max).numpy().tolist(),
        "half": hvd.allreduce(tf.constant([1.5]) * (rank + 1), compression=hvd.Compression.fp16).numpy().tolist(),
        "bfloat16": tf.cast(hvd.allreduce(tf.cast([1.0 + rank], tf.bfloat16)), tf.float32).numpy().tolist(),
        "grouped": [t.numpy().tolist() for t in hvd.grouped_allreduce([tf.ones(2) * rank, tf.constant(4.0)])],
        "gathered": hvd.allgather(tf.fill([rank + 1, 2], rank)).numpy().tolist(),
        "broadcast": hvd.broadcast(tf.constant([rank]), 1).numpy().tolist(),
        "object": hvd.broadcast_object({"from": rank}, 1),
        "alltoall": [rows.numpy().tolist(), counts.numpy().tolist()],
        "slices": tf.convert_to_tensor(slices).numpy().tolist(),
        "grouped gathered": [t.numpy().tolist() for t in hvd.grouped_allgather([[rank], [1.0, 2.0 + rank]])],
        # Orthogonal ones are added, equal ones are taken once.
        "adasum": [
            hvd.allreduce(tf.one_hot(rank, 2), op=hvd.Adasum).numpy().tolist(),
            hvd.allreduce(tf.constant([2.0, 4.0]), op=hvd.Adasum).numpy().tolist(),
        ],
        "refused": [
            refused(hvd.allreduce, tf.constant([1]), op=hvd.Adasum),
            refused(hvd.broadcast, tf.constant([1]), 2),
            refused(getattr, hvd, "broadcast_global_variables"),
        ],
    }


def sets(rank):
    """What each rank of its own has: rows of a reducescatter, and a process set of one."""
    alone = hvd.add_process_set([1])
    results = {
        "scattered": hvd.reducescatter(tf.ones([3, 1]) * (rank + 1.0), op=hvd.Sum).numpy().tolist(),
        "set": [alone.included(), alone.rank(), alone.size()],
        "in set": hvd.allreduce(tf.constant([5.0]), op=hvd.Sum, process_set=alone).numpy().tolist() if rank else None,
        "not in set": None if rank else refused(hvd.allreduce, tf.constant([1.0]), process_set=alone),
    }
    hvd.remove_process_set(alone)
    return results


def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except (ValueError, AttributeError) as error:
        return str(error)
    return None


def tape(rank):
    weight = tf.Variable([[1.0], [float(rank)]])
    hvd.broadcast_variables([weight], root_rank=0)

    @tf.function
    def step(x, y):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((tf.matmul(x, weight) - y) ** 2)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(0.1 * gradient)

    for _ in range(3):
        step(tf.constant([[1.0, rank + 1.0]]), tf.constant([[2.0]]))
    return np.round(weight.numpy().astype(float), 4).tolist()


def fit(rank):
    tf.random.set_seed(rank)
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.04))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    chance = np.random.default_rng(rank)
    x = chance.normal(size=(64, 3)).astype("float32")
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2),
    ]
    story = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
    weights = [round(float(value), 4) for array in model.get_weights() for value in array.ravel()]
    return {"loss": story.history["loss"], "weights": weights, "rate": float(optimizer.learning_rate.numpy())}


if __name__ == "__main__":
    main()
