"""``vertex-env``: Google's SDK for Vertex AI, pointed here."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli import options, output, session

_PANEL = "Access"


def register(root: typer.Typer) -> None:
    root.command("vertex-env", rich_help_panel=_PANEL)(vertex_env)


def vertex_env(
    project: options.Project = None,
    location: Annotated[str, typer.Option(help="One of Google's regions; the SDK takes no other.")] = "us-central1",
    bucket: Annotated[
        str | None, typer.Option(help="Where scripts are staged: a volume, or a project, whose own folder it then is.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Print the environment in which scripts for Vertex AI run here, unchanged: eval "$(trainmaster vertex-env)".

    It holds your token: it is for a shell of yours, not for a file that others read.
    """
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
        "PYTHONPATH": os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if json:
        output.print_json(env)
        return
    for name, value in env.items():
        output.answers().print(f"export {name}={shlex.quote(value)}", soft_wrap=True, markup=False, highlight=False)
