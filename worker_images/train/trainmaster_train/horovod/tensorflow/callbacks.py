"""Keras' callbacks of Horovod, for whichever Keras is meant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import numpy as np

from trainmaster_train.horovod.tensorflow.ops import allreduce, broadcast_variables
from trainmaster_train.horovod.tensorflow.session import rank, size


def callbacks_of(keras: Any) -> Any:
    """A namespace with the callback classes for models of ``keras`` (``keras``, ``tf.keras``)."""

    class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """After the first batch, when all variables are there: all ranks take those of ``root_rank``."""

        def __init__(self, root_rank: int, device: str = "") -> None:  # noqa: ARG002 (Horovod's signature)
            super().__init__()
            self._root = root_rank
            self._is_done = False

        def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
            if self._is_done:
                return
            broadcast_variables(self.model.variables, self._root)
            broadcast_variables(_variables_of(self.model.optimizer), self._root)
            self._is_done = True

    class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """At the end of an epoch the metrics in ``logs`` become the ranks' average. Put it before those that read them."""

        def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
            if logs:
                names = sorted(logs)
                means = allreduce(np.array([float(logs[name]) for name in names]), name="metrics")
                logs.update(zip(names, means.numpy().tolist()))

    class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """The rate grows from ``initial_lr`` / size to ``initial_lr``, batch by batch, in ``warmup_epochs``.

        ``initial_lr`` is the rate that is scaled by the size already, as in Horovod.
        """

        def __init__(
            self,
            initial_lr: float,
            warmup_epochs: int = 5,
            momentum_correction: bool = True,  # noqa: ARG002 (Horovod's signature; optimizers of today keep velocity apart)
            steps_per_epoch: Optional[int] = None,
            verbose: int = 0,
        ) -> None:
            super().__init__()
            self._rate = initial_lr
            self._epochs = warmup_epochs
            self._steps = steps_per_epoch
            self._verbose = verbose
            self._epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
            self._epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
            steps = self._steps or (self.params or {}).get("steps")
            if self._epoch >= self._epochs or not steps:
                return
            done = (self._epoch + (batch + 1) / steps) / self._epochs
            rate = self._rate / size() * (1.0 + min(1.0, done) * (size() - 1))
            optimizer = self.model.optimizer
            if hasattr(optimizer.learning_rate, "assign"):
                optimizer.learning_rate.assign(rate)
            else:
                optimizer.learning_rate = rate

        def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
            if self._verbose and rank() == 0 and epoch == self._epochs - 1:
                print(f"Epoch {epoch + 1}: the learning rate has warmed up to {self._rate:g}.", flush=True)

    return SimpleNamespace(
        BroadcastGlobalVariablesCallback=BroadcastGlobalVariablesCallback,
        MetricAverageCallback=MetricAverageCallback,
        LearningRateWarmupCallback=LearningRateWarmupCallback,
    )


def _variables_of(optimizer: Any) -> List[Any]:
    """A method in the optimizers of old, a list since."""
    found: Any = optimizer.variables
    if callable(found):
        found = found()
    return list(found)  # pyright: ignore[reportArgumentType]
