"""Horovod's API for Keras: ``import trainmaster_train.horovod.keras as hvd``, for models of the package ``keras``."""

from __future__ import annotations

import keras  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.tensorflow import *  # noqa: F403 (the whole API applies to Keras, too)
from trainmaster_train.horovod.tensorflow import __getattr__  # noqa: F401 (for unsupported names)
from trainmaster_train.horovod.tensorflow.callbacks import callbacks_of
from trainmaster_train.horovod.tensorflow.elastic import elastic_of
from trainmaster_train.horovod.tensorflow.training import ModelLoader

callbacks = callbacks_of(keras)
elastic = elastic_of(keras)
load_model = ModelLoader(keras).load_model
