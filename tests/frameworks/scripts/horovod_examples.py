"""Scripts as Horovod's own examples for TensorFlow 2 have them, on tiny data; only the import differs.

``keras``: fit with callbacks, several backward passes, a checkpoint that is loaded again. ``tape``: a loop with
DistributedGradientTape. Both tell what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import trainmaster_train.horovod.tensorflow.keras as hvd

OUTPUT = Path(os.environ["TRAINMASTER_OUTPUT_DIR"])


def data(rank):
    chance = np.random.default_rng(rank)
    x = chance.normal(size=(64, 4)).astype("float32")
    return x, x.sum(1, keepdims=True) + 1.0


def model():
    return tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(1)])


def weights(net):
    return [round(float(value), 4) for array in net.get_weights() for value in array.ravel()]


def train_with_keras():
    rank = hvd.rank()
    tf.random.set_seed(rank)
    rate = 0.01 * hvd.size()
    net = model()
    optimizer = hvd.DistributedOptimizer(
        tf.optimizers.Adam(rate), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    net.compile(loss="mse", optimizer=optimizer, metrics=["mae"], jit_compile=False)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=rate, multiplier=0.5, start_epoch=2),
    ]
    if rank == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(str(OUTPUT / "checkpoint.keras")))
    x, y = data(rank)
    story = net.fit(x, y, batch_size=8, epochs=3, callbacks=callbacks, verbose=0)
    hvd.barrier()
    again = hvd.load_model(str(OUTPUT / "checkpoint.keras"))
    retained = weights(again) == weights(net)
    again.compile(loss="mse", optimizer=again.optimizer, jit_compile=False)
    again.fit(x, y, batch_size=16, epochs=1, verbose=0)
    return {
        "loss": story.history["loss"],
        "weights": weights(net),
        "rate": float(net.optimizer.learning_rate.numpy()),
        "steps": int(net.optimizer.iterations.numpy()),
        "kept": retained,
        "again": weights(again),
    }


def train_with_a_tape():
    rank = hvd.rank()
    tf.random.set_seed(rank)
    net = model()
    loss = tf.losses.MeanSquaredError()
    optimizer = tf.optimizers.Adam(0.01 * hvd.size())
    x, y = data(rank)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(64).batch(8)

    @tf.function
    def training_step(inputs, labels, first_batch):
        with tf.GradientTape() as tape:
            value = loss(labels, net(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
        gradients = tape.gradient(value, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=False))
        if first_batch:
            found = optimizer.variables
            hvd.broadcast_variables(net.variables, root_rank=0)
            hvd.broadcast_variables(found() if callable(found) else found, root_rank=0)
        return value

    losses = [float(training_step(i, t, number == 0)) for number, (i, t) in enumerate(dataset.take(40 // hvd.size()))]
    return {"loss": losses, "weights": weights(net)}


def main():
    hvd.init()
    results = {"keras": train_with_keras, "tape": train_with_a_tape}[sys.argv[1]]()
    all_results = hvd.allgather_object(results)
    if hvd.rank() == 0:
        (OUTPUT / "result.json").write_text(json.dumps({"ranks": all_results}))


if __name__ == "__main__":
    main()
