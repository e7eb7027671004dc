"""A script as it would run anywhere: nothing in it knows where it logs to."""

import json
import os
from pathlib import Path

import mlflow

rank = int(os.environ["RANK"])
mlflow.set_experiment("a name of the user's own")
mlflow.log_params({"lr": 0.1, "rank": rank})
for step in range(3):
    mlflow.log_metric("loss", 1 / (step + 1) + rank, step=step)
mlflow.set_tag("team", "vision")
Path("notes.txt").write_text("hello")
if rank == 0:
    mlflow.log_artifact("notes.txt", artifact_path="texts")
    mlflow.log_dict({"a": 1}, "config.json")
own = mlflow.active_run().info.run_id
mlflow.end_run()

# Further runs, as a search over parameters makes them.
with mlflow.start_run(run_name=f"trial of {rank}") as trial:
    mlflow.log_metrics({"score": 0.5}, step=1)
    mlflow.log_param("depth", 3)

if rank == 0:
    seen = mlflow.get_run(own)
    texts = mlflow.artifacts.load_text(f"{seen.info.artifact_uri}/texts/notes.txt")
    result = {"run": own, "trial": trial.info.run_id, "text": texts, "metrics": seen.data.metrics}
    Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "result.json").write_text(json.dumps(result))
