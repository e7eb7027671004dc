"""Providers of the settings: each mistake names the field, and no secret is in a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.app.factory import create_app
from api.oidc.providers import OidcProvider, read_providers
from core.settings import BadSettings, Settings

GOOD: dict[str, Any] = {"name": "lab", "issuer": "https://login.test/realm", "client_id": "trainmaster"}


def read(text: str) -> list[OidcProvider]:
    return list(read_providers(Settings(oidc_providers=SecretStr(text))).values())


def test_several_providers_from_text_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    entries = [GOOD, {**GOOD, "name": "other", "label": "Other", "client_secret_file": str(tmp_path / "secret")}]
    (tmp_path / "providers.json").write_text(json.dumps(entries))
    for text in (json.dumps(entries), str(tmp_path / "providers.json")):
        lab, other = read(text)
        assert (lab.title, lab.client_secret, other.title) == ("lab", None, "Other")
        assert other.client_secret is not None
        assert other.client_secret.get_secret_value() == "hush"
        assert "hush" not in repr(other)
    assert read("") == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"issuer": "http://login.test"}, "provider 1 (lab), issuer: 'http://login.test' must begin with https://"),
        ({"issuer": "https://login.test/?a=b"}, "issuer: must have no query"),
        ({"issuer": None}, "issuer: "),
        ({"client_id": ""}, "client_id: "),
        ({"name": "The Lab"}, "name: "),
        ({"scopes": ["email"]}, 'scopes: must contain "openid"'),
        ({"allowed_domains": ["@test.org"]}, "allowed_domains.0: '@test.org' is not a domain"),
        ({"groups": [{"group": "a", "project": "p"}]}, "groups.0: state project and role together"),
        ({"groups": [{"group": "a"}]}, "groups.0: state either project and role"),
        ({"groups": [{"group": "a", "project": "p", "role": "owner"}]}, "groups.0.role: "),
        (
            {"groups": [{"group": "a", "isadmin": True}]},
            "groups.0.isadmin: there is no such field; did you mean is_admin?",
        ),
        ({"client_secrets": "hush"}, "client_secrets: there is no such field; did you mean client_secret"),
        ({"client_secret": "hush", "client_secret_file": "/x"}, "state client_secret or client_secret_file, not both"),
        ({"client_secret_file": "/no/such/file"}, "client_secret_file: /no/such/file cannot be read"),
        ({"client_secret": {"hush": 1}}, "client_secret: "),
        ({"session_days": 365}, "session_days: "),
    ],
)
def test_a_mistake_names_the_field_and_the_platform_does_not_start(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    text = SecretStr(json.dumps([{name: value for name, value in (GOOD | changes).items() if value is not None}]))
    with pytest.raises(BadSettings) as caught:
        create_app(Settings(home=tmp_path, oidc_providers=text, secret_key=SecretStr("k" * 40)))
    assert str(caught.value).startswith("TRAINMASTER_OIDC_PROVIDERS cannot be used: ")
    assert why in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("text", ["[", "{}", "[1]", "/no/such/file", json.dumps([GOOD, GOOD])])
def test_no_list_of_different_providers(text: str) -> None:
    with pytest.raises(BadSettings, match="TRAINMASTER_OIDC_PROVIDERS"):
        read(text)


def test_a_provider_on_this_machine_needs_no_https() -> None:
    (lab,) = read(json.dumps([GOOD | {"issuer": "http://127.0.0.1:9000"}]))
    assert lab.issuer == "http://127.0.0.1:9000"


def test_the_settings_do_not_show_secrets() -> None:
    assert "hush" not in repr(Settings(oidc_providers=SecretStr(json.dumps([GOOD | {"client_secret": "hush"}]))))
