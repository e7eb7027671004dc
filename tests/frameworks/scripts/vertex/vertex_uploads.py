"""A user's event files with Google's unmodified SDK: ``vertex_uploads.py NAME LOGS SITE…``; names no server, token or
transport.

``SITE``: folders with TensorFlow and TensorBoard, which the SDK wants beside itself.
"""

import json
import sys
import time

NAME, LOGS, *SITES = sys.argv[1:]
sys.path += SITES  # behind the SDK's own packages

import tensorflow as tf  # noqa: E402
from google.api_core import exceptions  # noqa: E402
from google.cloud import aiplatform, storage  # noqa: E402

aiplatform.init(location="us-central1")
seen = {}


def write(run, steps):
    """As Keras' callback does: scalars, histograms, texts, images and a graph."""
    with tf.summary.create_file_writer(f"{LOGS}/{run}").as_default():
        for step in steps:
            tf.summary.scalar("loss", 1 / (step + 1), step=step)
            tf.summary.histogram("weights", [1.0, 2.0, step], step=step)
        tf.summary.text("note", "hello", step=0)
        tf.summary.image("seen", tf.zeros((1, 4, 4, 3)), step=0)
        with tf.Graph().as_default() as graph:
            tf.constant(1.0)
        tf.summary.graph(graph.as_graph_def())


def runs(experiment):
    try:
        name = aiplatform.TensorboardExperiment(experiment, tensorboard_id=board.name).resource_name
    except exceptions.NotFound:  # it is made with its first run
        return []
    return aiplatform.TensorboardRun.list(tensorboard_experiment_name=name)


def until(run):
    deadline = time.monotonic() + 90
    while run not in [one.display_name for one in runs(f"{NAME}-live")]:
        assert time.monotonic() < deadline, f"no run {run}"
        time.sleep(0.5)


board = aiplatform.Tensorboard.create(display_name=f"uploads {NAME}")
write("train", range(3))
aiplatform.upload_tb_log(tensorboard_id=board.name, tensorboard_experiment_name=NAME, logdir=LOGS, verbosity=0)
(run,) = runs(NAME)
retained = run.read_time_series_data()
seen["run"] = run.display_name
seen["loss"] = [[point.step, point.scalar.value] for point in retained["loss"].values]
seen["weights"] = [[point.step, bool(point.tensor.value)] for point in retained["weights"].values]
points = [point for series in retained.values() for point in series.values]
seen["blobs"] = sorted(len(point.blobs.values) for point in points if point.blobs.values)
bucket = storage.Client().bucket(board.gca_resource.blob_storage_path_prefix)
seen["files"] = sum(1 for _ in bucket.list_blobs(prefix=f"tensorboard-{board.name}/{NAME}/"))

# --- while files are written
aiplatform.start_upload_tb_log(tensorboard_id=board.name, tensorboard_experiment_name=f"{NAME}-live", logdir=LOGS)
try:
    until("train")
    write("late", range(2))
    until("late")
finally:
    aiplatform.end_upload_tb_log()
seen["transport"] = board.api_client.transport.kind
print("SEEN " + json.dumps(seen))
