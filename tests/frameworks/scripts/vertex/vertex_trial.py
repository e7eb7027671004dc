"""One trial of a user's search on Vertex AI, with Google's own ``cloudml-hypertune``; it knows nothing of who runs
it.
"""

import argparse
import json
import os
from pathlib import Path

import hypertune

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--units", type=int, required=True)
parser.add_argument("--optimizer", choices=["sgd", "adam"], required=True)
parser.add_argument("--momentum", type=float)
parser.add_argument("--batch_size", type=int, choices=[16, 32], required=True)
args = parser.parse_args()
assert (args.momentum is not None) == (args.optimizer == "sgd")
reporter = hypertune.HyperTune()
# It over-trains: the last measurement is worse than the best.
for step, value in enumerate((0.1, args.units / 100, args.units / 200), start=1):
    reporter.report_hyperparameter_tuning_metric("accuracy", value, global_step=step)
folder = Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
folder.mkdir(parents=True, exist_ok=True)
reported = {**vars(args), "trial": os.environ["CLOUD_ML_TRIAL_ID"], "tag": os.environ["CLOUD_ML_HP_METRIC_TAG"]}
(folder / "told.json").write_text(json.dumps(reported))
