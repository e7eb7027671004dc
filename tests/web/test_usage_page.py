"""Usage, prices and budgets in the browser, of a job that really ran."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.conftest import accessible, expect, submit

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web")]


def test_usage_is_priced_grouped_and_budgeted(page: Any, platform: Any) -> None:
    job = submit(platform, "priced", "sleep 1", cpu=1)
    assert platform.client.wait_for_job(job).state == "succeeded"
    page.goto("/usage")
    page.get_by_role("button", name="Add a price").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Of a").select_option("cpu")
    form.get_by_label("Per hour").fill("3600000")
    form.get_by_role("button", name="Add").click()
    expect(form).to_contain_text("less than or equal to 1000000")
    form.get_by_label("Per hour").fill("3600")
    form.get_by_label("From (UTC)").fill("2026-01-01")
    form.get_by_role("button", name="Add").click()
    expect(page.get_by_role("region", name="Prices")).to_contain_text("3600.00 USD")
    # A core costs 1 USD a second: the second of this job, and its start.
    expect(page.get_by_role("img", name=re.compile("^Cost by day: at most .* USD"))).to_be_visible()
    page.get_by_label("By", exact=True).select_option("job")
    row = page.get_by_role("region", name="Usage").get_by_role("row").filter(has_text="priced")
    expect(row).to_contain_text(re.compile(r"[1-9][0-9]*\.[0-9]{2}$"))
    page.get_by_role("button", name="Set the budget of default").click()
    form.get_by_label("Per calendar month, in USD").fill("0.01")
    form.get_by_label("Once it is spent").select_option("refuse")
    form.get_by_role("button", name="Set").click()
    expect(page.get_by_role("region", name="Budgets")).to_contain_text("new jobs are refused")
    try:
        with pytest.raises(Exception, match="new jobs are refused until the next month"):
            submit(platform, "too-much", "true")
        accessible(page, "/usage?by=job")
    finally:  # other tests have this platform, too
        platform.client.delete_budget("default")
        for price in platform.client.list_prices():
            platform.client.delete_price(price.id)
    page.goto(f"/jobs/{job}")
    expect(page.get_by_text(re.compile("core-hours$"))).to_be_visible()
