"""MXNet's distributed key-value store; scheduler and servers run this same file and never get past the import."""

import os
import sys
import time

import mxnet as mx

kind = sys.argv[1]
store = mx.kv.create(kind)
shape = (4, 3)
store.init("w", mx.nd.ones(shape))
if "compress" in sys.argv:
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
if kind == "dist_async":
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
store._barrier()
if "die" in sys.argv and store.rank == 1 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
    os._exit(9)
store.push("w", mx.nd.ones(shape) * (store.rank + 1))
value = mx.nd.zeros(shape)
if kind == "dist_sync":
    store.pull("w", out=value)  # the sum over all workers, or nobody gets past this line
else:
    deadline = time.monotonic() + 60
    while value.asnumpy()[0, 0] != 1 - 3 and time.monotonic() < deadline:  # 1 less the gradients of both
        store.pull("w", out=value)
        time.sleep(0.05)
print(f"worker {store.rank} of {store.num_workers} has {value.asnumpy()[0, 0]:g}", flush=True)
