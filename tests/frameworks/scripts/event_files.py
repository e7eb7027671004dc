"""Event files as TensorFlow, Keras and torch write them: ``event_files.py FOLDER tf|torch``."""

import sys
from pathlib import Path

import numpy as np


def by_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for step in range(3):
            tf.summary.scalar("loss", 1 / (step + 1), step=step)
            tf.summary.scalar("half", tf.constant(0.5, tf.bfloat16), step=step)
            tf.summary.histogram("weights", np.arange(100.0), step=step)
            tf.summary.image("picture", np.zeros((2, 4, 4, 3)), step=step)
            tf.summary.text("words", [["hello", "you"]], step=step)
    writer.close()
    x = np.linspace(0, 1, 24).reshape(8, 3)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
    reported = tf.keras.callbacks.TensorBoard(str(folder / "keras"), histogram_freq=1)
    model.fit(x, x.sum(1), epochs=2, validation_split=0.25, verbose=0, callbacks=[reported])


def by_torch(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1 / (step + 1), step)
            writer.add_scalar("new", 0.5, step, new_style=True)
            writer.add_scalars("both", {"a": step, "b": 2 * step}, step)
            writer.add_histogram("weights", np.arange(100.0), step)
            writer.add_image("picture", np.zeros((3, 4, 4), dtype=np.uint8), step)
            writer.add_text("words", "hello", step)


{"tf": by_tensorflow, "torch": by_torch}[sys.argv[2]](Path(sys.argv[1]))
