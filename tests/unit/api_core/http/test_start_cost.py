"""What an API process loads before its first request."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["authlib", "optuna", "tensorboard", "torch"])
def test_the_api_starts_without_what_few_requests_need(package: str) -> None:
    code = f"import sys, api.app.factory; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
