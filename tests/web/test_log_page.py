"""A job's log in the browser: a long one, one that was made to hurt, and its lines by time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.conftest import WITHIN_MS, expect, submit

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web")]

LONG = "seq 12000; printf '%s' $(yes x | head -n 60 | tr -d '\\n'); echo"


@pytest.fixture(scope="module")
def long_job(platform: Any) -> str:
    job = submit(platform, "long", LONG)
    platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    return job


def test_older_lines_of_a_long_log_are_loaded_on_request(page: Any, long_job: str) -> None:
    page.goto(f"/jobs/{long_job}/logs")
    status = page.get_by_role("status").filter(has_text="lines")
    expect(status).to_contain_text(re.compile(r"last 5,0\d\d lines"))
    page.get_by_role("button", name="Show older lines").click()
    expect(status).to_contain_text(re.compile(r"^12,0\d\d lines"))
    # What stood first stays in sight.
    expect(page.get_by_role("log").get_by_text(re.compile(r"^70\d\d$")).first).to_be_visible()


def test_a_malicious_search_expression_does_no_harm(page: Any, long_job: str) -> None:
    page.goto(f"/jobs/{long_job}/logs?q=(x%2Bx%2B)%2By%7C%5Ex%7C%5E11999%24")
    log = page.get_by_role("log")
    expect(log.locator(".log-line")).to_have_count(2)
    expect(log.locator("mark")).to_have_text(["11999", "x"])
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Lines shown here").click()
    saved = download.value.path().read_text().splitlines()
    assert [line.split(" ", 2)[1] for line in saved] == ["worker-0"] * 2
    assert saved[0].endswith(" 11999")


def test_lines_are_filtered_by_time_and_rank(page: Any, long_job: str) -> None:
    page.goto(f"/jobs/{long_job}/logs?until=2000-01-01T00:00:00Z")
    expect(page.get_by_text("No matching lines")).to_be_visible()
    page.locator("summary", has_text="until").click()
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Rank").fill("0")
    page.get_by_label("From").fill("2020-05-05T10:20:30")
    page.get_by_role("button", name="Done").click()
    expect(page).to_have_url(re.compile(r"rank=0.*since=2020-05-05T|since=2020-05-05T.*rank=0"))
    expect(page.get_by_role("log")).to_contain_text("12000")


def test_the_metrics_page_suggests_patterns_for_a_job_without_metrics(page: Any, platform: Any) -> None:
    job = submit(platform, "silent", "echo 'so far: accuracy 0.75 of all'")
    platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    page.goto(f"/jobs/{job}/metrics")
    expect(page.get_by_label("Lines that look like metrics")).to_have_text("so far: accuracy 0.75 of all\n")
    expect(page.get_by_label("Patterns")).to_contain_text('- "so far: accuracy {accuracy}"')
