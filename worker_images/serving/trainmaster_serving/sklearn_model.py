"""scikit-learn: skops files, whose types are checked before loading; joblib and pickle only with trust_code."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Sequence

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.values import array, by_instance, columns, plain

# Trusted in addition to skops' own list of scikit-learn's types: the first step of AutoML's models of tables, the
# trees of scikit-learn's forests and histogram boosting, and arrays' dtypes, which encoders store. None of them runs
# code of the file.
_KNOWN_TYPES = frozenset(
    (
        "trainmaster_automl.rows.RowReader",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.tree._tree.Tree",
        "numpy.dtype",
    )
)
_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples")
# Methods with a score for each class.
_PER_CLASS_METHODS = ("predict_proba", "predict_log_proba", "decision_function")
# The module for which scikit-learn imports all of torch.
_TORCH_BRIDGE = "sklearn.externals.array_api_compat.torch"


class SklearnModel:
    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:
        """``parameters.method``: ``predict``, or e.g. ``predict_proba``. Objects are rows by column names."""
        method = parameters.get("method", "predict")
        if method not in _METHODS or not hasattr(self._estimator, method):
            has = ", ".join(name for name in _METHODS if hasattr(self._estimator, name))
            raise BadInstances("parameters.method: this model has %s, not %r" % (has, method))
        rows = self._rows(instances)
        try:
            return by_instance(getattr(self._estimator, method)(rows), len(instances))
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInstances("the model rejects them: %s" % str(error).splitlines()[0][:500]) from error

    def metadata(self, parameters: Dict[str, Any]) -> Dict[str, Any]:
        """``classes``: in the order of a prediction's scores. For two classes ``decision_function`` gives one score,
        above zero for the second class.
        """
        classes = getattr(self._estimator, "classes_", None)
        if classes is None or parameters.get("method") not in _PER_CLASS_METHODS:
            return {}
        return {"classes": plain(classes)}

    def _rows(self, instances: Sequence[Any]) -> Any:
        first = getattr(self._estimator, "steps", [("", self._estimator)])[0][1]
        takes_rows = getattr(first, "takes_rows", False)
        if not isinstance(instances[0], dict):
            return _plain_rows(instances) if takes_rows else array(instances)
        named = columns(instances)
        known = getattr(self._estimator, "feature_names_in_", None)
        order = list(named) if known is None else [str(name) for name in known]
        missing = [name for name in order if name not in named]
        if missing:
            raise BadInstances("instances: they have no %s, which the model was trained with" % ", ".join(missing[:10]))
        if takes_rows:
            return [[instance[name] for name in order] for instance in instances]
        try:
            import pandas as pd  # pyright: ignore[reportMissingImports] (if installed)
        except ImportError:
            return array([[instance[name] for name in order] for instance in instances])
        return pd.DataFrame({name: named[name] for name in order})


def _plain_rows(instances: Sequence[Any]) -> List[List[Any]]:
    """Rows whose cells may be of different types. Raises ``BadInstances``."""
    for index, instance in enumerate(instances):
        if not isinstance(instance, list) or len(instance) != len(instances[0]):
            raise BadInstances("instances[%d]: must be a list as long as the first, or all must be objects" % index)
    return [list(instance) for instance in instances]


def load(path: str, trust_code: bool) -> SklearnModel:
    """Raises ``ModelProblem``."""
    import sklearn  # noqa: F401 (its absence gives a message of its own)

    if path.endswith(".skops"):
        estimator = _skops(path, trust_code)
    elif not trust_code:
        raise ModelProblem(
            "%s is a pickle, and reading it runs whatever its author wrote into it: deploy with trust_code "
            "(`--trust-code`) if you trust them, or save the model with skops (`skops.io.dump(model, 'model.skops')`)."
            % path
        )
    else:
        import joblib

        try:
            estimator = joblib.load(path)
        except Exception as error:  # a pickle may raise anything
            raise ModelProblem("%s cannot be read: %s: %s" % (path, type(error).__name__, str(error)[:500])) from error
    if not hasattr(estimator, "predict") and not hasattr(estimator, "transform"):
        raise ModelProblem("%s holds a %s, which predicts nothing." % (path, type(estimator).__name__))
    return SklearnModel(estimator)


def skops_io() -> Any:
    """``skops.io``, imported without torch: skops searches all of scikit-learn's packages for estimators, and one of
    them imports all of torch if installed, which takes as long as all the rest and more than half of a replica's
    memory.
    """
    is_hidden = _TORCH_BRIDGE not in sys.modules
    if is_hidden:
        sys.modules[_TORCH_BRIDGE] = None  # type: ignore[assignment]  # makes the import fail
    try:
        from skops import io
    finally:
        if is_hidden:
            del sys.modules[_TORCH_BRIDGE]
    return io


def _skops(path: str, trust_code: bool) -> Any:
    io = skops_io()
    try:
        untrusted = io.get_untrusted_types(file=path)
        unknown = [name for name in untrusted if name not in _KNOWN_TYPES]
        if trust_code or not unknown:
            return io.load(path, trusted=untrusted)
    except Exception as error:  # a damaged file may raise anything
        raise ModelProblem("%s is not a readable skops file: %s" % (path, str(error)[:500])) from error
    raise ModelProblem(
        "%s holds types that are not scikit-learn's own (%s); deploy with trust_code (`--trust-code`) if you trust its "
        "author." % (path, ", ".join(unknown[:10]))
    )
