"""Distributed gradients for TensorFlow's tape and for optimizers, and loading of saved models."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.reduction import Average, ReduceOp
from trainmaster_train.horovod.session import ProcessSet
from trainmaster_train.horovod.tensorflow.ops import Compression, reduce_gradients
from trainmaster_train.horovod.tensorflow.session import global_process_set


class ModelLoader:
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
        """The saved model with its optimizer and state; from now on the optimizer applies gradients reduced over all
        ranks. It makes no difference whether the model was saved with a ``DistributedOptimizer``.
        """
        own = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
        model = self._keras.models.load_model(filepath, custom_objects={**own, **(custom_objects or {})})
        distribute(model.optimizer, compression)
        return model


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient()`` is reduced over all ranks. Everything else is the tape's own."""

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",  # noqa: ARG002 (Horovod's signature)
        device_sparse: str = "",  # noqa: ARG002 (Horovod's signature)
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,  # noqa: ARG002 (small tensors are fused anyway)
        groups: Any = None,  # noqa: ARG002 (small tensors are fused anyway)
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._tape = gradtape
        self._reduce_options: Dict[str, Any] = {
            "op": op,
            "compression": compression,
            "predivide": gradient_predivide_factor,
            "sparse_as_dense": sparse_as_dense,
            "process_set": process_set,
        }

    def __enter__(self) -> DistributedGradientTape:  # noqa: PYI034 (Python 3.8 has no Self)
        self._tape.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
        gradients = self._tape.gradient(target, sources, *arguments, **named)
        if isinstance(gradients, (list, tuple)):
            return reduce_gradients(gradients, label="tape", **self._reduce_options)
        return reduce_gradients([gradients], label="tape", **self._reduce_options)[0]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: Optional[str] = None,  # noqa: ARG001 (Horovod's signature)
    *,
    use_locking: bool = False,  # noqa: ARG001 (Horovod's signature)
    device_dense: str = "",  # noqa: ARG001 (Horovod's signature)
    device_sparse: str = "",  # noqa: ARG001 (Horovod's signature)
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,  # noqa: ARG001 (small tensors are fused anyway)
    groups: Any = None,  # noqa: ARG001 (small tensors are fused anyway)
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A Keras optimizer of the same class and options that applies gradients reduced over all ranks.

    With Keras 3 compile the model with ``jit_compile=False``: XLA programs cannot call Python.

    Args:
        backward_passes_per_step: number of passes whose gradients are added up on each rank (with
            ``average_aggregated_gradients``: averaged) before they are reduced and applied.

    Raises:
        ValueError: ``backward_passes_per_step`` is below 1.
    """
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: a step has at least one.")
    reduce_options: Dict[str, Any] = {
        "op": op,
        "compression": compression,
        "predivide": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
        "label": "optimizer",
    }
    passes = GradientAccumulation(backward_passes_per_step, is_mean=average_aggregated_gradients)
    return _distributed_class(type(optimizer), reduce_options, passes).from_config(optimizer.get_config())


def distribute(optimizer: Any, compression: Any) -> None:
    """Turn ``optimizer``, which has a state already, into one that applies gradients reduced over all ranks."""
    reduce_options: Dict[str, Any] = {"compression": compression, "label": "optimizer"}
    optimizer.__class__ = _distributed_class(type(optimizer), reduce_options, GradientAccumulation(1, is_mean=False))


class GradientAccumulation:
    """Accumulates the gradients of ``count`` backward passes on this rank before the reduction."""

    def __init__(self, count: int, *, is_mean: bool) -> None:
        self._count = count
        self._divisor = count if is_mean else 1
        self._done: Any = None
        self._sums: List[Any] = []

    def apply_when_due(
        self, apply: Callable[[Sequence[Any]], Any], gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Any:
        """Call ``apply`` with the accumulated gradients if this pass is the last of a step."""
        if self._count == 1:
            return apply(gradients)
        if self._done is None:
            with tf.init_scope():  # outside of the graph that is being built
                self._done = tf.Variable(tf.constant(0), trainable=False)
                self._sums = [
                    tf.Variable(tf.zeros(variable.shape, tf.as_dtype(variable.dtype)), trainable=False)
                    for variable in variables
                ]
        for total, gradient in zip(self._sums, gradients):
            if gradient is not None:
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        self._done.assign_add(1)

        def step() -> Any:
            together = [total / self._divisor for total in self._sums]
            apply([None if gradient is None else total for total, gradient in zip(together, gradients)])
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            self._done.assign(0)
            return tf.constant(0)

        return tf.cond(self._done >= self._count, step, lambda: tf.constant(0))


def _distributed_class(base: Any, reduce_options: Dict[str, Any], passes: GradientAccumulation) -> Any:
    """A subclass of ``base``, an optimizer's class, that reduces gradients before it applies them."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None, **named: Any) -> Any:
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        return passes.apply_when_due(
            lambda found: base.apply(self, reduce_gradients(found, **reduce_options), variables, **named),
            list(grads),
            variables,
        )

    def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def apply_all(found: Sequence[Any]) -> Any:
            return base.apply_gradients(
                self, zip(reduce_gradients(found, **reduce_options), variables), *arguments, **named
            )

        return passes.apply_when_due(apply_all, [gradient for gradient, _ in pairs], variables)

    # Keras 3 always calls apply(); earlier versions call apply_gradients().
    own: Dict[str, Any] = {"apply": apply} if hasattr(base, "apply") else {"apply_gradients": apply_gradients}
    # A saved model then names the original class, which can be loaded without this library.
    return type(base.__name__, (base,), {**own, "__module__": base.__module__})
