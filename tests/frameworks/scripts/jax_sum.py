"""JAX over several processes; `initialize` is told nothing."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
every = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0]))
print(f"process {jax.process_index()} of {jax.process_count()} sees {every.ravel().tolist()}", flush=True)
