"""MultiWorkerMirroredStrategy with a loop of its own, around a model of whatever Keras is installed."""

import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.05)

rng = np.random.default_rng(7 + strategy.cluster_resolver.task_id)
images = rng.normal(size=(64, 4)).astype("float32")
labels = images.sum(axis=1, keepdims=True)
data = strategy.experimental_distribute_dataset(
    tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(16 * strategy.num_replicas_in_sync)
)


@tf.function
def step(batch):
    def train(batch):
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(images, training=True) - labels) ** 2) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train, args=(batch,)), axis=None)


losses = [float(step(batch)) for batch, _ in zip(data, range(20), strict=False)]
assert losses[-1] < losses[0], losses
kernel = strategy.experimental_local_results(model.trainable_variables[0])[0].numpy().ravel().tolist()
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
Path(f"/data/output/kernel-{task}.json").write_text(json.dumps(kernel))
