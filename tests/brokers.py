"""A database of a shared Redis server for one test alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import SystemRandom
from urllib.parse import urlsplit

import pytest
import redis


@contextmanager
def empty_broker(server_url: str, *, claim_s: int = 300) -> Iterator[str]:
    """The URL of one that nobody else uses now; only that one is emptied. Skips where all are in use.

    Args:
        claim_s: how long a killed test keeps it from others; longer than the test takes to write its first message.
    """
    numbers = list(range(1, 16))
    SystemRandom().shuffle(numbers)
    for number in numbers:
        # The URL's own number would win over an argument.
        url = urlsplit(server_url)._replace(path=f"/{number}").geturl()
        database = redis.Redis.from_url(url)
        # An empty database that takes our claim is ours.
        if database.dbsize() == 0 and database.set("trainmaster-test", os.getpid(), nx=True, ex=claim_s):
            break
        database.close()
    else:
        pytest.skip("all databases of the Redis server are in use")
    yield url
    database.flushdb()
    database.close()
