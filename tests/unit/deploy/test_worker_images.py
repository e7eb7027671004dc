"""The images for jobs install exact versions of all packages: the same commit builds the same again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "worker_images"
DOCKERFILES = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))


def pip_installs(image: str) -> list[str]:
    text = (IMAGES / image / "Dockerfile").read_text().replace("\\\n", "")
    return re.findall(r"pip install [^&;]+", text)


@pytest.mark.parametrize("image", DOCKERFILES)
def test_packages_are_locked_by_digests_but_torch_and_the_users_own(image: str) -> None:
    exceptions = ("--no-build-isolation /tmp/", '"torch==${TORCH_VERSION}+${LABEL}"', "${WITH}")
    free = [command for command in pip_installs(image) if "--require-hashes --no-deps" not in command]
    assert [command for command in free if not any(part in command for part in exceptions)] == []


def test_every_image_with_packages_is_checked() -> None:
    with_packages = {image for image in DOCKERFILES if pip_installs(image)}
    assert with_packages == {"base", "runtime", "serving", "tensorflow", "torch"}


@pytest.mark.parametrize("lock", ["torch/requirements.lock", "tensorflow/cpu.lock", "tensorflow/cuda.lock"])
def test_images_of_frameworks_have_tensorboard(lock: str) -> None:
    assert re.search(r"^tensorboard==", (IMAGES / lock).read_text(), re.MULTILINE)


def test_torch_is_requested_at_one_version() -> None:
    assert re.search(r"^ARG TORCH_VERSION=\d+(\.\d+)+$", (IMAGES / "torch" / "Dockerfile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("lock", sorted(IMAGES.glob("*/*.lock")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_locked_package_has_a_version_and_digests(lock: Path) -> None:
    entries = lock.read_text().replace("\\\n", "").splitlines()[1:]
    assert entries
    assert [entry for entry in entries if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)] == []
