"""A browser loses parts of the application on their way, as it does when its network changes while it loads a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.conftest import expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web")]


def lose(page: Any, pattern: str, times: int) -> list[str]:
    """The next ``times`` requests for it fail; grows by what was lost."""
    lost: list[str] = []

    def answer(route: Any) -> None:
        if len(lost) < times:
            lost.append(route.request.url)
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(pattern, answer)
    return lost


@pytest.mark.parametrize("part", ["**/assets/index-*.js", "**/assets/react-dom-*.js", "**/assets/index-*.css"])
def test_a_page_with_a_failed_script_reloads_itself(open_browser: Callable[..., Any], part: str) -> None:
    page = open_browser()
    lost = lose(page, part, 2)
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(page.locator("body")).to_have_css("margin", "0px")
    assert len(lost) == 2


def test_a_failed_lazy_script_is_retried_in_place(open_browser: Callable[..., Any]) -> None:
    page = open_browser()
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.evaluate("window.isTheSame = true")
    lost = lose(page, "**/assets/page-*.js", 1)
    page.get_by_role("link", name="Studies", exact=True).click()
    expect(page.get_by_role("heading", name="Studies", exact=True)).to_be_visible()
    assert len(lost) == 1
    assert page.evaluate("window.isTheSame")


def test_a_permanently_missing_script_is_reported(open_browser: Callable[..., Any]) -> None:
    page = open_browser()
    lost = lose(page, "**/assets/index-*.js", 1000)
    page.goto("/jobs")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")
    assert 5 <= len(lost) <= 12


def test_a_failed_foreign_script_causes_no_reload(open_browser: Callable[..., Any]) -> None:
    page = open_browser(bypass_csp=True)
    requests = lose(page, "https://elsewhere.test/**", 1000)

    def add(route: Any) -> None:
        answer = route.fetch()
        added = '<script src="https://elsewhere.test/assets/count.js"></script></head>'
        route.fulfill(response=answer, body=answer.text().replace("</head>", added))

    page.route("**/jobs", add)
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert len(requests) == 1
    assert page.evaluate("sessionStorage.getItem('lost')") is None
