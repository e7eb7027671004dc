"""Detection of a model's framework, and loading."""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from trainmaster_serving.errors import ModelProblem


class PredictionModel(Protocol):
    """The interface of all models."""

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:
        """One prediction for each of ``instances``, at least one.

        Raises ``BadInstances`` for invalid instances.
        """
        ...


def metadata_of(model: PredictionModel, parameters: Dict[str, Any]) -> Dict[str, Any]:
    """Data for all predictions with ``parameters``, as Vertex AI's ``metadata`` of a response: the order of the
    classes if a prediction is a list with a score for each. Empty for other models.
    """
    metadata: Optional[Callable[[Dict[str, Any]], Dict[str, Any]]] = getattr(model, "metadata", None)
    return metadata(parameters) if metadata is not None else {}


# Suffixes of each framework's files, the same as in Vertex AI's prebuilt containers.
_SUFFIXES: Dict[str, Tuple[str, ...]] = {
    "torch": (".pt2", ".pt", ".pth", ".ts"),
    "sklearn": (".skops", ".joblib", ".pkl", ".pickle"),
    "xgboost": (".ubj", ".bst", ".xgb"),
}
_SAVED_MODEL = "saved_model.pb"


def load_model(folder: str, file: str = "", framework: str = "auto", trust_code: bool = False) -> PredictionModel:
    """Load the model in ``folder``.

    Args:
        file: its file there; empty: the only one with a framework's suffix, or the one called ``model``.
        trust_code: whether loading may run code of the model's author.

    Raises:
        ModelProblem: there is none, there are several, or it cannot be loaded.
    """
    kind, path = find_model(folder, file, framework)
    try:
        load: Callable[[str, bool], PredictionModel] = importlib.import_module(
            "trainmaster_serving.%s_model" % kind
        ).load
        return load(path, trust_code)
    except ImportError as error:
        raise ModelProblem(
            "%s is a model of %s, which is not installed where it is served (%s); use an image that has it."
            % (path, kind, error)
        ) from error


def find_model(folder: str, file: str = "", framework: str = "auto") -> Tuple[str, str]:
    """The framework and the path of the model in ``folder``. Raises ``ModelProblem``."""
    if file:
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            raise ModelProblem("There is no file %s in the model's folder %s." % (file, folder))
        if file == _SAVED_MODEL:
            return "tensorflow", folder
        kind = framework if framework != "auto" else _kind_of(file)
        if not kind:
            raise ModelProblem("The name of %s does not say what it is; name its framework." % file)
        return kind, path
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelProblem("The model's folder %s cannot be read: %s." % (folder, error.strerror)) from error
    if _SAVED_MODEL in names and framework in ("auto", "tensorflow"):
        return "tensorflow", folder
    models = [name for name in names if _kind_of(name) and framework in ("auto", _kind_of(name))]
    if len(models) > 1:
        models = [name for name in models if os.path.splitext(name)[0] == "model"] or models
    if len(models) == 1:
        return _kind_of(models[0]), os.path.join(folder, models[0])
    if models:
        raise ModelProblem("%s holds several models (%s); name the one to serve." % (folder, ", ".join(models[:10])))
    known = ", ".join([_SAVED_MODEL, *("*" + end for ends in _SUFFIXES.values() for end in ends)])
    has = ", ".join(names[:10]) or "nothing"
    raise ModelProblem("%s holds no model%s: it has %s. Known are %s." % (
        folder, "" if framework == "auto" else " of " + framework, has, known
    ))  # fmt: skip


def _kind_of(name: str) -> str:
    for kind, ends in _SUFFIXES.items():
        if name.endswith(ends):
            return kind
    return ""
