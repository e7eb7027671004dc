"""``trainmaster vertex-table``: shown so that it can be edited and given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.sdk.conftest import NOW, make_problem

TABLE = {
    "machines": {"n1-standard-*": {"cpu": 4, "memory": "16Gi"}, "n1-*": None},
    "images": {"*-docker.pkg.dev/vertex-ai/*": "ours:1"},
    "trusts_pickles": False,
}
ENTRIES = [
    {"section": "machines", "name": "n1-standard-*", "value": {"cpu": 4, "memory": "16Gi"}, "source": "stored"},
    {"section": "accelerators", "name": "NVIDIA_TESLA_T4", "value": ["L4", "A10"], "source": "environment"},
    {"section": "machines", "name": "*", "value": {}, "source": "platform"},
]
VIEW: dict[str, Any] = {
    "table": TABLE,
    "entries": ENTRIES,
    "generation": 3,
    "updated_at": NOW.isoformat(),
    "updated_by": "root",
    "warnings": ["It is large."],
}


def test_what_is_shown_can_be_given_back_as_it_is(cli: Any, server: Any, tmp_path: Path) -> None:
    server.on("GET", "/vertex-table", VIEW).on("PUT", "/vertex-table", {**VIEW, "generation": 4})
    shown = cli("vertex-table")
    assert yaml.safe_load(shown.stdout) == {"generation": 3, **TABLE}
    assert list(yaml.safe_load(shown.stdout)["machines"]) == ["n1-standard-*", "n1-*"]
    assert "#   NVIDIA_TESLA_T4: [L4, A10]  # TRAINMASTER_VERTEX" in shown.stdout
    assert "Stored by root" in shown.stderr
    assert "Warning: It is large." in shown.stderr
    file = tmp_path / "table.yaml"
    file.write_text(shown.stdout)
    done = cli("vertex-table", "set", str(file))
    assert "No changes." in done.stderr
    assert server.bodies("PUT", "/vertex-table") == [{"table": TABLE, "generation": 3}]
    assert cli("vertex-table", "set", "-", stdin=shown.stdout).exit_code == 0
    assert server.bodies("PUT", "/vertex-table")[1] == {"table": TABLE, "generation": 3}


def test_changes_are_reported_entry_by_entry(cli: Any, server: Any, tmp_path: Path) -> None:
    after = {**VIEW, "table": {"machines": {"n1-standard-*": {"cpu": 8}, "dgx": {"cpu": 64}}}, "generation": 4}
    server.on("GET", "/vertex-table", VIEW).on("PUT", "/vertex-table", after)
    file = tmp_path / "table.yaml"
    file.write_text("machines: {n1-standard-*: {cpu: 8}, dgx: {cpu: 64}}\n")
    assert "start from `trainmaster vertex-table > FILE`" in cli("vertex-table", "set", str(file)).stderr
    assert server.requests == []
    reported = cli("vertex-table", "set", str(file), "--overwrite")
    assert 'machines.n1-standard-*: {"cpu": 4, "memory": "16Gi"} → {"cpu": 8}\n' in reported.stdout
    assert 'machines.dgx: – → {"cpu": 64}\n' in reported.stdout
    assert 'images.*-docker.pkg.dev/vertex-ai/*: "ours:1" → –\n' in reported.stdout
    assert "trusts_pickles: false → –\n" in reported.stdout
    assert "Generation 4" in reported.stderr
    assert server.bodies("PUT", "/vertex-table")[0]["generation"] == 3


def test_a_concurrent_change_of_another_user_is_reported(cli: Any, server: Any) -> None:
    conflict = make_problem(409, "conflict", "ann stored another table: its generation is 4, and yours was made of 3.")
    server.on("GET", "/vertex-table", VIEW).on("PUT", "/vertex-table", conflict)
    wrong = cli("vertex-table", "set", "-", stdin="generation: 3\nmachines: {}\n")
    assert wrong.exit_code != 0
    assert "ann stored another table" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("generation: 1\nmachines: {a: {}, a: {}}", "twice"),
        ("[1]", "is not a table"),
        ("", "is not a table"),
        ("generation: true", "has no generation"),
        ("a: [", "cannot be read"),
    ],
)
def test_files_that_are_no_table_are_reported_before_anything_is_sent(
    cli: Any, server: Any, text: str, reported: str
) -> None:
    wrong = cli("vertex-table", "set", "-", stdin=text)
    assert wrong.exit_code == 2
    assert reported in wrong.stderr
    assert server.requests == []


def test_a_file_that_is_not_there_is_reported(cli: Any) -> None:
    assert "nofile.yaml cannot be read" in cli("vertex-table", "set", "nofile.yaml").stderr


def test_a_machine_is_tried(cli: Any, server: Any) -> None:
    reported = {
        "machine_type": "n1-standard-4",
        "resources": {"cpu": 4, "memory": "16Gi", "gpus": 2, "gpu_type": ["L4", "A10"]},
        "node_selector": {"pool": "a"},
        "entries": ENTRIES[:2],
        "warnings": ["n1-standard-4 asks for much."],
    }
    server.on("GET", "/vertex-table/machine", reported)
    shown = cli("vertex-table", "try", "n1-standard-4", "--accelerator", "NVIDIA_TESLA_T4", "--count", "2")
    assert "2 (L4 or A10)" in shown.stdout
    assert "pool=a" in shown.stdout
    assert "machines.n1-standard-* (stored), accelerators.NVIDIA_TESLA_T4 (TRAINMASTER_VERTEX)" in shown.stdout
    assert "Warning: n1-standard-4 asks for much." in shown.stderr
    assert dict(server.requests[0].url.params) == {
        "machine_type": "n1-standard-4", "accelerator": "NVIDIA_TESLA_T4", "count": "2",
    }  # fmt: skip
    server.on(
        "GET",
        "/vertex-table/machine",
        {**reported, "resources": {}, "entries": [], "node_selector": {}, "warnings": []},
    )
    assert "nothing: it shares its node" in cli("vertex-table", "try", "n1-standard-4").stdout
    assert "--count goes with --accelerator" in cli("vertex-table", "try", "n1-standard-4", "--count", "2").stderr
