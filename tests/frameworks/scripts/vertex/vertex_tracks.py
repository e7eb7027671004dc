"""A user's program with Google's unmodified SDK: ``vertex_tracks.py URL TOKEN``; logs to experiments, and reads them
back.
"""

import json
import sys

from google.api_core import exceptions
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

URL, TOKEN, NAME = sys.argv[1:]
EXPERIMENT = f"tracked-{NAME}"
seen = {}


def init(token=TOKEN, **more):
    aiplatform.init(
        project="default",
        location="us-central1",
        staging_bucket="gs://data",
        api_endpoint=URL,
        api_transport="rest" if "://" in URL else "grpc",  # HOST:PORT of a bridge
        credentials=Credentials(token=token),
        **more,
    )


# --- two runs, one resumed, and one that fails
init(experiment=EXPERIMENT, experiment_description="What is tracked")
with aiplatform.start_run("run1"):
    aiplatform.log_params({"lr": 0.1, "epochs": 3, "opt": "sgd"})
    for step in (1, 2, 3):
        aiplatform.log_time_series_metrics({"loss": 1 / step, "zero": 0.0}, step=step)
    aiplatform.log_time_series_metrics({"loss": 0.25})  # the next step
    aiplatform.log_metrics({"accuracy": 0.5})
aiplatform.start_run("run1", resume=True)
aiplatform.log_metrics({"accuracy": 0.75, "f1": 0.5})
aiplatform.end_run()
try:
    with aiplatform.start_run("run2") as run:
        run.log_params({"lr": 0.2})
        int("no number")
except ValueError:
    pass
try:
    aiplatform.start_run("run1")
except exceptions.Conflict as error:
    seen["again"] = error.message

# --- read back
frame = aiplatform.get_experiment_df()
columns = ["run_name", "state", "param.lr", "param.opt", "metric.accuracy", "metric.f1", "time_series_metric.loss"]
seen["frame"] = json.loads(frame.sort_values("run_name")[columns].to_json(orient="records"))
run1 = aiplatform.ExperimentRun("run1", experiment=EXPERIMENT)
seen["series"] = json.loads(run1.get_time_series_data_frame()[["step", "loss", "zero"]].to_json(orient="values"))
seen["run1"] = [run1.state.name, run1.get_params(), run1.get_metrics()]
seen["runs"] = sorted(run.name for run in aiplatform.ExperimentRun.list(experiment=EXPERIMENT))
seen["experiments"] = [one.name for one in aiplatform.Experiment.list() if one.name == EXPERIMENT]
board = aiplatform.Experiment(EXPERIMENT).get_backing_tensorboard_resource()
seen["default"] = [board.display_name.startswith("Default Tensorboard"), board.gca_resource.is_default]

# --- lineage
artifact = aiplatform.Artifact.create(schema_title="system.Dataset", uri="gs://data/digits", display_name="digits")
with aiplatform.start_run("run3"):
    with aiplatform.start_execution(schema_title="system.ContainerExecution", display_name="train") as execution:
        execution.assign_input_artifacts([artifact])
        model = aiplatform.Artifact.create(schema_title="system.Model", display_name="model", metadata={"score": 0.5})
        execution.assign_output_artifacts([model])
    run3 = aiplatform.ExperimentRun("run3", experiment=EXPERIMENT)
    seen["executions"] = [[one.display_name, one.state.name] for one in run3.get_executions()]
    seen["artifacts"] = sorted(one.display_name for one in run3.get_artifacts())
seen["inputs"] = [one.display_name for one in execution.get_input_artifacts()]
seen["outputs"] = [one.display_name for one in execution.get_output_artifacts()]
seen["scored"] = [
    one.display_name
    for one in aiplatform.Artifact.list(filter='metadata.score.number_value > 0.4 AND schema_title="system.Model"')
    if one.resource_name == model.resource_name  # other runs of this script have theirs in this project
]
seen["by_uri"] = [one.display_name for one in aiplatform.Artifact.list(filter='uri="gs://data/digits"')][-1]

# --- TensorBoards
made = aiplatform.Tensorboard.create(display_name=f"board {NAME}", labels={"team": "x"})
made.update(description="It has a description.")
seen["boards"] = [one.display_name for one in aiplatform.Tensorboard.list(filter=f'display_name="board {NAME}"')]
seen["board"] = [aiplatform.Tensorboard(made.resource_name).gca_resource.description, dict(made.gca_resource.labels)]
experiment = aiplatform.TensorboardExperiment.create(
    tensorboard_experiment_id="exp", tensorboard_name=made.resource_name
)
tb_run = aiplatform.TensorboardRun.create(tensorboard_run_id="r", tensorboard_experiment_name=experiment.resource_name)
tb_run.create_tensorboard_time_series(display_name="acc")
tb_run.write_tensorboard_scalar_data({"acc": 0.0}, step=0)
tb_run.write_tensorboard_scalar_data({"acc": float("nan")}, step=1)
tb_run.write_tensorboard_scalar_data({"acc": 0.5}, step=2)
seen["acc"] = [[point.step, repr(point.scalar.value)] for point in tb_run.read_time_series_data()["acc"].values]
seen["tb"] = [
    [one.name for one in aiplatform.TensorboardExperiment.list(tensorboard_name=made.resource_name)],
    [one.name for one in aiplatform.TensorboardRun.list(tensorboard_experiment_name=experiment.resource_name)],
]
made.delete()
try:
    aiplatform.TensorboardRun(tb_run.resource_name)
except exceptions.NotFound as error:
    seen["board_gone"] = error.code

# --- without a TensorBoard, and deleted
init(experiment=f"{EXPERIMENT}-plain", experiment_tensorboard=False)
with aiplatform.start_run("only") as run:
    run.log_metrics({"accuracy": 1})
    try:
        run.log_time_series_metrics({"loss": 1.0})
    except RuntimeError as error:
        seen["no_board"] = str(error)
aiplatform.ExperimentRun("only", experiment=f"{EXPERIMENT}-plain").delete()
aiplatform.Experiment(f"{EXPERIMENT}-plain").delete()
aiplatform.ExperimentRun("run1", experiment=EXPERIMENT).delete(delete_backing_tensorboard_run=True)
seen["left"] = sorted(run.name for run in aiplatform.ExperimentRun.list(experiment=EXPERIMENT))
aiplatform.Experiment(EXPERIMENT).delete(delete_backing_tensorboard_runs=True)
seen["experiments_left"] = [one.name for one in aiplatform.Experiment.list() if one.name.startswith(EXPERIMENT)]

# --- what is refused
try:
    aiplatform.Context.list(filter='shape="round"')
except exceptions.GoogleAPICallError as error:
    seen["bad_filter"] = [type(error).__name__, error.message]
init("tm_wrong")
try:
    aiplatform.Experiment.list()
except exceptions.GoogleAPICallError as error:
    seen["wrong_token"] = type(error).__name__
print("SEEN " + json.dumps(seen))
