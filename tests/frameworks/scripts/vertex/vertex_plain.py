"""A user's program as it was written for Google's cloud: ``vertex_plain.py TASK`` names no server, token or
transport.
"""

import json
import sys
from types import SimpleNamespace

from google.cloud import aiplatform, storage
from google.cloud.aiplatform import training_jobs
from google.cloud.aiplatform.utils import console_utils

aiplatform.init(location="europe-west4")
job = aiplatform.CustomJob.from_local_script(
    display_name="plain",
    script_path=sys.argv[1],
    container_uri="europe-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest",
    requirements=["six"],
    args=["--epochs", "2"],
)
job.run()
output = job.to_dict()["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
bucket, _, path = output.removeprefix("gs://").partition("/")
reported = storage.Client().bucket(bucket).blob(f"{path}/model/workerpool0-0.json").download_as_bytes()
transport = job.api_client.transport.kind
seen = {"state": job.state.name, "output": output, "told": json.loads(reported), "transport": transport}
# What it prints as links to Google's console, of this job and of others by their names.
seen["links"] = [
    job._dashboard_uri(),
    console_utils.custom_job_console_uri(job.resource_name),
    training_jobs._TrainingJob._dashboard_uri(
        SimpleNamespace(resource_name="projects/p/locations/l/trainingPipelines/t")
    ),
    aiplatform.HyperparameterTuningJob._dashboard_uri(
        SimpleNamespace(resource_name="projects/p/locations/l/hyperparameterTuningJobs/h")
    ),
]
seen["name"] = job.name
print("SEEN " + json.dumps(seen))
