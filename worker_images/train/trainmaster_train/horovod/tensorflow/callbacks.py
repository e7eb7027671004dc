"""Horovod's callbacks for Keras, for ``keras`` and ``tf.keras``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Union

import numpy as np

from trainmaster_train.horovod.tensorflow.functions import broadcast_variables, variables_of
from trainmaster_train.horovod.tensorflow.ops import allreduce
from trainmaster_train.horovod.tensorflow.session import rank, size


class KerasCallback:
    """Attributes that Keras sets on a callback; :func:`with_keras_base` adds Keras' own base class."""

    model: Any
    params: Any


def with_keras_base(keras: Any, *callbacks: type) -> Dict[str, Any]:
    """``callbacks`` by name, derived from the base class of ``keras`` (``keras`` or ``tf.keras``)."""
    return {
        callback.__name__: type(callback.__name__, (callback, keras.callbacks.Callback), {"__doc__": callback.__doc__})
        for callback in callbacks
    }


def callbacks_of(keras: Any) -> Any:
    """``hvd.callbacks`` for models of ``keras``."""
    return SimpleNamespace(
        **with_keras_base(
            keras,
            BroadcastGlobalVariablesCallback,
            MetricAverageCallback,
            LearningRateScheduleCallback,
            LearningRateWarmupCallback,
        )
    )


class BroadcastGlobalVariablesCallback(KerasCallback):
    """After the first batch, when all variables exist: broadcasts them from ``root_rank``."""

    def __init__(self, root_rank: int, device: str = "") -> None:  # noqa: ARG002 (Horovod's signature)
        super().__init__()
        self._root = root_rank
        self._is_done = False

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        if self._is_done:
            return
        broadcast_variables(self.model.variables, self._root)
        broadcast_variables(variables_of(self.model.optimizer), self._root)
        self._is_done = True


class MetricAverageCallback(KerasCallback):
    """Averages the metrics in ``logs`` over the ranks at the end of an epoch. Put it before their readers."""

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        if logs:
            names = sorted(logs)
            means = allreduce(np.array([float(logs[name]) for name in names]), name="metrics")
            logs.update(zip(names, means.numpy().tolist()))


class LearningRateScheduleCallback(KerasCallback):
    """From ``start_epoch`` until before ``end_epoch`` the rate is ``initial_lr`` times ``multiplier``, a number or a
    function of the epoch: set once an epoch, or without ``staircase`` for each batch, with fractions of epochs.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Union[float, Callable[[float], float]],
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,  # noqa: ARG002 (Horovod's; optimizers store velocity separately)
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        super().__init__()
        self._rate = initial_lr
        self._multiplier = multiplier
        self._epochs = (start_epoch, end_epoch)
        self._is_stepwise = staircase
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        first, end = self._epochs
        if self._epoch < first or (end is not None and self._epoch >= end):
            return
        steps = self._steps or (self.params or {}).get("steps")
        if self._is_stepwise and batch == 0:
            self._set(float(self._epoch))
        elif not self._is_stepwise and steps:
            self._set(self._epoch + batch / steps)

    def _set(self, epoch: float) -> None:
        factor = self._multiplier(epoch) if callable(self._multiplier) else self._multiplier
        optimizer = self.model.optimizer
        if hasattr(optimizer.learning_rate, "assign"):
            optimizer.learning_rate.assign(self._rate * factor)
        else:
            optimizer.learning_rate = self._rate * factor


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from ``initial_lr`` / size to ``initial_lr``, batch by batch, over ``warmup_epochs``.

    ``initial_lr`` is already scaled by the size, as in Horovod.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        def grown(epoch: float) -> float:
            # The rate is complete at the end of the last batch of the last epoch.
            steps = self._steps or (self.params or {}).get("steps") or 1
            done = min(1.0, (epoch + 1 / steps) / warmup_epochs)
            return (1.0 + done * (size() - 1)) / size()

        super().__init__(initial_lr, grown, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._last_epoch = warmup_epochs - 1
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        if self._verbose and rank() == 0 and epoch == self._last_epoch:
            print(f"Epoch {epoch + 1}: the learning rate has warmed up to {self._rate:g}.", flush=True)
