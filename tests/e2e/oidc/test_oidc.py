"""Logins by a certified OpenID Connect provider: with a real browser, without one, and by the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from trainmaster.contexts import load_contexts

from tests.e2e.oidc.conftest import Person, PlainBrowser, Stage
from tests.web.conftest import CHROMIUM, ROOT, expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("oidc"), pytest.mark.timeout(600)]


def test_a_login_creates_the_user_and_synchronises_its_groups(stage: Stage) -> None:
    browser = PlainBrowser(stage)
    made = browser.log_in("u-1")
    assert made.status_code == 201, made.text
    assert made.json() == {
        "user": "ann", "is_admin": False, "scopes": ["read", "write"], "projects": {"default": "member"},
        "next": "/jobs",
    }  # fmt: skip
    assert browser.http.get("/api/v1/me").json()["user"] == "ann"
    (identity,) = stage.platform.client.list_identities("ann")
    assert (identity.issuer, identity.subject, identity.email) == (stage.issuer, "u-1", "ann@example.com")
    stage.change_groups("u-1", [])
    assert PlainBrowser(stage).log_in("u-1").json()["projects"] == {}
    assert browser.http.get("/api/v1/me").json()["projects"] == {}
    stage.change_groups("u-1", ["ml"])
    assert PlainBrowser(stage).log_in("u-1").json()["projects"] == {"default": "member"}


def test_a_group_of_administrators_gives_and_ends_the_scope(stage: Stage) -> None:
    browser = PlainBrowser(stage)
    assert browser.log_in("u-2").json()["is_admin"] is True
    assert browser.http.get("/api/v1/tokens?all_users=true").status_code == 200
    stage.change_groups("u-2", [])
    assert PlainBrowser(stage).log_in("u-2").json()["is_admin"] is False
    assert browser.http.get("/api/v1/tokens?all_users=true").status_code == 403


def test_a_public_client_and_domains_of_addresses(stage: Stage) -> None:
    assert PlainBrowser(stage).log_in("u-1", "staff").json()["user"] == "ann"
    refused = PlainBrowser(stage).log_in("u-2", "staff")
    assert (refused.status_code, "example.com" in refused.json()["detail"]) == (403, True)


def test_a_code_is_good_once_and_for_its_own_login_alone(stage: Stage) -> None:
    browser = PlainBrowser(stage)
    address = Person("u-1").walk(browser.start(), f"{stage.url}/login/")
    code = parse_qs(urlsplit(address).query)["code"][0]

    def finish_another() -> str:
        other = PlainBrowser(stage)
        state = parse_qs(urlsplit(other.start()).query)["state"][0]
        answer = other.finish(f"{stage.url}/login/lab?code={code}&state={state}&iss={stage.issuer}")
        assert answer.status_code == 401
        return str(answer.json()["detail"])

    # Whoever takes the code lacks the verifier.
    assert "The lab did not log you in: its answer was used before or has expired" in finish_another()
    assert browser.finish(address).status_code == 201
    assert browser.finish(address).status_code == 401
    assert "used before" in finish_another()


def test_the_command_line_logs_in_on_another_device(stage: Stage, tmp_path: Path) -> None:
    config = tmp_path / "contexts.json"
    env = {**os.environ, "TRAINMASTER_CONFIG": str(config), "NO_COLOR": "1", "COLUMNS": "200"}
    env = {name: value for name, value in env.items() if name not in ("TRAINMASTER_API_URL", "TRAINMASTER_TOKEN")}
    command = [sys.executable, "-m", "trainmaster.cli.main", "login", stage.url, "--provider", "lab", "--name", "here"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        link = re.search(r"Or open (\S+)", lines[2])
        assert link, lines
        assert lines[1].strip() in link[1], "the code"
        page = Person("u-1").walk(link[1], "nowhere:")
        assert "Sign-in Success" in page
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert "as ann; context here is current" in output
    token = load_contexts(config).servers["here"].token
    assert token is not None
    assert token.startswith("tm_")
    listed = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", "token", "list"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "login" in listed.stdout


@pytest.fixture
def page(stage: Stage) -> Any:
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    if not (ROOT / "web/dist/index.html").exists():
        pytest.skip("the web pages are not built (python3 dev.py web)")
    sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = browser.new_context(base_url=stage.url, reduced_motion="reduce")
        # The provider's pages want a font of the internet.
        context.route(re.compile(r"^https://"), lambda route: route.abort())
        yield context.new_page()
        browser.close()


def test_a_browser_logs_in_and_out_and_sees_refusals(stage: Stage, page: Any) -> None:
    page.goto("/queue?project=default")
    expect(page.get_by_role("button", name="Log in with staff")).to_be_visible()
    page.get_by_role("button", name="Log in with The lab").click()
    page.get_by_placeholder("Enter any login").fill("u-1")
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("heading", name="Queue", exact=True)).to_be_visible()
    assert urlsplit(page.url).path == "/queue"
    assert "code=" not in page.url
    names = {cookie["name"]: cookie for cookie in page.context.cookies(stage.url)}
    assert (names["trainmaster_session"]["httpOnly"], names["trainmaster_session"]["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="ann").click()
    page.get_by_role("menuitem", name="Log out").click()
    expect(page.get_by_label("Your token")).to_be_visible()
    assert page.request.get("/api/v1/me").status == 401
    page.get_by_role("button", name="Log in with staff").click()
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("staff did not log you in: the login was cancelled there")
    page.get_by_role("link", name="Back to the login").click()
    expect(page.get_by_role("button", name="Log in with The lab")).to_be_enabled()
