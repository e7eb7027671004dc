"""What the supervisor of an embedded platform tells its children."""

from __future__ import annotations

import pytest

from embedded.supervisor import Supervisor, UpOptions


@pytest.mark.parametrize(
    ("executor", "stated", "expected"),
    [
        ("kubernetes", None, "{home}/output:{home}/data"),
        ("kubernetes", "/srv", None),  # the environment's own is passed on as it is
        ("docker", None, None),
        ("process", None, None),
    ],
)
def test_a_cluster_may_mount_the_platforms_own_two_folders_and_no_others(
    tmp_path, monkeypatch, executor, stated, expected
):
    monkeypatch.delenv("TRAINMASTER_HOST_PATHS", raising=False)
    if stated is not None:
        monkeypatch.setenv("TRAINMASTER_HOST_PATHS", stated)
    supervisor = Supervisor(UpOptions(home=tmp_path, host="127.0.0.1", port=0, executor=executor))
    reported = supervisor._child_env(8765, "http://127.0.0.1:8765", None).get("TRAINMASTER_HOST_PATHS")
    assert reported == (expected and expected.format(home=tmp_path))
