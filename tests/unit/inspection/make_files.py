"""Made the files of ``files/`` with the libraries whose formats they are; run it in an environment that has the one:
``python make_files.py tensorflow|keras|xgboost|safetensors FOLDER``. Versions: see ``files/README.md``.

Every model is the same: a kernel of 3×2 that counts 0, 1, 2 …, and a bias of ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)
BIAS = np.ones(2, dtype=np.float32)


def keras_model():
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")], name="tiny")
    model.compile(optimizer=keras.optimizers.Adam(0.5), loss="mse")
    model.fit(np.ones((2, 3)), np.ones((2, 2)), verbose=0)
    model.get_layer("dense").set_weights([KERNEL, BIAS])
    return model


def tensorflow(folder: Path) -> None:
    import tensorflow as tf

    model = keras_model()
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "ckpt-5"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("dense/kernel", initializer=KERNEL)
        tf.compat.v1.get_variable("half", initializer=tf.cast(BIAS, tf.bfloat16))
        tf.compat.v1.train.AdamOptimizer().minimize(tf.reduce_sum(weight))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(
            session, str(folder / "model.ckpt-7"), write_meta_graph=False, write_state=False
        )
    module = tf.Module()
    module.kernel = tf.Variable(KERNEL)
    tf.saved_model.save(module, str(folder / "saved"))


def keras(folder: Path) -> None:
    import h5py

    model = keras_model()
    model.save(folder / "tiny.keras")
    model.save(folder / "tiny.h5")
    model.save_weights(folder / "tiny.weights.h5")
    with h5py.File(folder / "chunked.h5", "w") as file:
        file.create_dataset("pressed", data=np.arange(1000.0).reshape(100, 10), chunks=(30, 7), compression="gzip")
        file.create_dataset("big", data=KERNEL.astype(">f4"))
        file.create_dataset("empty", shape=(3,), dtype="f4")
    with h5py.File(folder / "linked.h5", "w") as file:
        file["link"] = h5py.ExternalLink("/etc/hostname", "/x")


def xgboost(folder: Path) -> None:
    import xgboost as xgb

    data = xgb.DMatrix(np.arange(40.0).reshape(20, 2), label=np.arange(20) % 2, feature_names=["age", "size"])
    booster = xgb.train({"objective": "binary:logistic", "max_depth": 2}, data, num_boost_round=3)
    booster.save_model(folder / "trees.json")
    booster.save_model(folder / "trees.ubj")


def safetensors(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"dense.kernel": KERNEL, "dense.bias": BIAS}, folder / "tiny.safetensors", metadata={"format": "np"})


if __name__ == "__main__":
    {"tensorflow": tensorflow, "keras": keras, "xgboost": xgboost, "safetensors": safetensors}[sys.argv[1]](
        Path(sys.argv[2])
    )
