"""Ray Train on all replicas: each of two workers says in which replica it runs."""

import json
import os
import sys
from pathlib import Path

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train() -> None:
    context = ray.train.get_context()
    node = ray.get_runtime_context().get_node_id()
    replica = int(os.environ["TRAINMASTER_INDEX"])
    path = Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / f"worker-{context.get_world_rank()}.json"
    path.write_text(json.dumps({"size": context.get_world_size(), "node": node, "replica": replica}))


if __name__ == "__main__":
    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
    print("trained in", os.environ["RAY_ADDRESS"], flush=True)
    sys.exit(int(sys.argv[1]))
