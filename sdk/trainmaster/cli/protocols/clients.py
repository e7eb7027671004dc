"""``vertex-env`` and ``kubeflow-config``: configure the SDK for Vertex AI and Kubeflow's client for this platform.
``vertex-bridge``: runs the gRPC bridge for the former, whose default is gRPC.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.contexts import home_path
from trainmaster.errors import LocalFileProblem, NotConfigured, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.vertex_bridge.server import Tls

_PANEL = "Access"
_BRIDGE_PANEL = "Platform"
_LISTEN: Final = "127.0.0.1:8443"
_REQUIRED_PACKAGES: Final = ("grpc", "grpc_health", "google", "requests", "cryptography")
_NOT_INSTALLED: Final = (
    "The bridge needs Google's package: `pip install 'trainmaster[vertex-bridge]'`. REST needs no bridge: "
    'aiplatform.init(api_transport="rest", …), as `trainmaster vertex-env` sets it.'
)


def register(root: typer.Typer) -> None:
    root.command("vertex-env", rich_help_panel=_PANEL)(vertex_env)
    root.command("kubeflow-config", rich_help_panel=_PANEL)(kubeflow_config)
    root.command("vertex-bridge", rich_help_panel=_BRIDGE_PANEL)(vertex_bridge)


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


class CannotServe(TrainmasterError):
    """The bridge did not start."""

    code = "cannot_start"


def vertex_bridge(
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on; port 0 takes any free one.")] = _LISTEN,
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", help="PEM file with the certificate and intermediate certificates."),
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="PEM file with the certificate's key.")] = None,
    self_signed: Annotated[
        bool, typer.Option("--self-signed", help="Create a certificate, and an authority for clients to trust.")
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="With --self-signed: a host name or address of the bridge; default: this machine's."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="With --self-signed: folder of its files; default: vertex-bridge in the data folder."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Serve Vertex AI's gRPC services with TLS for the current server; Ctrl-C stops it.

    The bridge has no token: each call brings its own. Prints the settings for clients.
    """
    if self_signed and (certificate is not None or key is not None):
        raise WrongUse("--self-signed makes a certificate; leave out --cert and --key, or --self-signed.")
    if not self_signed and (names or folder is not None):
        raise WrongUse("--name and --folder go with --self-signed.")
    host = _host_of(listen)
    url = session.current().server().url
    try:
        from trainmaster.vertex_bridge.server import CannotListen, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _REQUIRED_PACKAGES:
            raise
        raise NotConfigured(_NOT_INSTALLED) from error
    if self_signed:
        own = folder or home_path() / "vertex-bridge"
        tls, authority = _made(own, names), own / "ca.pem"
    else:
        tls, authority = _tls_of_files(certificate, key), None
    try:
        serve(url, listen, tls, ready=lambda port: _tell(url, f"{_reached_by(host)}:{port}", authority, as_json=json))
    except CannotListen as error:
        raise CannotServe(str(error)) from error


def _host_of(listen: str) -> str:
    host, colon, port = listen.rpartition(":")
    if not (colon and host and re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 2**16):
        raise WrongUse(f"--listen {listen!r}: give HOST:PORT, such as {_LISTEN} or 0.0.0.0:8443.")
    return host


def _made(folder: Path, names: list[str] | None) -> Tls:
    from trainmaster.vertex_bridge import certificates

    try:
        # The command line reads the clock.
        is_new = certificates.ensure(folder, names or certificates.default_names(), datetime.now(UTC))  # noqa: TID251
    except ValueError as error:
        raise WrongUse(f"--name: one of {', '.join(names or ())} is neither a host's name nor an address.") from error
    except OSError as error:
        raise LocalFileProblem(f"The certificate cannot be kept in {folder}: {error.strerror}.") from error
    if is_new:
        output.note(f"A new certificate lies in {folder}; clients trust it by its {certificates.CA}.")
    return _tls_of_files(folder / certificates.CERTIFICATE, folder / certificates.KEY)


def _tls_of_files(certificate: Path | None, key: Path | None) -> Tls:
    from trainmaster.vertex_bridge.server import Tls

    if certificate is None or key is None:
        raise WrongUse("gRPC means TLS to Google's SDK: give --cert and --key, or --self-signed.")
    try:
        return Tls(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise LocalFileProblem(f"{error.filename} cannot be read: {error.strerror}.") from error


def _reached_by(host: str) -> str:
    """The host for clients on this machine: wildcard addresses cannot be connected to."""
    return "localhost" if host.strip("[]") in ("0.0.0.0", "::", "127.0.0.1", "::1") else host  # noqa: S104 (compared)


def _tell(url: str, address: str, authority: Path | None, *, as_json: bool) -> None:
    trusted = None if authority is None else str(authority.absolute())
    if as_json:
        output.print_json({"address": address, "ca": trusted, "api": url})
        sys.stdout.flush()
        return
    command = f"trainmaster vertex-env --grpc {address}" + (f" --grpc-ca {shlex.quote(trusted)}" if trusted else "")
    output.print_pairs([("Bridge", address), ("Platform", url), ("Scripts", f'eval "$({command})"')])
    output.note("Ready. Stop with Ctrl-C.")
