"""A user reads runs with MLflow's own client: ``mlflow_reads.py RUN``; the environment names server and token."""

import json
import sys

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

client = MlflowClient()
run = client.get_run(sys.argv[1])
experiment = client.get_experiment(run.info.experiment_id)
found = client.search_runs(
    [experiment.experiment_id], "params.lr = '0.1' AND metrics.loss < 0.5", order_by=["metrics.loss"]
)
try:
    client.log_metric(run.info.run_id, "loss", 1.0)
    refused = ""
except MlflowException as error:
    refused = error.error_code
print(
    json.dumps(
        {
            "name": run.info.run_name,
            "status": run.info.status,
            "experiment": experiment.name,
            "params": run.data.params,
            "metrics": run.data.metrics,
            "history": [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")],
            "artifacts": sorted(one.path for one in client.list_artifacts(run.info.run_id)),
            "texts": [one.path for one in client.list_artifacts(run.info.run_id, "texts")],
            "found": [one.info.run_id for one in found],
            "experiments": [one.name for one in client.search_experiments()],
            "models": [one.name for one in client.search_registered_models()],
            "refused": refused,
        }
    )
)
