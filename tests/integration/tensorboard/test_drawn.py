"""What TensorBoard draws in a real browser, where its page has no origin."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.integration.tensorboard.conftest import WITHIN_S, write_image

# Chromium draws without a GPU: a busy machine takes minutes for it.
pytestmark = [pytest.mark.xdist_group("tensorboard"), pytest.mark.timeout(900)]

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Where a worker of the page comes when it asks for what is not below the page's own address.
_ASK = "(url) => fetch(url, {mode: 'no-cors'}).then(() => 'it got out', () => 'it was kept in')"


def test_curves_and_pictures_are_drawn_by_a_page_and_workers_that_cannot_get_out(serve: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if _CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    api = serve()
    write_image(api.output / "default" / api.jobs["one"] / "pictures", "cat")
    link = api.link("one")
    assert api.shown(link, "one/logs") == [1.0, 0.5]
    playwright.expect.set_options(timeout=2 * WITHIN_S * 1000)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = browser.new_context(viewport={"width": 900, "height": 600}, reduced_motion="reduce")
        context.set_default_timeout(2 * WITHIN_S * 1000)
        context.add_cookies([{"name": "trainmaster_session", "value": "x", "url": api.url}])
        page = context.new_page()
        wrongs: list[str] = []
        page.on("pageerror", lambda error: wrongs.append(str(error)))
        page.on("console", lambda message: wrongs.append(message.text) if message.type == "error" else None)
        page.goto(f"{api.url}{link}")
        # Its page of all kinds: a worker draws the curve, and tells the page how far its axes go.
        playwright.expect(page.locator("line-chart canvas")).to_be_visible()
        playwright.expect(page.locator("line-chart-axis[axis=y] text").first).not_to_be_empty()
        playwright.expect(page.get_by_role("img", name="Image at step")).to_have_js_property("naturalWidth", 2)
        (worker,) = page.workers
        assert worker.url.startswith("blob:null/")
        assert page.evaluate("window.origin") == "null"
        for asking in (page, worker):
            assert asking.evaluate(_ASK, f"{api.url}/api/v1/live") == "it was kept in"
        # Containers that start beside it change the machine's networks, and Chromium then asks anew for what it was
        # loading.
        reported = ("/api/v1/live", "ERR_NETWORK_CHANGED")
        assert [wrong for wrong in wrongs if not any(one in wrong for one in reported)] == []
        browser.close()
