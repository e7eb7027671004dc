"""One embedded platform with real processes and one Chromium browser for all tests of the pages."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.seen import OPEN, Seen

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/google-chrome"
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
# A level that is waited for; only a machine that stands still reaches it.
WITHIN_MS = 180_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that waits several times for a busy machine may take longer than others."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call" and report.failed:
        report.sections += [(f"page {number}", seen.summary()) for number, seen in enumerate(OPEN, 1)]
    if report.when == "teardown":
        OPEN.clear()
    return report


def expect(thing: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=WITHIN_MS)
    return playwright_expect(thing)


def accessible(page: Any, *paths: str) -> None:
    """Hold these pages against WCAG 2.2 AA, as they are in this browser; none is wider than its window."""
    if not AXE.exists():
        return
    page.add_init_script(path=AXE)
    for path in paths:
        page.goto(path)
        expect(page.locator("main h1, main h2").first).to_be_visible()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        found = page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
            ".then(({violations}) => violations.map("
            "({id, nodes}) => `${id}: ${nodes.map((node) => node.html).join(' | ')}`))"
        )
        assert found == [], path
        assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), path


def submit(platform: Any, name: str, command: str, **fields: Any) -> str:
    job = platform.client.submit_job(
        {"name": name, "command": ["sh", "-c", command], "workers": 1, "max_restarts": 0, **fields}
    )
    return str(job.id)


@pytest.fixture(scope="package")
def requirements() -> None:
    """Skips where the pages cannot be shown."""
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    if not (ROOT / "web/dist/index.html").exists():
        pytest.skip("the web pages are not built (python3 dev.py web)")
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")


@pytest.fixture(scope="package")
def platform(requirements: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What it holds grows from module to module: tests name their own jobs, studies, models and endpoints."""
    e2e = importlib.import_module("tests.e2e.conftest")
    up = e2e.start_platform(tmp_path_factory.mktemp("web") / "home")
    try:
        yield up
    finally:
        up.end()


@pytest.fixture(scope="package")
def chromium(requirements: None) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def open_browser(chromium: Any, platform: Any) -> Iterator[Callable[..., Any]]:
    """``open_browser(logged_in=True, **options)``: a page of a browser of its own.

    No page may run what users wrote, break its content security policy, or throw.
    """
    contexts: list[Any] = []
    wrongs: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            wrongs.append(message.text)

    def dismiss(dialog: Any) -> None:
        wrongs.append(f"a script asked {dialog.message!r}")
        dialog.dismiss()

    def start(*, logged_in: bool = True, **options: Any) -> Any:
        # Without a GPU, animations use most of a CPU core.
        still = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        context = chromium.new_context(base_url=platform.url, **{**still, **options})
        context.set_default_timeout(WITHIN_MS)
        contexts.append(context)
        if logged_in:
            own_page = {"Sec-Fetch-Site": "same-origin"}
            opened = context.request.post("/api/v1/session", data={"token": platform.token}, headers=own_page)
            assert opened.status == 201, opened.text()
        page = context.new_page()
        OPEN.append(Seen(page))
        page.on("pageerror", lambda error: wrongs.append(str(error)))
        page.on("console", note)
        page.on("dialog", dismiss)
        return page

    yield start
    for context in contexts:
        context.close()
    assert not wrongs


@pytest.fixture
def page(open_browser: Callable[..., Any]) -> Any:
    return open_browser()
