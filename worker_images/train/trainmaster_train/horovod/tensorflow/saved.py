"""``hvd.load_model``: a saved Keras model, to be trained on by all ranks."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from trainmaster_train.horovod.tensorflow.compression import Compression
from trainmaster_train.horovod.tensorflow.training import distribute


class Loader:
    """For models of ``keras`` (``keras``, ``tf.keras``)."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Optional[Sequence[Any]] = None,
        custom_objects: Optional[Dict[str, Any]] = None,
        compression: Any = Compression.none,
    ) -> Any:
        """The model as it was saved, with its optimizer and that one's state; the optimizer applies the gradients of all
        ranks from now on. Saved by a ``DistributedOptimizer`` or not is the same.
        """
        own = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
        model = self._keras.models.load_model(filepath, custom_objects={**own, **(custom_objects or {})})
        distribute(model.optimizer, compression)
        return model
