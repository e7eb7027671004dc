"""A user's program with Google's unmodified SDK: ``vertex_client.py URL TOKEN TASK``; prints what it saw as JSON."""

import json
import sys
import time

from google.api_core import exceptions
from google.cloud import aiplatform, storage
from google.oauth2.credentials import Credentials

URL, TOKEN, TASK = sys.argv[1:]
PREBUILT = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"
MACHINE = "n1-standard-4"
seen = {}


def init(token=TOKEN):
    aiplatform.init(
        project="default",
        location="us-central1",
        staging_bucket="gs://data",
        api_endpoint=URL,
        api_transport="rest" if "://" in URL else "grpc",  # HOST:PORT of a bridge
        credentials=Credentials(token=token),
    )


def pool(code, replicas=1, **machine):
    return {
        "machine_spec": {"machine_type": MACHINE, **machine},
        "replica_count": replicas,
        "container_spec": {"image_uri": "python:3.11-slim", "command": ["python3", "-c", code]},
    }


def content(path):
    return json.loads(
        storage.Client(project="default", credentials=Credentials(token=TOKEN))
        .bucket("data")
        .blob(path)
        .download_as_bytes()
    )


init()
# --- a job of its own container, a script with requirements, and a training job of two replicas, all at once
write = "import os; open('/gcs/data/custom.json', 'w').write(repr(os.environ['X']).replace(chr(39), chr(34)))"
first = pool(write)
first["container_spec"]["env"] = [{"name": "X", "value": "from X"}]
custom = aiplatform.CustomJob(display_name="a custom job", worker_pool_specs=[first], labels={"kind": "custom"})
custom.run(sync=False)
local = aiplatform.CustomJob.from_local_script(
    display_name="local script",
    script_path=TASK,
    credentials=Credentials(token=TOKEN),  # for the upload; those of init() are not used for it
    container_uri=PREBUILT,
    requirements=["six"],
    args=["--epochs", "3"],
    base_output_dir="gs://data/local",
)
local.run(sync=False)
training = aiplatform.CustomTrainingJob(
    display_name="training",
    script_path=TASK,
    container_uri=PREBUILT,
    requirements=["six"],
    model_serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-3:latest",
)
model = training.run(
    args=["--epochs", "1"],
    replica_count=2,
    machine_type=MACHINE,
    base_output_dir="gs://data/pipe",
    model_display_name="A model",
    sync=False,
)
# --- meanwhile: one whose time is over, one that is cancelled, one that fails
late = aiplatform.CustomJob(display_name="late", worker_pool_specs=[pool("import time; time.sleep(300)")])
late.run(timeout=2, sync=False)
sleeper = aiplatform.CustomJob(display_name="sleeper", worker_pool_specs=[pool("import time; time.sleep(300)")])
sleeper.submit(timeout=600, restart_job_on_worker_restart=True)
seen["listed"] = [job.display_name for job in aiplatform.CustomJob.list(filter='display_name="sleeper"')]
again = aiplatform.CustomJob.get(sleeper.resource_name)
again.cancel()
while (state := again.state.name) not in ("JOB_STATE_CANCELLED", "JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"):
    time.sleep(0.5)
seen["cancelled"] = state
again.delete()
try:
    aiplatform.CustomJob.get(sleeper.resource_name)
except exceptions.NotFound as error:
    seen["deleted"] = error.code
failing = aiplatform.CustomJob(display_name="failing", worker_pool_specs=[pool("raise SystemExit('no data')")])
try:
    failing.run()
except RuntimeError as error:
    seen["failed"] = str(error)
try:
    aiplatform.CustomJob(display_name="x", worker_pool_specs=[pool("")]).submit(service_account="me@example.org")
except exceptions.GoogleAPICallError as error:
    seen["refused"] = [type(error).__name__, error.message]
# --- large objects go up in pieces
bucket = storage.Client(project="default", credentials=Credentials(token=TOKEN)).bucket("data")
large = bytes(range(256)) * 2**16  # 16 MiB
blob = bucket.blob("large/object.bin", chunk_size=5 * 2**20)
blob.upload_from_string(large, checksum="crc32c")
bucket.blob("large/whole.bin").upload_from_string(large, checksum="md5")
seen["large"] = bucket.blob("large/object.bin").download_as_bytes() == large
seen["objects"] = sorted(each.name for each in bucket.list_blobs(prefix="large/"))
for each in list(bucket.list_blobs(prefix="large/")):
    each.delete()
seen["gone"] = not bucket.blob("large/whole.bin").exists()

try:
    late.wait()
except RuntimeError as error:
    seen["late"] = str(error)
custom.wait()
local.wait()
training.wait()
seen["states"] = [custom.state.name, local.state.name, training.state.name]
seen["custom"] = content("custom.json")
seen["local"] = content("local/model/workerpool0-0.json")
seen["pipe"] = [content(f"pipe/model/workerpool{number}-0.json") for number in (0, 1)]
model.wait()
again = aiplatform.Model(model.resource_name)
seen["model"] = [again.display_name, again.version_id, list(again.version_aliases), again.uri.startswith("gs://")]
seen["models"] = [each.display_name for each in aiplatform.Model.list(filter='display_name="A model"')]
again.versioning_registry.add_version_aliases(["prod"], version="1")
seen["versions"] = [sorted(each.version_aliases) for each in again.versioning_registry.list_versions()]
again.versioning_registry.remove_version_aliases(["prod"], version="1")
again.delete()
seen["models_left"] = [each.display_name for each in aiplatform.Model.list(filter='display_name="A model"')]
seen["pipelines"] = [job.display_name for job in aiplatform.CustomTrainingJob.list()]
training.delete()
seen["pipelines_left"] = [job.display_name for job in aiplatform.CustomTrainingJob.list()]
init("tm_wrong")
try:
    aiplatform.CustomJob.list()
except exceptions.GoogleAPICallError as error:
    seen["wrong_token"] = [type(error).__name__, error.message]
print("SEEN " + json.dumps(seen))
