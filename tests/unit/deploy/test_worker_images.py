"""The images for jobs name an exact version of each package that they ask for: the same commit builds the same
again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "worker_images"
# A package and what stands behind it: "numpy>=2", "${PACKAGE}==${TENSORFLOW_VERSION}".
REQUEST = re.compile(r'"([\w${}-]+)((?:[=<>~!]=?)[^"]+)"')


@pytest.mark.parametrize(("image", "least"), [("torch", 1), ("tensorflow", 3)])
def test_every_package_is_requested_at_one_version(image: str, least: int) -> None:
    text = (IMAGES / image / "Dockerfile").read_text()
    versions = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    requested = REQUEST.findall(text)
    assert len(requested) >= least
    for package, behind in requested:
        names = re.findall(r"\$\{(\w+)\}", behind)
        assert re.fullmatch(r"==(\$\{\w+\}\+?)+", behind), f"{package}{behind} is no one version"
        stated = [versions[name] for name in names if name in versions]
        assert stated, f"{package}: nothing states {behind}"
        assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in stated)
