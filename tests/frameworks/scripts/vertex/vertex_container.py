"""A user's containers with Google's unmodified SDK: ``vertex_container.py URL TOKEN IMAGE NAME SCRIPT_IMAGE TASK``;
prints what it saw as JSON.
"""

import json
import sys

from google.cloud import aiplatform, storage
from google.oauth2.credentials import Credentials

URL, TOKEN, IMAGE, NAME, SCRIPT_IMAGE, TASK = sys.argv[1:]
CODE = """
import json, os, sys
told = {
    "read": open("/gcs/data/in.txt").read(),
    "args": sys.argv[1:],
    "env": os.environ["COLOUR"],
    "model_dir": os.environ["AIP_MODEL_DIR"],
    "task": json.loads(os.environ["CLUSTER_SPEC"])["task"]["type"],
    "is_contained": os.path.exists("/.dockerenv"),
}
folder = "/gcs/default/" + os.environ["NAME"]
os.makedirs(folder, exist_ok=True)
with open("%s/%s.json" % (folder, told["task"]), "w") as stream:
    json.dump(told, stream)
os.makedirs(told["model_dir"], exist_ok=True)
with open(told["model_dir"] + told["task"] + ".bin", "wb") as stream:
    stream.write(b"weights")
"""
aiplatform.init(
    project="default",
    location="us-central1",
    staging_bucket="gs://data",
    api_endpoint=URL,
    api_transport="rest" if "://" in URL else "grpc",  # HOST:PORT of a bridge
    credentials=Credentials(token=TOKEN),
)
client = storage.Client(project="default", credentials=Credentials(token=TOKEN))
bucket, own = client.bucket("data"), client.bucket("default")
bucket.blob("in.txt").upload_from_string("from the bucket")
# Of a pre-built image the package is the platform's to install; of another one the SDK's own command installs it there.
local = aiplatform.CustomJob.from_local_script(
    display_name=f"{NAME}-script",
    script_path=TASK,
    credentials=Credentials(token=TOKEN),  # for the upload; those of init() are not used for it
    container_uri=SCRIPT_IMAGE,
    requirements=["six"],
    args=["--epochs", "3"],
    machine_type="n1-standard-8",
    base_output_dir=f"gs://data/scripts/{NAME}",
)
local.run(sync=False)
training = aiplatform.CustomContainerTrainingJob(
    display_name=NAME, container_uri=IMAGE, command=["python3", "-c", CODE]
)
training.run(
    args=["--epochs=2"],
    environment_variables={"COLOUR": "red", "NAME": NAME},
    replica_count=2,
    machine_type="n1-standard-4",
    base_output_dir=f"gs://data/runs/{NAME}",
)
local.wait()
pools = ("workerpool0", "workerpool1")
seen = {
    "script_state": local.state.name,
    "script": json.loads(bucket.blob(f"scripts/{NAME}/model/workerpool0-0.json").download_as_bytes()),
    "state": training.state.name,
    "told": [json.loads(own.blob(f"{NAME}/{pool}.json").download_as_bytes()) for pool in pools],
    "models": sorted(blob.name for blob in bucket.list_blobs(prefix=f"runs/{NAME}/model/")),
}
training.delete()
print("SEEN " + json.dumps(seen))
