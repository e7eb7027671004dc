"""What of the bridge for gRPC needs none of Google's packages: its certificate, its command line, and the
environment.
"""

from __future__ import annotations

import json
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from trainmaster.cli.main import app
from trainmaster.vertex_bridge import certificates
from typer.testing import CliRunner

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
NAMES = ["bridge.example", "localhost", "127.0.0.1", "::1"]


def verify(folder: Path, name: x509.GeneralName, at: datetime = NOW) -> Any:
    """As a client that trusts ``ca.pem`` alone does."""
    (authority,) = x509.load_pem_x509_certificates((folder / certificates.CA).read_bytes())
    (server,) = x509.load_pem_x509_certificates((folder / certificates.CERTIFICATE).read_bytes())
    builder = PolicyBuilder().store(Store([authority])).time(at.replace(tzinfo=None))
    return builder.build_server_verifier(name).verify(server, [])


def test_a_client_that_trusts_the_authority_accepts_each_name_and_no_other(tmp_path: Path) -> None:
    import ipaddress

    assert certificates.ensure(tmp_path, NAMES, NOW)
    for name in NAMES[:2]:
        assert verify(tmp_path, x509.DNSName(name))
    for name in NAMES[2:]:
        assert verify(tmp_path, x509.IPAddress(ipaddress.ip_address(name)))
    with pytest.raises(VerificationError):
        verify(tmp_path, x509.DNSName("other.example"))
    with pytest.raises(VerificationError):
        verify(tmp_path, x509.DNSName("localhost"), NOW + timedelta(days=366))


def test_only_the_owner_reads_the_key_and_nobody_keeps_the_authoritys(tmp_path: Path) -> None:
    folder = tmp_path / "bridge"
    certificates.ensure(folder, NAMES, NOW)
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "server.key", "server.pem"]
    assert stat.S_IMODE((folder / certificates.KEY).stat().st_mode) == 0o600
    assert b"PRIVATE" not in (folder / certificates.CA).read_bytes() + (folder / certificates.CERTIFICATE).read_bytes()


def test_a_certificate_is_retained_until_it_fits_no_more(tmp_path: Path) -> None:
    def authority() -> bytes:
        return (tmp_path / certificates.CA).read_bytes()

    certificates.ensure(tmp_path, NAMES, NOW)
    first = authority()
    assert not certificates.ensure(tmp_path, NAMES[::-1], NOW + timedelta(days=300))
    assert authority() == first
    assert certificates.ensure(tmp_path, [*NAMES, "10.0.0.1"], NOW)
    second = authority()
    assert certificates.ensure(tmp_path, [*NAMES, "10.0.0.1"], NOW + timedelta(days=340))
    assert len({first, second, authority()}) == 3
    # One that was cut off in the middle of a renewal: the key is of another certificate.
    key = (tmp_path / certificates.KEY).read_bytes()
    certificates.ensure(tmp_path, NAMES, NOW)
    (tmp_path / certificates.KEY).write_bytes(key)
    assert certificates.ensure(tmp_path, NAMES, NOW)
    (tmp_path / certificates.CA).write_bytes(first)
    assert certificates.ensure(tmp_path, NAMES, NOW)


def run(*arguments: str) -> Any:
    env = {"TRAINMASTER_API_URL": "http://server.test:8765", "TRAINMASTER_TOKEN": "tm_secret"}
    return CliRunner().invoke(app, arguments, env=env)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give --cert and --key, or --self-signed"),
        (("--cert", "a.pem"), "give --cert and --key, or --self-signed"),
        (("--self-signed", "--key", "a.key"), "leave out --cert and --key, or --self-signed"),
        (("--name", "x"), "go with --self-signed"),
        (("--listen", "8443", "--self-signed"), "give HOST:PORT"),
        (("--listen", "localhost:99999", "--self-signed"), "give HOST:PORT"),
        (("--listen", "localhost:²", "--self-signed"), "give HOST:PORT"),
        (("--cert", "absent.pem", "--key", "absent.key"), "absent.pem cannot be read"),
        (("--self-signed", "--name", "grüße.example", "--folder", "here"), "neither a host's name nor an address"),
    ],
)
def test_wrong_use_of_the_bridge_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    from types import ModuleType

    monkeypatch.chdir(tmp_path)
    server: Any = ModuleType("trainmaster.vertex_bridge.server")  # Google's packages need not be here
    server.CannotListen, server.Tls, server.serve = OSError, lambda *_: None, lambda *_, **__: pytest.fail("it serves")
    monkeypatch.setitem(sys.modules, "trainmaster.vertex_bridge.server", server)
    result = run("vertex-bridge", *arguments)
    assert result.exit_code != 0
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_without_the_extra_the_bridge_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trainmaster.vertex_bridge.server", raising=False)
    monkeypatch.delitem(sys.modules, "trainmaster.vertex_bridge.calls", raising=False)
    monkeypatch.setitem(sys.modules, "google.api_core.exceptions", None)
    monkeypatch.setitem(sys.modules, "grpc", None)
    result = run("vertex-bridge", "--self-signed")
    assert result.exit_code != 0
    assert "pip install 'trainmaster[vertex-bridge]'" in result.stderr


def test_the_environment_of_scripts_names_the_bridge_and_its_authority(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("")
    over_rest = json.loads(run("vertex-env", "--json").stdout)
    assert "TRAINMASTER_VERTEX_GRPC" not in over_rest
    env = json.loads(run("vertex-env", "--grpc", "bridge:8443", "--grpc-ca", str(authority), "--json").stdout)
    assert env["TRAINMASTER_VERTEX_GRPC"] == "bridge:8443"
    assert env["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] == str(authority)
    # Files go over REST as ever.
    assert env["API_ENDPOINT_OVERRIDE"] == over_rest["API_ENDPOINT_OVERRIDE"] == "http://server.test:8765"
    with_public = json.loads(run("vertex-env", "--grpc", "bridge:8443", "--json").stdout)
    assert "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" not in with_public


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--grpc", "https://bridge:8443"), "without https://"),
        (("--grpc", "bridge"), "give HOST:PORT"),
        (("--grpc", "bridge:8443", "--grpc-ca", "/absent/ca.pem"), "There is no file /absent/ca.pem"),
        (("--grpc-ca", "ca.pem"), "goes with --grpc"),
    ],
)
def test_wrong_options_of_the_environment_are_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run("vertex-env", *arguments)
    assert result.exit_code != 0
    assert sentence in result.stderr
