"""A job whose output volume is full waits until there is room, and goes on; a small real file system is filled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stories import story_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WRITER = "open('/data/output/model.bin', 'wb').write(bytes(8 << 20)); print('written')"


@pytest.fixture
def small_volume(platform: Any, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Name and root of a registered volume of 16 MiB."""
    root = tmp_path / "small"
    root.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no file system be mounted")
    try:
        platform.client.create_volume("small", root=str(root), grants=[{"grantee": "everyone", "access": "write"}])
        yield "small", root
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_full_output_volume_is_waited_for_and_not_counted(
    platform: Any, small_volume: tuple[str, Path], eventually: Any
) -> None:
    name, root = small_volume
    filler = root / "filler"
    filler.write_bytes(bytes(12 << 20))
    command = [sys.executable, "-c", WRITER]
    job = platform.client.submit({"name": "writer", "command": command, "max_restarts": 0, "output": f"{name}/job"})

    def backoff() -> Any:
        reason = job.detail().wait_reason
        return reason if reason is not None and reason.code == "backoff" else None

    reason = eventually(backoff, within_s=60, what="it waits for room")
    assert "volume small has no room" in reason.sentence, story_of(job)
    assert "Starts again at" in reason.sentence
    eventually(lambda: job.detail().attempt_count == 2, within_s=60, what="a second attempt, of none allowed")
    filler.unlink()
    detail = job.wait(timeout_s=150)

    assert detail.state == "succeeded", story_of(job)
    assert detail.restart_count == 0
    assert (root / "job" / "model.bin").stat().st_size == 8 << 20
