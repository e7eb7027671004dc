"""A bundle is installed in a network namespace of its own, where nothing but this machine is reachable; a job runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

BUNDLE = os.environ.get("TRAINMASTER_TEST_BUNDLE", "")
SCRIPT = """
set -eu
ip link set lo up
! python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), timeout=3)' 2>/dev/null
sh "$1/trainmaster/install.sh" "$1/venv"
export HOME="$1" TRAINMASTER_HOME="$1/home" TRAINMASTER_API_URL=http://127.0.0.1:18765
trap '"$1/venv/bin/trainmaster" down' EXIT
"$1/venv/bin/trainmaster" up --port 18765 --detach
mkdir "$1/project"
cd "$1/project"
echo 'print("trained", 6 * 7)' >train.py
"$1/venv/bin/trainmaster" run -- python train.py
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not BUNDLE, reason="TRAINMASTER_TEST_BUNDLE names no bundle (python3 dev.py bundle FILE)"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


def test_a_job_runs_where_there_is_no_network(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with tarfile.open(BUNDLE) as archive:
        archive.extractall(tmp_path, filter="data")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINMASTER_", "PYTHON"))}
    command = ["unshare", "--net", "sh", "-c", SCRIPT, "sh", str(tmp_path)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained 42" in done.stdout
    damaged = tmp_path / "trainmaster" / "LICENSE"
    damaged.write_text("nothing")
    refused = subprocess.run(
        ["sh", str(tmp_path / "trainmaster" / "install.sh"), str(tmp_path / "again")],
        env=clean, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "The bundle is damaged" in refused.stderr
    assert not (tmp_path / "again").exists()
