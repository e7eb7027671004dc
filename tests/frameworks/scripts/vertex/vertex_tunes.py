"""A user's search with Google's unmodified SDK: ``vertex_tunes.py URL TOKEN READER TRIAL``; prints what it saw as
JSON.
"""

import json
import sys
import time

from google.api_core import exceptions
from google.cloud import aiplatform, storage
from google.cloud.aiplatform import hyperparameter_tuning as hpt
from google.oauth2.credentials import Credentials

URL, TOKEN, READER, TRIAL = sys.argv[1:]
seen = {}


def init(token):
    aiplatform.init(
        project="default",
        location="us-central1",
        staging_bucket="gs://data",
        api_endpoint=URL,
        api_transport="rest" if "://" in URL else "grpc",  # HOST:PORT of a bridge
        credentials=Credentials(token=token),
    )


init(TOKEN)
SPACE = {
    "learning_rate": hpt.DoubleParameterSpec(min=0.0001, max=0.1, scale="log"),
    "units": hpt.IntegerParameterSpec(min=4, max=64, scale="linear"),
    "optimizer": hpt.CategoricalParameterSpec(
        values=["sgd", "adam"],
        conditional_parameter_spec={
            "momentum": hpt.DoubleParameterSpec(min=0, max=0.9, scale="linear", parent_values=["sgd"])
        },
    ),
    "batch_size": hpt.DiscreteParameterSpec(values=[16, 32], scale="linear"),
}


def search(name, *command, space=SPACE, output="gs://data/search", machine=None, **fields):
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4", **(machine or {})},
        "replica_count": 1,
        "container_spec": {"image_uri": "python:3.11-slim", "command": [sys.executable, *command]},
    }
    custom = aiplatform.CustomJob(display_name=name, worker_pool_specs=[pool], base_output_dir=output)
    return aiplatform.HyperparameterTuningJob(
        display_name=name,
        custom_job=custom,
        metric_spec={"accuracy": "maximize"},
        parameter_spec=space,
        **{"max_trial_count": 4, "parallel_trial_count": 2, **fields},
    )


def refused(job, **run):
    try:
        job.run(**run)
    except (exceptions.GoogleAPICallError, RuntimeError) as error:
        return [type(error).__name__, str(error)]
    return job.state.name


search_job = search("search", TRIAL, labels={"team": "x"})
search_job.run(sync=False)
search_job.wait_for_resource_creation()
# --- meanwhile: one whose script never tells its metric, one that is cancelled, those that cannot be
silent = search("silent", "-c", "print('loss=1 step=1')", max_trial_count=1, parallel_trial_count=1)
silent.run(sync=False)
sleeper = search("sleeper", "-c", "import time; time.sleep(300)")
sleeper.run(sync=False)
sleeper.wait_for_resource_creation()
seen["listed"] = [one.display_name for one in aiplatform.HyperparameterTuningJob.list(filter='display_name="sleeper"')]
# Its trials are those that were there when it was read.
while not (again := aiplatform.HyperparameterTuningJob.get(sleeper.resource_name)).trials:
    time.sleep(0.5)
again.cancel()
while (state := again.state.name) not in ("JOB_STATE_CANCELLED", "JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"):
    time.sleep(0.5)
seen["cancelled"] = [state, {trial.state.name for trial in again.trials} == {"INFEASIBLE"}]
again.delete()
try:
    aiplatform.HyperparameterTuningJob.get(sleeper.resource_name)
except exceptions.NotFound as error:
    seen["deleted"] = error.code
seen["bad_enum"] = refused(search("x", "x", search_algorithm="grid"))
seen["unserved"] = refused(search("x", "x"), service_account="me@example.org")
seen["bad_range"] = refused(search("x", "x", space={"x": hpt.DoubleParameterSpec(min=0, max=1, scale="log")}))
gpus = {"accelerator_type": "NVIDIA_TESLA_V100", "accelerator_count": 8}
seen["no_place"] = refused(search("x", "x", machine=gpus))
init(READER)
seen["no_rights"] = refused(search("x", "x"))
init(TOKEN)
try:
    search_job.wait()
    silent.wait()
except RuntimeError as error:
    seen["silent"] = str(error)

reported = aiplatform.HyperparameterTuningJob.get(search_job.resource_name)
trials = [type(trial).to_dict(trial, use_integers_for_enums=False) for trial in reported.trials]
# The textbook's way to the best one:
best = max(
    [trial for trial in reported.trials if trial.final_measurement.metrics],
    key=lambda trial: trial.final_measurement.metrics[0].value,
)
bucket = storage.Client(project="default", credentials=Credentials(token=TOKEN)).bucket("data")
seen["state"] = reported.state.name
seen["labels"] = dict(reported.labels)
seen["trials"] = trials
seen["best"] = {"id": best.id, **{one.parameter_id: one.value for one in best.parameters}}
seen["told"] = json.loads(bucket.blob(f"search/{best.id}/model/told.json").download_as_bytes())
seen["job"] = aiplatform.CustomJob.get(best.custom_job).state.name
print("SEEN " + json.dumps(seen))
