"""``kubeflow-config``: a kubeconfig for Kubeflow's client."""

from __future__ import annotations

import json

import pytest
import yaml
from trainmaster.cli.main import app
from typer.testing import CliRunner


def test_the_kubeconfig_points_to_the_platform_with_the_users_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_URL", "https://lab.example:8765/")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_secret")
    printed = CliRunner().invoke(app, ["kubeflow-config", "--project", "vision"])
    assert printed.exit_code == 0, printed.output
    config = yaml.safe_load(printed.stdout)
    assert config["clusters"][0]["cluster"] == {"server": "https://lab.example:8765/kubernetes"}
    assert config["users"][0]["user"] == {"token": "tm_secret"}
    context = config["contexts"][0]
    assert context["context"] == {
        "cluster": config["clusters"][0]["name"],
        "user": config["users"][0]["name"],
        "namespace": "vision",
    }
    assert config["current-context"] == context["name"]
    as_json = CliRunner().invoke(app, ["kubeflow-config", "--project", "vision", "--json"])
    assert json.loads(as_json.stdout) == config
