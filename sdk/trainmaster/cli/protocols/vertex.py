"""``vertex-env``: Google's SDK for Vertex AI, pointed here."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.errors import LocalFileProblem

_PANEL = "Access"


def register(root: typer.Typer) -> None:
    root.command("vertex-env", rich_help_panel=_PANEL)(vertex_env)


def vertex_env(
    project: options.Project = None,
    location: Annotated[str, typer.Option(help="One of Google's regions; the SDK takes no other.")] = "us-central1",
    bucket: Annotated[
        str | None, typer.Option(help="Where scripts are staged: a volume, or a project, whose own folder it then is.")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a bridge (`trainmaster vertex-bridge`): the SDK then speaks gRPC, its default."
        ),
    ] = None,
    grpc_ca: Annotated[
        Path | None,
        typer.Option("--grpc-ca", help="With --grpc: PEM file of the authority that its certificate is of."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Print the environment in which scripts for Vertex AI run here, unchanged: eval "$(trainmaster vertex-env)".

    It holds your token: it is for a shell of yours, not for a file that others read.
    """
    over_grpc = _over_grpc(grpc, grpc_ca)
    server = session.current().server()
    own = session.project_or_default(project)
    site = str(Path(__file__).parents[1] / "vertex_site")
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
    """What more it takes for gRPC; nothing where REST is meant."""
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
