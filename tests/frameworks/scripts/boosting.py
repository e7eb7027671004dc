"""XGBoost over two workers, each with half of the rows; rank 0 starts the tracker where the environment says."""

import os
from pathlib import Path

import numpy as np
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker

host, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
rank, world = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
if rank == 0:
    tracker = RabitTracker(n_workers=world, host_ip=host, port=port, sortby="task")
    tracker.start()
with collective.CommunicatorContext(
    dmlc_tracker_uri=host, dmlc_tracker_port=port, dmlc_task_id=str(rank), dmlc_retry=60
):
    assert (collective.get_rank(), collective.get_world_size()) == (rank, world)
    rows = np.random.default_rng(7 + rank).normal(size=(200, 4))
    data = xgb.DMatrix(rows, rows.sum(axis=1) > 0)
    reported = {}
    model = xgb.train(
        {"objective": "binary:logistic", "nthread": 1},
        data,
        num_boost_round=5,
        evals=[(data, "train")],
        evals_result=reported,
        verbose_eval=False,
    )
    print("logloss", reported["train"]["logloss"][-1], flush=True)
    Path(f"/data/output/model-{rank}.json").write_bytes(model.save_raw("json"))
if rank == 0:
    tracker.wait_for()
