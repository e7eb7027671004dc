"""``vertex-env`` and ``kubeflow-config``: configure the SDK for Vertex AI and Kubeflow's client for this platform."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.errors import LocalFileProblem

_PANEL = "Access"


def register(root: typer.Typer) -> None:
    root.command("vertex-env", rich_help_panel=_PANEL)(vertex_env)
    root.command("kubeflow-config", rich_help_panel=_PANEL)(kubeflow_config)


def vertex_env(
    project: options.Project = None,
    location: Annotated[str, typer.Option(help="A Google Cloud region; the SDK accepts no others.")] = "us-central1",
    bucket: Annotated[
        str | None, typer.Option(help="Staging bucket for scripts: a volume, or a project (its folder).")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a bridge (`trainmaster vertex-bridge`): the SDK then speaks gRPC, its default."
        ),
    ] = None,
    grpc_ca: Annotated[
        Path | None,
        typer.Option("--grpc-ca", help="With --grpc: PEM file of the certificate's authority."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Print environment variables with which scripts for Vertex AI run here unchanged: eval "$(trainmaster
    vertex-env)".

    They contain your token: do not save them in a file that others can read.
    """
    over_grpc = _over_grpc(grpc, grpc_ca)
    server = session.current().server()
    own = session.project_or_default(project)
    site = str(Path(__file__).parents[2] / "vertex_site")
    url = server.url.rstrip("/")
    env = {
        "TRAINMASTER_API_URL": url,
        "TRAINMASTER_TOKEN": server.token or "",
        "TRAINMASTER_VERTEX_STAGING": f"gs://{bucket or own}",
        "GOOGLE_CLOUD_PROJECT": own,
        "GOOGLE_CLOUD_REGION": location,
        "API_ENDPOINT_OVERRIDE": url,  # of google-cloud-storage: unlike STORAGE_EMULATOR_HOST it keeps the credentials
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # gcsfs would wait for a minute for Google's own servers
        **over_grpc,
        "PYTHONPATH": os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if json:
        output.print_json(env)
        return
    for name, value in env.items():
        output.answers().print(f"export {name}={shlex.quote(value)}", soft_wrap=True, markup=False, highlight=False)


def _over_grpc(address: str | None, authority: Path | None) -> dict[str, str]:
    """Additional variables for gRPC; none for REST."""
    if address is None:
        if authority is not None:
            raise WrongUse("--grpc-ca goes with --grpc HOST:PORT.")
        return {}
    if not re.fullmatch(r"[^\s/]+:[0-9]{1,5}", address):
        raise WrongUse(f"--grpc {address!r}: give HOST:PORT, without https://; `trainmaster vertex-bridge` prints it.")
    if authority is None:
        return {"TRAINMASTER_VERTEX_GRPC": address}
    if not authority.is_file():
        raise LocalFileProblem(f"There is no file {authority}; `trainmaster vertex-bridge --self-signed` names it.")
    return {
        "TRAINMASTER_VERTEX_GRPC": address,
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.absolute()),  # of grpc: instead of the roots that it brings
    }


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
