"""``vertex-bridge``: runs the gRPC bridge for Vertex AI's SDK, whose default is gRPC."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse
from trainmaster.contexts import home_path
from trainmaster.errors import LocalFileProblem, NotConfigured, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.vertex_bridge.server import Tls

_PANEL = "Platform"
_LISTEN: Final = "127.0.0.1:8443"
_REQUIRED_PACKAGES: Final = ("grpc", "grpc_health", "google", "requests", "cryptography")
_NOT_INSTALLED: Final = (
    "The bridge needs Google's package: `pip install 'trainmaster[vertex-bridge]'`. REST needs no bridge: "
    'aiplatform.init(api_transport="rest", …), as `trainmaster vertex-env` sets it.'
)


class CannotServe(TrainmasterError):
    """The bridge did not start."""

    code = "cannot_start"


def register(root: typer.Typer) -> None:
    root.command("vertex-bridge", rich_help_panel=_PANEL)(vertex_bridge)


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
