"""Keras' elastic example of Horovod on tiny data: it trains until a file says that it is enough, over all its gangs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import tensorflow as tf
import trainmaster_train.horovod.tensorflow.keras as hvd

OUTPUT = Path(os.environ["TRAINMASTER_OUTPUT_DIR"])

hvd.init()
x = np.random.default_rng(hvd.rank()).normal(size=(32, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).repeat().batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.optimizers.SGD(0.001 * hvd.size()))
model.compile(loss="mse", optimizer=optimizer, jit_compile=False)
model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)


def on_state_reset():
    state.model.optimizer.learning_rate.assign(0.001 * hvd.size())
    state.model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)


state.register_reset_callbacks([on_state_reset])


class Tell(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        line = f"{state.epoch} {os.environ['TRAINMASTER_INDEX']} {hvd.rank()} {hvd.size()} {os.getpid()}"
        with (OUTPUT / "epochs").open("a") as stream:
            print(line, file=stream)
        done = hvd.allreduce(tf.constant([int((OUTPUT / "done").exists())]), op=hvd.Max)
        self.model.stop_training = bool(done[0])


@hvd.elastic.run
def train(state):
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        Tell(),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    state.model.fit(dataset, steps_per_epoch=4, epochs=100_000, callbacks=callbacks, verbose=0)


train(state)
final = np.concatenate([array.ravel() for array in model.get_weights()])
gathered = hvd.allgather(tf.constant(final[None]))
assert np.array_equal(gathered[0], gathered[-1]), "the ranks have different weights"
