"""`tf.estimator` as it was written for years: chief, workers, ps and an evaluator read TF_CONFIG by themselves."""

import json
import os

import numpy as np
import tensorflow as tf

STEPS = 60


def batches():
    images = np.random.default_rng(7).normal(size=(256, 4)).astype("float32")
    labels = (images.sum(axis=1) > 0).astype("int32")
    return tf.data.Dataset.from_tensor_slices(({"x": images}, labels)).repeat().batch(16)


task = json.loads(os.environ["TF_CONFIG"])["task"]
estimator = tf.estimator.DNNClassifier(
    [8],
    [tf.feature_column.numeric_column("x", shape=(4,))],
    config=tf.estimator.RunConfig(model_dir="/data/output/model", save_checkpoints_steps=30, tf_random_seed=7),
)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(batches, max_steps=STEPS),
    tf.estimator.EvalSpec(batches, steps=4, start_delay_secs=0, throttle_secs=1),
)
print(f"{task['type']} {task['index']} is done", flush=True)
