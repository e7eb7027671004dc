"""Samples per second of TensorFlow's ParameterServerStrategy with 1 ps and 2 workers: the peer of parameter-server
training.

    python3 dev.py frameworks tf && python3 dev.py bench tensorflow_ps [--rounds 5]

Two models with made-up data: an MLP of 10 million parameters, and an embedding of 50 million before a small MLP. The
loop is the one of TensorFlow's own guide: a ClusterCoordinator schedules steps, whichever worker is free runs them, and
whole variables live on the ps in turn. Each process computes with one thread. Another benchmark may ask ``measure`` for
a model of its own. https://www.tensorflow.org/tutorials/distribute/parameter_server_training
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.support import free_ports


@dataclass(frozen=True)
class Training:
    """What is trained. ``sizes``: the layers of an MLP, input first. With ``rows`` there is an embedding of ``rows`` ×
    ``dim`` before it, of which each sample looks up ``ids`` rows; their mean is the MLP's input, so ``sizes[0] ==
    dim``.

    ``batch``: samples of one step of one worker. ``warmup`` steps are not timed.
    """

    sizes: tuple[int, ...]
    batch: int
    steps: int
    warmup: int
    rows: int = 0
    dim: int = 0
    ids: int = 1
    optimizer: str = "sgd"
    lr: float = 0.02
    threads: int = 1


MODELS = {
    "MLP of 10 M parameters": Training((784, 3072, 2432, 10), batch=64, steps=40, warmup=8),
    "embedding of 50 M parameters": Training(
        (64, 64, 10), batch=256, steps=80, warmup=16, rows=781_250, dim=64, ids=16
    ),
}


def measure(python: Path, training: Training, *, workers: int, servers: int, timeout_s: float = 600) -> float:
    """Samples per second over all workers, training with ``servers`` ps on this machine.

    Raises:
        RuntimeError: a process failed; the message holds the end of the chief's output.
    """
    counts = {"chief": 1, "worker": workers, "ps": servers}
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items()}
    started: list[subprocess.Popen[str]] = []
    try:
        for role in ("ps", "worker", "chief"):
            for index in range(counts[role]):
                task = {"cluster": cluster, "task": {"type": role, "index": index}}
                env = {
                    **os.environ,
                    "TF_CONFIG": json.dumps(task),
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "CUDA_VISIBLE_DEVICES": "",
                }
                output = subprocess.PIPE if role == "chief" else subprocess.DEVNULL
                command = [str(python), __file__, json.dumps(asdict(training))]
                started.append(subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, text=True))
        output, _ = started[-1].communicate(timeout=timeout_s)
        if started[-1].returncode != 0:
            raise RuntimeError(f"TensorFlow's chief ended with {started[-1].returncode}:\n{output[-2000:]}")
        found: float = json.loads(output.strip().splitlines()[-1])["samples_per_s"]
        return found
    finally:
        for process in started:  # workers and ps serve for ever
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def play(training: Training) -> None:
    """The part of this process in the training, as TF_CONFIG says."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the Keras whose `fit` works with ps, too
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(training.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, training.threads))
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type != "chief":
        tf.distribute.Server(
            cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id, protocol="grpc"
        ).join()
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.random.normal([training.rows, training.dim], stddev=0.05)) if training.rows else None
        layers = [
            (tf.Variable(tf.random.normal([inside, outside], stddev=inside**-0.5)), tf.Variable(tf.zeros([outside])))
            for inside, outside in pairwise(training.sizes)
        ]
        kinds = {"adam": tf.keras.optimizers.Adam, "sgd": tf.keras.optimizers.SGD}
        optimizer = kinds[training.optimizer](training.lr)
    variables = [*([table] if training.rows else []), *(variable for layer in layers for variable in layer)]
    with strategy.scope():
        optimizer.build(variables)

    def batches(_context: Any) -> Any:
        size = training.batch
        if training.rows:
            inputs = tf.random.uniform([8, size, training.ids], maxval=training.rows, dtype=tf.int64, seed=7)
        else:
            inputs = tf.random.normal([8, size, training.sizes[0]], seed=7)
        labels = tf.random.uniform([8, size], maxval=training.sizes[-1], dtype=tf.int64, seed=7)
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().prefetch(2)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.reduce_mean(tf.nn.embedding_lookup(table, inputs), axis=1) if training.rows else inputs
            for number, (weights, bias) in enumerate(layers):
                hidden = tf.matmul(hidden, weights) + bias
                if number < len(layers) - 1:
                    hidden = tf.nn.relu(hidden)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def scheduled(iterator: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=next(iterator)), axis=None)

    data = coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(batches))
    iterator = iter(data)
    for _ in range(training.warmup):
        coordinator.schedule(scheduled, args=(iterator,))
    coordinator.join()
    began_s = time.perf_counter()
    for _ in range(training.steps):
        coordinator.schedule(scheduled, args=(iterator,))
    coordinator.join()
    wall_s = time.perf_counter() - began_s
    print(json.dumps({"samples_per_s": training.steps * training.batch / wall_s}), flush=True)
    os._exit(0)  # its teardown may take long, and the result is out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    python = Path(__file__).resolve().parents[2] / ".frameworks" / "tf" / "bin" / "python"
    if not python.exists():
        sys.exit(f"no {python}: make it with `python3 dev.py frameworks tf`.")
    rates: dict[str, list[float]] = {name: [] for name in MODELS}
    for _ in range(options.rounds):
        for name, training in MODELS.items():
            rates[name].append(measure(python, training, workers=2, servers=1))
    for name, found in rates.items():
        print(f"{name}: median {statistics.median(found):.0f} samples/s ({min(found):.0f} – {max(found):.0f})")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):  # one process of the training
        arguments = json.loads(sys.argv[1])
        play(Training(**{**arguments, "sizes": tuple(arguments["sizes"])}))
    else:
        main()
