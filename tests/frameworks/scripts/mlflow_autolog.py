"""scikit-learn with autolog, and a model that is registered."""

import json
import os
from pathlib import Path

import mlflow
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

mlflow.autolog()
x, y = load_iris(return_X_y=True)
search = GridSearchCV(LogisticRegression(max_iter=200), {"C": [0.1, 1.0]}, cv=2)
search.fit(x, y)
own = mlflow.last_active_run().info.run_id
model = mlflow.sklearn.log_model(search.best_estimator_, name="best", registered_model_name="iris")
again = mlflow.sklearn.load_model("models:/iris/1")
agrees = bool((again.predict(x) == search.predict(x)).all())
result = {"run": own, "model": model.model_id, "agrees": agrees}
Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "result.json").write_text(json.dumps(result))
