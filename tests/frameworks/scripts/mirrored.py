"""One process, two devices: MirroredStrategy or CentralStorageStrategy, with Keras' `fit`."""

import sys

import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = [device.name.replace("/device:", "") for device in tf.config.list_logical_devices("CPU")]

images = np.random.default_rng(7).normal(size=(64, 4)).astype("float32")
labels = images.sum(axis=1, keepdims=True)
for name in sys.argv[1:]:
    if name == "mirrored":
        strategy = tf.distribute.MirroredStrategy(devices)
    else:
        strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    print(f"{name} trained on {strategy.num_replicas_in_sync} devices", flush=True)
