"""``hvd.elastic`` for TensorFlow and Keras: training that continues when the gang changes."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.elastic import ObjectState, State, register_rejoin, run_elastic
from trainmaster_train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from trainmaster_train.horovod.reduction import Max
from trainmaster_train.horovod.tensorflow import session
from trainmaster_train.horovod.tensorflow.callbacks import KerasCallback, with_keras_base
from trainmaster_train.horovod.tensorflow.functions import allgather_object, broadcast_object, variables_of
from trainmaster_train.horovod.tensorflow.ops import allreduce

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "register_rejoin",
    "run",
]


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: ``function(state, …)`` is run again with each new gang; after a loss, from the last commit.

    In an elastic job of the platform the gangs are its worlds; elsewhere see :func:`register_rejoin`.
    """

    @functools.wraps(function)
    def in_single_gang(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            # TensorFlow wraps the exception of a graph's operation; its message contains ours.
            if HorovodInternalError.__name__ not in str(error):
                raise
            raise HorovodInternalError(_sentence_of(error)) from error

    return run_elastic(in_single_gang, session.init, session.shutdown, session.barrier, session.membership.follow)


class TensorFlowState(ObjectState):
    """Variables and plain values: ``TensorFlowState(variables, step=0)``."""

    def __init__(self, variables: Sequence[Any], session: Any = None, **values: Any) -> None:
        if session is not None:
            raise ValueError("TensorFlowState(session=…) is TensorFlow 1's; leave it out.")
        self._variables = list(variables)
        self._saved: List[Any] = []
        super().__init__(_any_rank, broadcast_object, allgather_object, **values)
        self.save()

    def tracked(self) -> List[Any]:
        """All variables, in the same order on all ranks."""
        return self._variables

    def save(self) -> None:
        self._saved = [np.array(variable.numpy()) for variable in self.tracked()]
        super().save()

    def restore(self) -> None:
        self._assign(self._saved)
        super().restore()

    def sync(self) -> None:
        """All ranks take the values of the rank with the newest commit; before the first commit, those of rank 0."""
        source = self.newest_rank()
        self.sync_values(source)
        self._saved = broadcast_object([np.array(variable.numpy()) for variable in self.tracked()], source)
        self.restore()

    def _assign(self, values: Sequence[Any]) -> None:
        variables = self.tracked()
        if len(variables) != len(values):
            raise ValueError(
                f"this rank has {len(variables)} variables where another has {len(values)}: build the model and its "
                "optimizer on all ranks before hvd.elastic.run, for example by one step."
            )
        for variable, value in zip(variables, values):
            variable.assign(value)


class TensorFlowKerasState(TensorFlowState):
    """A Keras model, its optimizer and plain values: ``TensorFlowKerasState(model, optimizer, batch=0)``.

    Args:
        optimizer: default: the one that the model was compiled with.

    Raises:
        ValueError: the model is not built yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:  # noqa: ARG002
        if not getattr(model, "built", True):
            raise ValueError("the model has no variables yet: build it first, by model.build(input_shape) or one step.")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else model.optimizer
        super().__init__([], **values)

    def tracked(self) -> List[Any]:
        if not getattr(self.optimizer, "built", True):
            self.optimizer.build(self.model.trainable_variables)
        return [*self.model.variables, *variables_of(self.optimizer)]


class CommitStateCallback(KerasCallback):
    """Commits ``state`` every ``batches_per_commit`` batches, and after each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._every = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._left = self._every  # all ranks count from here, new ones and old ones

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._left -= 1
        if self._left <= 0:
            self._left = self._every
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._state.commit()


class UpdateBatchStateCallback(KerasCallback):
    """Sets ``state.batch`` to the batch in the epoch. Put it before the callback that commits."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._state.batch = 0


class UpdateEpochStateCallback(KerasCallback):
    """Counts finished epochs over all gangs in ``state.epoch``. Put it before the callback that commits."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._first = state.epoch

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._first = self._state.epoch  # Keras counts from 0 in each gang

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:  # noqa: ARG002
        self._state.epoch = self._first + epoch + 1


def elastic_of(keras: Any) -> Any:
    """``hvd.elastic`` for models of ``keras`` (``keras``, ``tf.keras``)."""
    callbacks = with_keras_base(keras, CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback)
    return SimpleNamespace(
        run=run,
        KerasState=TensorFlowKerasState,
        ObjectState=ObjectState,
        State=State,
        HorovodInternalError=HorovodInternalError,
        HostsUpdatedInterrupt=HostsUpdatedInterrupt,
        register_rejoin=register_rejoin,
        **callbacks,
    )


def _any_rank(value: bool) -> bool:
    return bool(allreduce(tf.constant([int(value)]), op=Max).numpy()[0])


def _sentence_of(error: BaseException) -> str:
    """The original message, without the text that TensorFlow adds around it."""
    for line in str(error).splitlines():
        _, mark, sentence = line.partition(f"{HorovodInternalError.__name__}: ")
        if mark:
            return sentence
    return str(error)
