"""The lock files hold every package that the platform declares, at an allowed version and with digests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
LOCKS = ROOT / "requirements"
PACKAGE = re.compile(r"^([a-z0-9][\w.-]*)==([^\s;]+)(.*)", re.MULTILINE)


def locked(*names: str) -> dict[str, set[str]]:
    """Versions by package name: several where they differ by the version of Python."""
    versions: dict[str, set[str]] = {}
    for name in names:
        for package, version, _ in PACKAGE.findall((LOCKS / f"{name}.lock").read_text()):
            versions.setdefault(package, set()).add(version)
    return versions


def declared(folder: str, extra: str | None = None) -> list[Requirement]:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return [Requirement(line) for line in lines if not line.startswith(("trainmaster", "torch"))]


@pytest.mark.parametrize("extra", ["train", "test", "lint", "charts", "tensorboard", "telemetry"])
def test_each_requirement_is_locked_at_versions_that_pyproject_allows(extra: str) -> None:
    versions = locked("platform", extra)
    requirements = [*declared("sdk"), *declared("."), *declared(".", extra)]
    refused = [
        str(need)
        for need in requirements
        if not (found := versions.get(need.name.lower().replace("_", "-")))
        or not all(map(need.specifier.contains, found))
    ]
    assert len(requirements) > 20
    assert refused == []


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.lock")), ids=lambda path: path.stem)
def test_each_locked_package_has_digests(path: Path) -> None:
    entries = re.split(r"^(?=[a-z0-9])", path.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_control_plane_brings_no_framework() -> None:
    assert not {"torch", "tensorflow", "scikit-learn"} & locked("platform", "tensorboard").keys()
