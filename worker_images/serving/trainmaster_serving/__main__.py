"""``python -m trainmaster_serving``, or this file itself if the package is not installed."""

from __future__ import annotations

import argparse
import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from trainmaster_serving.batch import add_arguments as add_batch_arguments
from trainmaster_serving.batch import run_batch
from trainmaster_serving.errors import ModelProblem
from trainmaster_serving.http_server import serve

_PORT = 8080


def main() -> int:
    options = _options()
    try:
        return run_batch(options) if options.batch else serve(options)
    except ModelProblem as problem:
        # The control loop recognises this prefix (core.domain.jobs.exits): another attempt would end the same way.
        print("batch prediction: %s" % problem if options.batch else str(problem), file=sys.stderr, flush=True)
        return 2


def _options() -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(prog="trainmaster_serving", description=__doc__)
    parser.add_argument("--model", default=env.get("AIP_STORAGE_URI", "/data/data"), help="folder of the model")
    parser.add_argument("--model-file", default="", help="the model's file in the folder; default: found by its name")
    parser.add_argument("--framework", default="auto", choices=("auto", "torch", "sklearn", "tensorflow", "xgboost"))
    parser.add_argument("--trust-code", action="store_true", help="the model's files may run code when they are read")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 (in a container)
    parser.add_argument("--port", type=int, default=int(env.get("AIP_HTTP_PORT") or _PORT))
    parser.add_argument("--health-route", default=env.get("AIP_HEALTH_ROUTE") or "/health")
    parser.add_argument("--predict-route", default=env.get("AIP_PREDICT_ROUTE") or "/predict")
    add_batch_arguments(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
