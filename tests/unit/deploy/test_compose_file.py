"""What docker-compose.yml tells the control plane, as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from core.settings import Settings

ROOT = Path(__file__).parents[3]
ENVIRONMENT: dict[str, str] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-control"]["environment"]


def test_jobs_may_mount_the_volumes_and_not_the_folder_of_the_keys() -> None:
    default = ENVIRONMENT["TRAINMASTER_HOST_PATHS"]
    assert default == "${TRAINMASTER_HOST_PATHS:-${TRAINMASTER_DATA}/output:${TRAINMASTER_DATA}/data}"


def test_there_is_no_instance_that_all_installations_share() -> None:
    assert ENVIRONMENT["TRAINMASTER_INSTANCE"].startswith("${TRAINMASTER_INSTANCE:?")
    assert 'keep TRAINMASTER_INSTANCE "trainmaster-$(random 3)"' in (ROOT / "deploy/compose/configure").read_text()


def test_what_may_be_chosen_in_env_reaches_the_platform_and_its_defaults_are_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = ("DOCKER_GPUS", "JOB_UID", "JOB_GID", "NODE_GRACE_S")
    for name in chosen:
        default = re.fullmatch(rf"\$\{{TRAINMASTER_{name}:-(.*)\}}", ENVIRONMENT[f"TRAINMASTER_{name}"])
        assert default is not None, name
        monkeypatch.setenv(f"TRAINMASTER_{name}", default[1])
    settings = Settings()
    assert (settings.docker_gpus, settings.job_uid, settings.job_gid, settings.node_grace_s) == ("", 1000, 1000, 60)
