"""The control plane's image installs what the server declares, at pinned versions."""

from __future__ import annotations

import runpy
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def pinned() -> dict[str, str]:
    lines = (ROOT / "deploy" / "images" / "control.lock").read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))


def test_every_dependency_is_pinned_at_a_version_that_pyproject_allows() -> None:
    wanted = runpy.run_path(str(ROOT / "deploy" / "images" / "requirements.py"))["requirements"]()
    versions = {name.replace("_", "-"): version for name, version in pinned().items()}
    refused = [
        line
        for line in wanted
        if not (need := Requirement(line)).specifier.contains(versions.get(need.name.lower(), "0"))
    ]
    assert len(wanted) > 20
    assert refused == []


def test_the_image_brings_no_framework() -> None:
    assert not {"torch", "tensorflow", "scikit-learn"} & pinned().keys()
