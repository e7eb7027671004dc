"""Gradients of all ranks in TensorFlow's two ways to train: a tape, and an optimizer."""

from __future__ import annotations

from typing import Any, Dict, List

from trainmaster_train.horovod.tensorflow.ops import Average, Compression, ReduceOp, reduce_gradients


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient()`` is that of all ranks. Everything else is the tape's own."""

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",  # noqa: ARG002 (Horovod's signature)
        device_sparse: str = "",  # noqa: ARG002 (Horovod's signature)
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
    ) -> None:
        self._tape = gradtape
        self._how: Dict[str, Any] = {
            "op": op,
            "compression": compression,
            "predivide": gradient_predivide_factor,
            "sparse_as_dense": sparse_as_dense,
        }

    def __enter__(self) -> DistributedGradientTape:  # noqa: PYI034 (Python 3.8 has no Self)
        self._tape.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
        found = self._tape.gradient(target, sources, *arguments, **named)
        if isinstance(found, (list, tuple)):
            return reduce_gradients(found, label="tape", **self._how)
        return reduce_gradients([found], label="tape", **self._how)[0]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str = "",  # noqa: ARG001 (Horovod's signature)
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
) -> Any:
    """A Keras optimizer of the same class and options that applies the gradients of all ranks.

    In a model of Keras 3 compile it with ``jit_compile=False``: XLA cannot call out of its programs.

    Raises:
        ValueError: ``backward_passes_per_step`` is not 1: Keras' own ``gradient_accumulation_steps`` does that.
    """
    if backward_passes_per_step != 1:
        raise ValueError("backward_passes_per_step is 1 here: give the optimizer gradient_accumulation_steps instead.")
    how: Dict[str, Any] = {
        "op": op,
        "compression": compression,
        "predivide": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
    }
    base = type(optimizer)

    def reduced(gradients: Any) -> List[Any]:
        return reduce_gradients(list(gradients), label="optimizer", **how)

    def apply(self: Any, grads: Any, *arguments: Any, **named: Any) -> Any:
        return base.apply(self, reduced(grads), *arguments, **named)

    def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients = reduced([gradient for gradient, _ in pairs])
        both = list(zip(gradients, [variable for _, variable in pairs]))
        return base.apply_gradients(self, both, *arguments, **named)

    # Keras 3 comes to apply() on every road; before it, apply_gradients() was the road.
    own: Dict[str, Any] = {"apply": apply} if hasattr(base, "apply") else {"apply_gradients": apply_gradients}
    made: Any = type(base.__name__, (base,), own)
    return made.from_config(optimizer.get_config())
