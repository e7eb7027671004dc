"""Saves a model of a framework as its users save one: ``save_models.py tensorflow|keras|xgboost FOLDER``."""

import sys
from pathlib import Path


def tensorflow(folder: Path) -> None:
    """A signature with two inputs by name."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 2], tf.float32, name="rows"),
                tf.TensorSpec([None], tf.float32, name="factor"),
            ]
        )
        def serve(self, rows, factor):
            return {"total": tf.reduce_sum(rows, 1) * factor, "rows": rows}

    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.serve})


def keras(folder: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.export(folder)


def xgboost(folder: Path) -> None:
    """Whether x is larger than y."""
    import numpy as np
    import xgboost as xgb

    rows = np.random.default_rng(7).normal(size=(500, 2))
    data = xgb.DMatrix(rows, rows[:, 0] > rows[:, 1], feature_names=["x", "y"])
    model = xgb.train({"objective": "binary:logistic", "nthread": 1, "max_depth": 4}, data, num_boost_round=30)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_model(folder / "model.ubj")


if __name__ == "__main__":
    {"tensorflow": tensorflow, "keras": keras, "xgboost": xgboost}[sys.argv[1]](Path(sys.argv[2]))
