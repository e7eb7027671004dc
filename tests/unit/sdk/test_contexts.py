from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from trainmaster import AsyncClient, Client
from trainmaster.contexts import (
    Contexts,
    ServerAccess,
    load_contexts,
    local_server,
    resolve_server,
    save_contexts,
    with_server,
    without_server,
)
from trainmaster.errors import LocalFileProblem, NotConfigured, NotFound

pytestmark = pytest.mark.usefixtures("no_config")
LAB = ServerAccess("http://lab:8765", "tm_lab", project="vision", name="lab")


def run_local(home: Path, pid: int | None = None) -> None:
    up = {"url": "http://127.0.0.1:9000", "pid": os.getpid() if pid is None else pid, "version": "0.1.0"}
    (home / "up.json").write_text(json.dumps(up))
    (home / "token").write_text("tm_local\n")


def test_nothing_known_says_what_to_do() -> None:
    with pytest.raises(
        NotConfigured, match=r"`trainmaster up`.*`trainmaster login URL`.*TRAINMASTER_API_URL and TRAINMASTER_TOKEN"
    ):
        resolve_server()


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch, no_config: Path) -> None:
    run_local(no_config)
    save_contexts(with_server(Contexts(), LAB))
    monkeypatch.setenv("TRAINMASTER_API_URL", "http://ci:1/")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_ci")
    found = resolve_server()
    assert (found.url, found.token) == ("http://ci:1", "tm_ci")


def test_then_the_current_context_then_the_local_platform(no_config: Path) -> None:
    run_local(no_config)
    assert (resolve_server().url, resolve_server().token) == ("http://127.0.0.1:9000", "tm_local")
    save_contexts(with_server(Contexts(), LAB))
    assert (resolve_server().url, resolve_server().project) == ("http://lab:8765", "vision")
    assert resolve_server("local").token == "tm_local"


def test_an_address_without_a_token_takes_the_one_retained_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    save_contexts(with_server(Contexts(), LAB))
    monkeypatch.setenv("TRAINMASTER_API_URL", LAB.url)
    assert resolve_server().token == "tm_lab"
    monkeypatch.setenv("TRAINMASTER_API_URL", "http://elsewhere")
    assert resolve_server().token is None


def test_a_platform_that_was_killed_is_not_taken_for_running(no_config: Path) -> None:
    run_local(no_config, pid=2**22 + 1)
    assert local_server() is None


@pytest.mark.parametrize("left", ["up.json", "run/up.lock"])  # killed; stopped in order
@pytest.mark.parametrize("context", [None, "local"])
def test_a_platform_that_ran_before_is_distinguished_from_none_at_all(
    no_config: Path, left: str, context: str | None
) -> None:
    run_local(no_config, pid=2**22 + 1)
    (no_config / "run").mkdir()
    (no_config / "up.json").rename(no_config / left)
    with pytest.raises(NotConfigured, match=r"is not running .*jobs are intact.*`trainmaster up`") as reported:
        resolve_server(context)
    assert str(no_config) in str(reported.value)


def test_a_context_that_is_not_there_names_those_that_are() -> None:
    save_contexts(with_server(Contexts(), LAB))
    with pytest.raises(NotFound, match="known are lab, local"):
        resolve_server("lba")
    with pytest.raises(NotConfigured, match="No platform runs in"):
        resolve_server("local")


def test_the_file_is_for_its_owner_alone() -> None:
    path = save_contexts(with_server(Contexts(), LAB))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = load_contexts()
    assert loaded.current == "lab"
    assert loaded.servers["lab"].token == "tm_lab"
    assert "tm_lab" not in repr(loaded)
    assert without_server(loaded, "lab") == Contexts()


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": {}}}', '{"contexts": 1}'])
def test_a_spoilt_file_is_reported_not_overwritten(text: str, tmp_path: Path) -> None:
    (tmp_path / "contexts.json").write_text(text)
    with pytest.raises(LocalFileProblem, match=r"contexts\.json cannot be read"):
        load_contexts()


def test_the_client_finds_its_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    save_contexts(with_server(Contexts(), LAB))
    with Client.from_env() as client:
        assert (client.url, client.project) == ("http://lab:8765", "vision")
    monkeypatch.setenv("TRAINMASTER_PROJECT", "sound")
    with Client.from_env() as client:
        assert client.project == "sound"


def test_a_token_in_the_environment_counts_wherever_the_address_came_from(
    no_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_mine")
    run_local(no_config)
    assert resolve_server().token == "tm_mine"
    assert resolve_server("local").token == "tm_local"


def test_a_saved_platform_of_this_machine_is_found_at_its_new_port(no_config: Path) -> None:
    saved = ServerAccess("http://127.0.0.1:1111", "tm_saved", name="here", home=str(no_config))
    save_contexts(with_server(Contexts(), saved))
    assert resolve_server().url == "http://127.0.0.1:1111"
    (no_config / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:2222", "pid": os.getpid()}))
    assert resolve_server().url == "http://127.0.0.1:2222"
    assert resolve_server().token == "tm_saved"


def test_the_other_name_of_the_address_counts_too_and_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    save_contexts(with_server(Contexts(), LAB))  # whom the token must not reach
    monkeypatch.setenv("TRAINMASTER_URL", "http://ci:2")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_ci")
    assert (resolve_server().url, resolve_server().token) == ("http://ci:2", "tm_ci")
    monkeypatch.setenv("TRAINMASTER_API_URL", "ci:1/")  # as people write it to `trainmaster login`
    assert resolve_server().url == "http://ci:1"


@pytest.mark.parametrize("address", ["http://", "ftp://ci", "http://ci:port", "http://ci/login?code=x"])
def test_an_address_that_is_none_is_reported_with_its_variable(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_URL", address)
    with pytest.raises(NotConfigured, match=r"^TRAINMASTER_API_URL is .*write it like http://host:8765"):
        resolve_server()


def test_a_token_is_taken_without_its_line_end_and_only_if_it_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_URL", "http://ci:1")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_ci\r\n")
    assert resolve_server().token == "tm_ci"
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_ümläut")
    with pytest.raises(NotConfigured, match=r"^TRAINMASTER_TOKEN is not a valid token"):
        resolve_server()
    for client in (Client, AsyncClient):
        with pytest.raises(NotConfigured, match=r"^token is not a valid token"):
            client("http://lab:8765", "tm_…")
