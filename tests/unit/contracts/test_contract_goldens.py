"""The whole of what every replica gets, literally; regenerate.py writes the files, a person reads the difference."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_replica_is_started_with_exactly_the_golden_values(golden_case, render_case):
    assert render_case(golden_case) == golden_case["rendered"]


def test_rendering_twice_gives_the_same(golden_case, render_case):
    assert render_case(golden_case) == render_case(golden_case)


def test_golden_jobs_have_one_two_or_eight_replicas(golden_case):
    assert len(golden_case["layout"]) in (1, 2, 8)
    assert len(golden_case["rendered"]) == len(golden_case["layout"])


def test_the_documentation_names_every_variable(golden_case):
    text = (Path(__file__).parents[3] / "docs" / "contracts.md").read_text()
    for replica in golden_case["rendered"].values():
        own = {name for process in replica["process_env"] for name in process} | set(replica["env"])
        assert not {name for name in own if not re.search(rf"\b{name}\b", text)}
