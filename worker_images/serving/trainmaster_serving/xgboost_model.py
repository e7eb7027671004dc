"""XGBoost: its own formats, which hold only numbers."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import xgboost  # pyright: ignore[reportMissingImports] (in the image)

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.values import array, by_instance, columns


class XgboostModel:
    def __init__(self, booster: Any) -> None:
        self._booster = booster

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:
        names = None
        rows = instances
        if isinstance(instances[0], dict):
            columns(instances)
            names = self._booster.feature_names or list(instances[0])
            missing = [name for name in names if name not in instances[0]]
            if missing:
                raise BadInstances("instances: they have no %s" % ", ".join(missing[:10]))
            rows = [[instance[name] for name in names] for instance in instances]
        try:
            data = xgboost.DMatrix(array(rows).astype(float), feature_names=names or self._booster.feature_names)
            return by_instance(self._booster.predict(data, **parameters), len(instances))
        except (xgboost.core.XGBoostError, ValueError, TypeError) as error:
            raise BadInstances("the model rejects them: %s" % str(error).splitlines()[-1][:500]) from error


def load(path: str, trust_code: bool) -> XgboostModel:  # noqa: ARG001 (the format has no code)
    """Raises ``ModelProblem``."""
    booster = xgboost.Booster()
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        raise ModelProblem("%s is not a readable XGBoost model: %s" % (path, str(error)[:500])) from error
    return XgboostModel(booster)
