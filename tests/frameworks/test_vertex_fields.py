"""The committed list of the fields of Google's messages is that of the SDKs that there are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks")]

LIST = Path(__file__).parents[1] / "unit" / "api_vertex" / "real_fields.json"
WALK = """
import functools, json, sys
from google.cloud.aiplatform_v1 import types
kinds = {name: functools.reduce(getattr, name.split("."), types) for name in json.loads(sys.argv[1])}
print(json.dumps({name: sorted(kind.pb(kind()).DESCRIPTOR.fields_by_name) for name, kind in kinds.items()}))
"""


def test_the_list_of_fields_is_that_of_both_sdks(python_of: Any) -> None:
    listed = json.loads(LIST.read_text())
    found: dict[str, set[str]] = {name: set() for name in listed}
    for version in ("vertex", "vertex1"):
        command = [python_of(version), "-c", WALK, json.dumps(sorted(listed))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        for name, fields in json.loads(done.stdout).items():
            found[name] |= set(fields)
    assert {name: sorted(fields) for name, fields in found.items()} == listed
