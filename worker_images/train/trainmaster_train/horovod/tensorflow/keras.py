"""Horovod's API for ``tf.keras``: ``import trainmaster_train.horovod.tensorflow.keras as hvd``."""

from __future__ import annotations

import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.tensorflow import *  # noqa: F403 (the whole API applies to Keras, too)
from trainmaster_train.horovod.tensorflow import __getattr__  # noqa: F401 (for unsupported names)
from trainmaster_train.horovod.tensorflow.callbacks import callbacks_of
from trainmaster_train.horovod.tensorflow.elastic import elastic_of
from trainmaster_train.horovod.tensorflow.training import ModelLoader

callbacks = callbacks_of(tf.keras)
elastic = elastic_of(tf.keras)
load_model = ModelLoader(tf.keras).load_model
