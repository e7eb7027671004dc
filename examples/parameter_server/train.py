"""Trains on the digits with parameter servers: asynchronous SGD. The same script runs in every replica; its role says
what it does.

Any number of ps (at least 1) and workers, as TRAINMASTER_LAYOUT or TF_CONFIG lists them.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import sys

import trainmaster_train as tm
from wire import Refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1000, help="gradients applied in all, of all workers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--max-staleness", type=int, default=64, help="a gradient that is staler is dropped")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="UPDATES")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="a worker rests this long after each step")
    options = parser.parse_args()
    context = tm.current()
    servers = context.peers.get("ps", ())
    if not servers:
        sys.exit(
            "no ps in TRAINMASTER_LAYOUT or TF_CONFIG: give the job `ps: 1` (README.md shows how to start by hand)."
        )
    key = job_key(context)
    try:
        if context.role == "ps":
            serve(context, servers, key, options)
        else:
            work(context, servers, key, options)
    except (Refused, OSError, tm.CheckpointError) as error:
        sys.exit(f"{context.role}-{context.index}: {error}.")


def serve(context: tm.Context, servers: tuple[str, ...], key: bytes, options: argparse.Namespace) -> None:
    from server import serve
    from shard import Shard

    shard = Shard(
        context.index, len(servers), lr=options.lr, momentum=options.momentum, max_staleness=options.max_staleness
    )
    serve(shard, servers[context.index], key)


def work(context: tm.Context, servers: tuple[str, ...], key: bytes, options: argparse.Namespace) -> None:
    import torch  # here, so that a ps needs no torch
    from worker import ParameterServers, train

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    train(context, ParameterServers(servers, key, worker=context.rank or 0), options)


def job_key(context: tm.Context) -> bytes:
    """The key that all replicas of this attempt share and nobody else knows: made from the attempt's token, or from
    PS_KEY when there is no platform.
    """
    secret = os.environ.get("PS_KEY", "")
    if context.token_file is not None and context.token_file.exists():
        secret = context.token_file.read_text().strip()
    if not secret:
        sys.exit("no key: outside the platform set PS_KEY to the same long random text for every process.")
    return hmac.new(secret.encode(), b"trainmaster example parameter server", hashlib.sha256).digest()


if __name__ == "__main__":
    main()
