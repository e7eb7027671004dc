"""Every wait ends, and says who is missing."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from trainmaster_train.ps import DeadlineError, Options, ParameterServerError

from tests.unit.train.ps.loopback import WITHIN_S, Cluster, loss_of, step


def test_a_ps_that_is_not_there_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2)
    job.stop(1)

    with pytest.raises(DeadlineError, match=rf"worker 0: ps 1 at {job.addresses[1]} did not come"):
        job.join(join_timeout_s=0.5)
    job.start(1)


def test_without_the_chief_the_others_name_it(cluster: Callable[..., Cluster]) -> None:
    job = cluster(workers=2)

    with pytest.raises(DeadlineError, match=r"it waits for the first values of the chief \(worker 0\)"):
        job.join(1, join_timeout_s=3.0)


def test_a_synchronous_step_names_missing_workers(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(mode="sync"), workers=3)
    model, servers = job.join(0, step_timeout_s=4.0)
    job.join(1)

    with pytest.raises(
        DeadlineError,
        match=r"worker 0's step 0.*within 4 s; it waits for worker 1 \(still computing\), worker 2 \(never came\)",
    ):
        step(model, servers, 1)


def test_an_idle_ps_ends(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(idle_timeout_s=0.1), workers=2)
    job.threads[0].join(WITHIN_S)

    assert str(job.errors[0]) == "ps 0: no worker was there for 0 s; missing: the first values of the chief (worker 0)"


def test_an_address_that_is_taken_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    job.stop(0)
    port = int(job.addresses[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ParameterServerError, match="ps 0 cannot listen at"):
        job.start(0)
    job.start(0)


def test_the_deadline_of_a_lost_ps_holds_too(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    model, servers = job.join(join_timeout_s=1.0)
    loss_of(model, 1).backward()
    job.stop(0)

    with pytest.raises(DeadlineError, match=r"ps 0 at .* did not come, after 1 s of waiting"):
        servers.step()
    job.start(0)
