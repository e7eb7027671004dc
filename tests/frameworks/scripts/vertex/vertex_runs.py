"""A user's program with Google's unmodified SDK: ``vertex_runs.py URL TOKEN NAME``; its jobs log to experiments by the
SDK, too.
"""

import json
import sys

from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

URL, TOKEN, NAME = sys.argv[1:]
EXPERIMENT = f"runs-{NAME}"
# As a script on Vertex AI has it: it says nothing of servers, projects or experiments.
UNTOUCHED = """
from google.cloud import aiplatform
aiplatform.log_params({"lr": 0.5})
for step in (1, 2):
    aiplatform.log_time_series_metrics({"loss": 1 / step}, step=step)
aiplatform.log_metrics({"accuracy": 0.875})
"""
PREFIX = f"runs-{NAME}/"
OWN = (
    f"name = '{EXPERIMENT}-own'\nPREFIX = '{PREFIX}'  # in gs://data, which so is the job's"
    """
import json, os
from google.cloud import aiplatform
aiplatform.init(experiment=name)
with aiplatform.start_run("inside"):
    aiplatform.log_metrics({"accuracy": 0.25})
names = ("AIP_TENSORBOARD_RESOURCE_NAME", "AIP_TENSORBOARD_API_URI", "AIP_TENSORBOARD_LOG_DIR")
told = {name: os.environ[name] for name in names}
# Cloud Storage's client as it is: no server, no credentials.
from google.cloud import exceptions, storage
client = storage.Client()
bucket = client.bucket("data")
told["read"] = bucket.blob(PREFIX + "in.txt").download_as_text()
bucket.blob(PREFIX + "out.txt").upload_from_string(told["read"].upper())
told["listed"] = [each.name for each in bucket.list_blobs(prefix=PREFIX)]
with client.batch():
    bucket.delete_blob(PREFIX + "spare")
told["left"] = [each.name for each in bucket.list_blobs(prefix=PREFIX)]
kept = bucket.blob(PREFIX + "kept")
kept.metadata = {"colour": "red"}
try:
    kept.upload_from_string("x")
except exceptions.GoogleCloudError as error:
    told["refused"] = [error.code, str(error)]
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/told.json", "w") as stream:
    json.dump(told, stream)
"""
)
seen = {}


def job(name, code):
    spec = {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "container_spec": {"image_uri": "python:3.11-slim", "command": [sys.executable, "-c", code]},
    }
    return aiplatform.CustomJob(display_name=name, worker_pool_specs=[spec])


aiplatform.init(
    project="default",
    location="us-central1",
    staging_bucket="gs://data",
    api_endpoint=URL,
    api_transport="rest",
    credentials=Credentials(token=TOKEN),
    experiment=EXPERIMENT,
)
aiplatform.start_run("named")
aiplatform.end_run()
named = job(f"named {NAME}", UNTOUCHED)
named.submit(experiment=EXPERIMENT, experiment_run="named")
unnamed = job(f"unnamed {NAME}", UNTOUCHED)
unnamed.submit(experiment=EXPERIMENT)
board = aiplatform.Tensorboard.create(display_name=f"of jobs {NAME}")
own = job(f"own {NAME}", OWN)
own.run(tensorboard=board.resource_name, service_account="me@example.org")
for each in (named, unnamed):
    each._block_until_complete()
seen["states"] = [each.state.name for each in (named, unnamed, own)]
seen["jobs"] = [each.name for each in (named, unnamed, own)]
columns = ["run_name", "state", "param.lr", "metric.accuracy", "time_series_metric.loss"]
frame = aiplatform.get_experiment_df(EXPERIMENT)
seen["frame"] = json.loads(frame.sort_values("run_name")[columns].to_json(orient="values"))
inside = aiplatform.ExperimentRun("inside", experiment=f"{EXPERIMENT}-own")
seen["inside"] = [inside.state.name, inside.get_metrics()]
seen["output"] = own.to_dict()["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
seen["board"] = [board.resource_name, [one.name for one in aiplatform.TensorboardExperiment.list(board.resource_name)]]
print("SEEN " + json.dumps(seen))
