"""MXNet 1.9.1's key-value store: one script for workers, servers and scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.conftest import SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),  # two waits of minutes, for a machine that does much else
]


@pytest.mark.parametrize(
    ("arguments", "value"),
    # The sum of both workers' gradients, 1 and 2; of two that are cut to the threshold of 0.5; 1 less the sum.
    [(("dist_sync",), "3"), (("dist_sync", "compress"), "1"), (("dist_async",), "-2")],
    ids="-".join,
)
def test_all_roles_run_one_script_and_end(run: Any, arguments: tuple[str, ...], value: str) -> None:
    job = run("mxnet", SCRIPTS, ["kvstore.py", *arguments], contract="mxnet", workers=2, ps=2)
    job.succeed()
    reported = {f"worker {rank} of 2 has {value}" for rank in (0, 1)}
    # ps-lite gives out its ranks by itself: worker-0 may be its worker 1.
    assert reported <= {*job.log("worker", 0).splitlines(), *job.log("worker", 1).splitlines()}, job.story()


def test_a_dead_worker_that_would_hang_all_others_starts_the_gang_again(run: Any) -> None:
    job = run("mxnet", SCRIPTS, ["kvstore.py", "dist_sync", "die"], contract="mxnet", workers=2, ps=1, max_restarts=1)
    job.succeed()
    first, second = sorted(job.job.attempts(), key=lambda attempt: attempt.number)
    assert first.end.exit_code == 9
    assert sorted(str(replica.state) for replica in first.replicas) == ["failed", "stopped", "stopped", "stopped"]
    assert second.end.kind == "success"
