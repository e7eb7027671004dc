"""A platform and a certified provider (`oidc-provider` of npm) as separate processes."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
USERS: dict[str, dict[str, Any]] = {
    "u-1": {"preferred_username": "ann", "email": "ann@example.com", "email_verified": True, "groups": ["ml"]},
    "u-2": {"preferred_username": "eve", "email": "eve@elsewhere.test", "email_verified": True, "groups": ["ops"]},
}


@dataclass
class Stage:
    """``url``: the platform's."""

    platform: Any
    issuer: str
    users: Path
    clients: list[httpx.Client] = field(default_factory=list)  # to be closed

    @property
    def url(self) -> str:
        url: str = self.platform.url
        return url

    def change_groups(self, user: str, groups: list[str]) -> None:
        users = json.loads(self.users.read_text())
        users[user]["groups"] = groups
        self.users.write_text(json.dumps(users))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def provider_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Node, and a folder with the provider and its packages. Skips where they cannot be had."""
    build = runpy.run_path(str(ROOT / "web/build.py"))
    node = build["find_node"]()
    if node is None:
        pytest.skip("there is no Node 20.19 or newer on this machine (apt-get install nodejs npm)")
    folder = tmp_path_factory.mktemp("provider")
    for name in ("package.json", "package-lock.json", "provider.js"):
        shutil.copy(HERE / name, folder)
    binary, script = node
    npm = [str(binary), str(script)] if script is not None else ["npm"]
    options = ["ci", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1"]
    made = subprocess.run([*npm, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if made.returncode != 0:
        pytest.skip(f"npm could not install oidc-provider: {made.stderr[-300:]}")
    return binary, folder


@pytest.fixture(scope="module")
def stage(provider_folder: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    e2e = importlib.import_module("tests.e2e.conftest")
    node, folder = provider_folder
    port, own_port = free_port(), free_port()
    users = folder / "users.json"
    users.write_text(json.dumps(USERS))
    grants = ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"]
    common = {"grant_types": grants, "response_types": ["code"]}
    page = f"http://127.0.0.1:{own_port}/login"
    secret = folder / "secret"
    secret.write_text("hush: 100%+\n")
    clients = [
        {"client_id": "trainmaster", "client_secret": "hush: 100%+", "redirect_uris": [f"{page}/lab"], **common},
        {
            "client_id": "public",
            "token_endpoint_auth_method": "none",
            "redirect_uris": [f"{page}/staff"],
            **common,
        },
    ]
    settings = {"port": port, "clients": clients, "users": str(users)}
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(node), "provider.js", json.dumps(settings)], cwd=folder, stdout=subprocess.PIPE, stderr=out
        )
    try:
        assert process.stdout is not None
        issuer = process.stdout.readline().decode().strip()
        assert issuer, (folder / "out").read_text()
        provider = {"name": "lab", "label": "The lab", "issuer": issuer, "client_id": "trainmaster"}
        providers = [
            {
                **provider,
                "client_secret_file": str(secret),
                "scopes": ["openid", "profile", "email", "groups"],
                "groups": [
                    {"group": "ml", "project": "default", "role": "member"},
                    {"group": "ops", "is_admin": True},
                ],
            },
            {**provider, "name": "staff", "label": "", "client_id": "public", "allowed_domains": ["example.com"]},
        ]
        env = {"TRAINMASTER_OIDC_PROVIDERS": json.dumps(providers)}
        platform = e2e.start_platform(tmp_path_factory.mktemp("oidc") / "home", port=own_port, env=env)
        try:
            made = Stage(platform, issuer, users)
            yield made
            for client in made.clients:
                client.close()
        finally:
            platform.end()
    finally:
        process.terminate()
        process.communicate(timeout=30)


@dataclass
class Person:
    """Somebody at the provider's pages, without scripts: fills in its forms until it sends the browser elsewhere."""

    login: str

    def walk(self, url: str, until: str) -> str:
        """The first address that begins with ``until``, or the text of the last page."""
        with httpx.Client(timeout=60) as http:
            return self._walk(http, url, until)

    def _walk(self, http: httpx.Client, url: str, until: str) -> str:
        answer = http.get(url)
        for _ in range(30):
            if answer.is_redirect:
                place = urljoin(str(answer.request.url), answer.headers["location"])
                if place.startswith(until):
                    return place
                answer = http.get(place)
                continue
            form = re.search(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', answer.text, re.DOTALL)
            if form is None:
                return answer.text
            fields = dict(re.findall(r'name="([^"]+)"[^>]*?value="([^"]*)"', form[2]))
            fields |= {"login": self.login, "password": "any"} if 'name="login"' in form[2] else {}
            place = urljoin(str(answer.request.url), unescape(form[1]))
            answer = http.post(place, data={name: unescape(value) for name, value in fields.items()})
        raise AssertionError(answer.text)


@dataclass
class PlainBrowser:
    """The platform's login page without scripts."""

    stage: Stage

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.stage.url, timeout=60, headers={"Sec-Fetch-Site": "same-origin"})
        self.stage.clients.append(self.http)

    def start(self, provider: str = "lab") -> str:
        answer = self.http.post(f"/api/v1/login/providers/{provider}", json={})
        assert answer.status_code == 201, answer.text
        url: str = answer.json()["authorization_url"]
        return url

    def finish(self, address: str) -> httpx.Response:
        parts = urlsplit(address)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return self.http.post(f"/api/v1/login/providers/{parts.path.removeprefix('/login/')}/session", json=query)

    def log_in(self, login: str, provider: str = "lab") -> httpx.Response:
        return self.finish(Person(login).walk(self.start(provider), f"{self.stage.url}/login/"))
