"""A user's program with Google's unmodified SDK that serves models: ``vertex_serves.py URL TOKEN READER FOLDER REST``;
prints what it saw as JSON. ``FOLDER`` has two scikit-learn models in ``one`` and ``ten``; ``REST``: the platform
itself, where URL is a bridge.
"""

import json
import sys
import urllib.request

from google.api_core import exceptions
from google.cloud import aiplatform, storage
from google.oauth2.credentials import Credentials

URL, TOKEN, READER, FOLDER, REST = sys.argv[1:]
PREBUILT = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-3:latest"
MACHINE = "n1-standard-2"
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


def refused(call):
    try:
        call()
    except (exceptions.GoogleAPICallError, RuntimeError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


init()
bucket = storage.Client(project="default", credentials=Credentials(token=TOKEN)).bucket("default")
bucket.blob("models/ten/model.joblib").upload_from_filename(f"{FOLDER}/ten/model.joblib")
# --- models: of a folder of this machine, and the next version of it of a bucket
model = aiplatform.Model.upload(
    display_name="Sums", artifact_uri=f"{FOLDER}/one", serving_container_image_uri=PREBUILT, labels={"team": "x"}
)
second = aiplatform.Model.upload(
    parent_model=model.resource_name,
    artifact_uri="gs://default/models/ten",
    serving_container_image_uri=PREBUILT,
    is_default_version=False,
    version_aliases=["ten"],
)
seen["model"] = [model.display_name, model.version_id, model.version_aliases, model.labels, model.uri[:5]]
seen["second"] = [second.display_name, second.version_id, second.version_aliases]
seen["same"] = second.resource_name == model.resource_name
# --- what may change of a model, and of one version
model.update(display_name="Sums of two", description="Adds.", labels={"team": "y"})
model.versioning_registry.update_version("2", version_description="Ten times as much.", labels={"factor": "ten"})
changed, other = aiplatform.Model(model.resource_name), aiplatform.Model(model.resource_name, version="2")
seen["changed"] = [changed.display_name, changed.description, changed.labels, changed.version_description]
seen["other"] = [other.display_name, other.version_description, other.labels]
listed = model.api_client.list_operations({"name": model.resource_name}).operations
seen["operations"] = [[one.name.rpartition("/")[2], one.done] for one in listed]
waited = model.api_client.wait_operation({"name": listed[0].name})
# Over gRPC Google's client gives the bytes that came: of this one method it does not read the answer.
seen["waited"] = [
    bool(waited) if isinstance(waited, bytes) else waited.done,
    model.api_client.cancel_operation({"name": listed[0].name}),
]
seen["unknown"] = refused(
    lambda: model.api_client.get_operation({"name": f"{model.resource_name}/operations/upload-77"})
)
# --- a batch prediction, which runs beside the rest
bucket.blob("questions/a.csv").upload_from_string("x,y\n1,2\n3,4.5\nno,number\n")
batch = second.batch_predict(
    job_display_name="ask them all",
    gcs_source="gs://default/questions/a.csv",
    instances_format="csv",
    gcs_destination_prefix="gs://default/answers",
    machine_type=MACHINE,
    sync=False,
)
# --- an endpoint, one model, then another one that takes all the traffic when it is ready
endpoint = aiplatform.Endpoint.create(display_name="sums of mine", labels={"team": "x"})
seen["unready"] = refused(lambda: endpoint.predict(instances=[[1, 2]]))
model.deploy(endpoint=endpoint, deployed_model_display_name="first", machine_type=MACHINE, traffic_percentage=100)
answer = endpoint.predict(instances=[[1, 2], [3, 4.5]])
seen["first"] = [answer.predictions, answer.deployed_model_id, answer.model_version_id]
seen["named"] = answer.model_resource_name == model.resource_name
second.deploy(endpoint=endpoint, deployed_model_display_name="second", machine_type=MACHINE, traffic_percentage=100)
seen["split"] = endpoint.traffic_split
answer = endpoint.predict(instances=[[1, 2]])
seen["then"] = [answer.predictions, answer.deployed_model_id, answer.model_version_id]
endpoint.undeploy(deployed_model_id="first")
seen["left"] = [one.id for one in endpoint.list_models()]
seen["wrong"] = refused(lambda: endpoint.predict(instances=[["no", "numbers"]]))
# What the SDK itself cannot be pointed to here (its raw_predict always asks Google's servers) is an ordinary request.
raw = urllib.request.Request(
    f"{REST}/v1/{endpoint.resource_name}:rawPredict",
    json.dumps({"instances": [[1, 1]]}).encode(),
    {"Authorization": f"Bearer {READER}", "Content-Type": "application/json"},
)
with urllib.request.urlopen(raw, timeout=60) as response:
    seen["raw"] = [json.load(response), response.headers["X-Vertex-AI-Deployed-Model-Id"]]
seen["listed"] = [one.display_name for one in aiplatform.Endpoint.list(filter='labels.team="x"')]
# --- what cannot be: a model whose server ends, what is not served, a token that only reads
broken = aiplatform.Model.upload(
    display_name="broken",
    artifact_uri="gs://default/models/ten",
    serving_container_image_uri="registry.example/mine:1",
    serving_container_command=["sh", "-c", "echo no way; exit 3"],
    serving_container_predict_route="/predict",
    serving_container_health_route="/health",
)
seen["broken"] = refused(lambda: broken.deploy(endpoint=endpoint, machine_type=MACHINE))
seen["still"] = [one.id for one in aiplatform.Endpoint(endpoint.resource_name).list_models()]
seen["scaling"] = refused(lambda: second.deploy(endpoint=endpoint, machine_type=MACHINE, max_replica_count=3))
seen["explained"] = refused(lambda: endpoint.explain(instances=[[1, 2]]))
seen["held"] = refused(model.delete)
init(READER)
reader = aiplatform.Endpoint(endpoint.resource_name)
seen["reader"] = reader.predict(instances=[[1, 1]]).predictions
seen["no_rights"] = refused(lambda: aiplatform.Endpoint.create(display_name="x"))
init()
# --- what the batch came to
batch.wait()
lines = {"predictions": [], "errors": []}
for blob in batch.iter_outputs():
    kind = blob.name.rpartition("/")[2].partition("-")[0]
    if kind in lines:
        lines[kind] += [json.loads(line) for line in blob.download_as_bytes().splitlines()]
seen["batch"] = [batch.state.name, lines["predictions"], [line["instance"] for line in lines["errors"]]]
seen["batches"] = [one.display_name for one in aiplatform.BatchPredictionJob.list()]
batch.delete()
seen["bigquery"] = refused(
    lambda: second.batch_predict(
        job_display_name="x", bigquery_source="bq://a.b.c", gcs_destination_prefix="gs://default/x", sync=True
    )
)
# --- the end
endpoint.delete(force=True)
seen["gone"] = refused(lambda: aiplatform.Endpoint(endpoint.resource_name).list_models())
model.delete()
broken.delete()
seen["models"] = [one.display_name for one in aiplatform.Model.list()]
print("SEEN " + json.dumps(seen, default=lambda one: dict(one) if hasattr(one, "items") else list(one)))
