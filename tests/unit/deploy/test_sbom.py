"""The bills of materials: every locked package is in it, with its licence, and what may not be passed on is named."""

from __future__ import annotations

import importlib.util
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sbom() -> Any:
    spec = importlib.util.spec_from_file_location("requirements_sbom", ROOT / "requirements" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_locked_package_is_in_the_bill_of_the_server_with_digests_and_licence(sbom: Any) -> None:
    components = sbom.locked_components(*sbom.LOCKS)
    text = "".join(path.read_text() for path in sbom.LOCKS)
    assert len(components) == sum("==" in line for line in text.splitlines()) > 80
    assert sbom.faults_of(components) == []
    bill = sbom.bill_of("trainmaster-server", components, datetime(2026, 11, 29, tzinfo=UTC))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    pydantic = next(entry for entry in bill["components"] if entry["name"] == "pydantic")
    assert pydantic["purl"].startswith("pkg:pypi/pydantic@")
    assert pydantic["licenses"] == [{"expression": "MIT"}]
    digest = pydantic["externalReferences"][0]["hashes"][0]
    assert digest["alg"] == "SHA-256"
    assert f"sha256:{digest['content']}" in text


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    [
        ("MIT", True), ("Apache-2.0 AND BSD-3-Clause", True), ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False), ("AGPL-3.0-only", False), ("", False),
        ("Apache-2.0 WITH LLVM-exception", True), ("(MIT OR GPL-2.0-only) AND GPL-3.0-only", False),
    ],
)  # fmt: skip
def test_licences_that_may_not_be_passed_on_are_refused(sbom: Any, licence: str, is_allowed: bool) -> None:
    faults = sbom.faults_of([sbom.Component("some", "1.0", "pypi", licence)])
    assert bool(faults) is not is_allowed
    if faults:
        assert faults[0].startswith(f"some 1.0: its licence is {licence or 'unknown'};")


def test_a_licence_is_read_from_what_packages_state(sbom: Any) -> None:
    assert sbom.licence_of("a", "MIT", "GPL", []) == "MIT"
    assert sbom.licence_of("a", "", "", ["License :: OSI Approved :: BSD License"]) == "BSD-3-Clause"
    assert sbom.licence_of("a", "", "Apache 2.0", []) == "Apache-2.0"
    assert sbom.licence_of("a", "", "", ["License :: OSI Approved :: GNU General Public License v3 (GPLv3)"]) == ""
