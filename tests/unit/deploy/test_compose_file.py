"""What docker-compose.yml tells the control plane, as it is written."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
ENVIRONMENT: dict[str, str] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-control"]["environment"]


def test_jobs_may_mount_the_volumes_and_not_the_folder_of_the_keys() -> None:
    default = ENVIRONMENT["TRAINMASTER_HOST_PATHS"]
    assert default == "${TRAINMASTER_HOST_PATHS:-${TRAINMASTER_DATA}/output:${TRAINMASTER_DATA}/data}"


def test_there_is_no_instance_that_all_installations_share() -> None:
    assert ENVIRONMENT["TRAINMASTER_INSTANCE"].startswith("${TRAINMASTER_INSTANCE:?")
    assert 'keep TRAINMASTER_INSTANCE "trainmaster-$(random 3)"' in (ROOT / "deploy/compose/configure").read_text()
