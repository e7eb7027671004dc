"""What a user of Vertex AI trains with: it knows nothing of the platform that runs it."""

import argparse
import json
import os
from pathlib import Path

import six  # the package's requirement

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
spec = json.loads(os.environ["CLUSTER_SPEC"])
task = spec["task"]
folder = Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
folder.mkdir(parents=True, exist_ok=True)
reported = {
    "epochs": args.epochs,
    "pools": {name: len(hosts) for name, hosts in spec["cluster"].items()},
    "type": json.loads(os.environ["TF_CONFIG"])["task"]["type"] if "TF_CONFIG" in os.environ else None,
    "world": [os.environ.get("RANK"), os.environ.get("WORLD_SIZE")],
    "region": os.environ["CLOUD_ML_REGION"],
    "six": six.__name__,
    "model_dir": os.environ["AIP_MODEL_DIR"],
}
(folder / f"{task['type']}-{task['index']}.json").write_text(json.dumps(reported))
print("trained", reported)
