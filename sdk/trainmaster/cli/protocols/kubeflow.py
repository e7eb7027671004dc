"""``kubeflow-config``: configures Kubeflow's TrainerClient for this platform."""

from __future__ import annotations

from typing import Any

import typer

from trainmaster.cli.terminal import options, output, session

_PANEL = "Access"


def register(root: typer.Typer) -> None:
    root.command("kubeflow-config", rich_help_panel=_PANEL)(kubeflow_config)


def kubeflow_config(project: options.Project = None, json: options.Json = False) -> None:
    """Print a kubeconfig for Kubeflow's TrainerClient, to run its TrainJobs here: trainmaster kubeflow-config > FILE.

    Then `export KUBECONFIG=FILE`. The client's namespace is the project. The file contains your token: keep it private.
    """
    import yaml

    server = session.current().server()
    name = "trainmaster"
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"{server.url.rstrip('/')}/kubernetes"}}],
        "users": [{"name": name, "user": {"token": server.token or ""}}],
        "contexts": [
            {
                "name": name,
                "context": {"cluster": name, "user": name, "namespace": session.project_or_default(project)},
            }
        ],
        "current-context": name,
    }
    if json:
        output.print_json(config)
        return
    text = yaml.safe_dump(config, sort_keys=False)
    output.answers().print(text, end="", soft_wrap=True, markup=False, highlight=False)
