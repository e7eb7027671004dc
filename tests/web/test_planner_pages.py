"""The planner on the pages: placement of an edited job, alternatives of a waiting job, sorting."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from tests.web.conftest import expect, submit

pytestmark = [
    pytest.mark.e2e,
    # One platform and one browser; and Playwright's loop must not stand in the way of other tests' own.
    pytest.mark.xdist_group("web"),
]

# More workers than this machine has CPUs: they never fit all at once.
MANY = (os.cpu_count() or 1) + 3


def test_the_submit_page_shows_placement_and_alternatives(page: Any, platform: Any) -> None:
    page.goto("/submit")
    placement = page.get_by_role("region", name="Placement")
    expect(placement).to_contain_text(re.compile("would (start|wait)"))
    page.get_by_label("Command").fill("sleep 600")
    page.get_by_label("Name", exact=True).fill("wide")
    page.get_by_label("Memory each").fill("32Mi")
    page.get_by_label("CPUs each").fill("1")
    page.get_by_label("Workers").fill(str(MANY))
    expect(placement).to_contain_text("It cannot run on these nodes. Needs 1 CPU")
    fewer = placement.get_by_role("listitem").filter(
        has_text=re.compile(rf"With \d+ workers? instead of {MANY} it would start")
    )
    fewer.get_by_role("button", name="Use this").click()
    expect(placement).to_contain_text("It would start now on")
    expect(page.get_by_label("Workers")).not_to_have_value(str(MANY))
    page.get_by_label("Workers").fill(str(MANY))
    expect(placement).to_contain_text("It cannot run on these nodes")
    page.get_by_role("button", name="Submit", exact=True).click()
    alternatives = page.get_by_role("region", name="Alternatives")
    expect(alternatives).to_contain_text(f"instead of {MANY} it would start now, on")
    alternatives.get_by_role("link", name="Clone and change").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("wide-2")
    platform.client.cancel_job("wide")


def test_jobs_are_sorted_by_column_headers_and_stay_live(page: Any, platform: Any) -> None:
    for name in ("order-b", "order-a"):
        submit(platform, name, "true")
    page.goto("/jobs?q=order-")
    names = page.locator(".job-name")
    expect(names).to_have_text(["order-a", "order-b"])
    page.get_by_role("button", name="Submitted").click()
    expect(page).to_have_url(re.compile("sort=oldest"))
    expect(names).to_have_text(["order-b", "order-a"])
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    expect(page).to_have_url(re.compile("sort=name"))
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    expect(names).to_have_text(["order-a", "order-b"])
    submit(platform, "order-aa", "true")
    expect(names).to_have_text(["order-a", "order-aa", "order-b"])
    page.get_by_label("Choose order-aa").check()
    expect(page).to_have_url(re.compile("chosen=job-"))
    page.reload()
    expect(names).to_have_text(["order-a", "order-aa", "order-b"])
    expect(page.get_by_label("Choose order-aa")).to_be_checked()
    page.get_by_label("Choose order-aa").uncheck()
    expect(page).not_to_have_url(re.compile("chosen="))
