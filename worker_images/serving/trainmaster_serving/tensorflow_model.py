"""TensorFlow: SavedModels, by their serving signature. A SavedModel is a graph: only its ops run, no Python code."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import tensorflow as tf

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.values import array, by_instance, columns

_SIGNATURE = "serving_default"


class TensorflowModel:
    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded  # keeps its variables alive
        self._signature = loaded.signatures[_SIGNATURE]
        _, self._inputs = self._signature.structured_input_signature

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:  # noqa: ARG002
        """Objects map to the signature's inputs by name; other instances are the only input."""
        if isinstance(instances[0], dict):
            named = columns(instances)
        elif len(self._inputs) == 1:
            named = {next(iter(self._inputs)): list(instances)}
        else:
            raise BadInstances("instances: this model has several inputs (%s); send objects" % ", ".join(self._inputs))
        if set(named) != set(self._inputs):
            raise BadInstances("instances: this model takes %s, not %s" % (", ".join(self._inputs), ", ".join(named)))
        try:
            tensors = {name: tf.constant(array(rows, name), self._inputs[name].dtype) for name, rows in named.items()}
            outputs = self._signature(**tensors)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise BadInstances("the model rejects them: %s" % _error_sentence(error)) from error
        arrays = {name: output.numpy() for name, output in outputs.items()}
        # As in TensorFlow Serving: a single output is the prediction itself.
        return by_instance(next(iter(arrays.values())) if len(arrays) == 1 else arrays, len(instances))


def load(path: str, trust_code: bool) -> TensorflowModel:  # noqa: ARG001
    """Raises ``ModelProblem``."""
    try:
        loaded = tf.saved_model.load(path)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ModelProblem("%s is not a readable SavedModel: %s" % (path, str(error)[:500])) from error
    if _SIGNATURE not in loaded.signatures:
        raise ModelProblem(
            "%s has no signature %s; save it with one (Keras: `model.export(folder)`)." % (path, _SIGNATURE)
        )
    return TensorflowModel(loaded)


def _error_sentence(error: BaseException) -> str:
    """The message of an error, without the graph locations that TensorFlow adds."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    sentences = [
        line for line in lines if not line.startswith(("Graph execution error", "Detected at node", "<", "[["))
    ]
    return (sentences[-1] if sentences else type(error).__name__)[:500]
