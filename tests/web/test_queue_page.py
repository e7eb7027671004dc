"""The queue in the browser: wait reasons, shares, forecast, and an administrator's forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.conftest import AXE, WITHIN_MS, expect
from tests.web.queue_stage import MEMBER_TOKEN, RUNNING, TOKEN, WAITING, serve_stage
from tests.web.seen import OPEN, Seen

pytestmark = [
    pytest.mark.e2e,
    # Playwright's loop must not stand in the way of other tests' own.
    pytest.mark.xdist_group("web"),
]


@pytest.fixture(scope="module")
def stage(requirements: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_stage(tmp_path_factory.mktemp("stage")) as served:
        yield served


@pytest.fixture
def see(chromium: Any, stage: Any) -> Iterator[Callable[..., Any]]:
    """``see(path, token=TOKEN, **options)``: a page in a browser of its own, which must not throw."""
    wrongs: list[str] = []
    contexts: list[Any] = []

    def start(path: str, *, token: str = TOKEN, **options: Any) -> Any:
        still = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"}
        context = chromium.new_context(base_url=stage.url, **{**still, **options})
        context.set_default_timeout(WITHIN_MS)
        contexts.append(context)
        opened = context.request.post(
            "/api/v1/session", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
        )
        assert opened.status == 201, opened.text()
        page = context.new_page()
        OPEN.append(Seen(page))
        page.on("pageerror", lambda error: wrongs.append(str(error)))
        page.goto(path)
        return page

    yield start
    for context in contexts:
        context.close()
    assert not wrongs


def test_the_queue_shows_order_reasons_shares_and_forecast(see: Callable[..., Any]) -> None:
    page = see("/queue")
    rows = page.locator(".queue-row")
    expect(rows).to_have_count(len(WAITING))
    expect(rows.first).to_contain_text("asr-eval-nightly")
    expect(rows.first).to_contain_text(re.compile(r"(\w{3} \d\d )?\d\d:\d\d"))
    why = rows.first.get_by_role("button")
    expect(why).to_have_attribute("aria-expanded", "false")
    why.focus()
    page.keyboard.press("Enter")
    expect(why).to_have_attribute("aria-expanded", "true")
    expect(rows.first).to_contain_text("needed GPUs: 1")
    expect(rows.nth(6)).to_contain_text("unknown")
    expect(
        page.get_by_role("meter", name=re.compile("^vision: using 50 % of the cluster, fair share 44 %"))
    ).to_be_visible()
    page.get_by_role("button", name="vision").click()
    expect(page.locator(".share-users")).to_contain_text("grace")
    expect(page.get_by_role("img", name=re.compile("^h100: .*vision 16, free 4"))).to_be_visible()
    starts = page.get_by_role("region", name="Next starts").get_by_role("listitem")
    expect(starts).to_have_count(10)
    page.get_by_role("button", name=re.compile(r"Show \d+ more")).click()
    expect(starts).to_have_count(sum(job[7] is not None for job in WAITING))
    expect(page.get_by_role("region", name="Running").get_by_role("listitem")).to_have_count(len(RUNNING))
    accuracy = f"Of the last {len(RUNNING)} expected starts, 100 % fell into their interval; median error 4 min."
    expect(page.get_by_text(accuracy)).to_be_visible()
    expect(page.get_by_role("region", name="Reservations")).to_contain_text("review-demo")
    page.get_by_label("Project", exact=True).select_option("robotics")
    expect(page).to_have_url(re.compile("project=robotics"))
    expect(rows).to_have_count(2)
    expect(rows.first.get_by_label("Position 3")).to_be_visible()


def test_a_member_sees_foreign_jobs_without_names_and_cannot_change_settings(see: Callable[..., Any]) -> None:
    page = see("/queue", token=MEMBER_TOKEN)
    expect(page.locator(".queue-row").first).to_contain_text("A job of another project")
    expect(page.locator(".queue-row").nth(1)).to_contain_text("vit-large-finetune")
    expect(page.locator("body")).not_to_contain_text("asr-eval-nightly")
    page.get_by_role("button", name="Policy").click()
    expect(page.get_by_label("Time slice")).to_be_disabled()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reservations").click()
    expect(page.get_by_role("dialog")).to_contain_text("Another project's")
    expect(page.get_by_role("button", name="Reserve nodes")).to_have_count(0)


def test_a_failed_read_is_reported_once_and_retried(see: Callable[..., Any]) -> None:
    page = see("/login")
    problem = {"code": "internal", "title": "Internal", "status": 500, "detail": "Something broke."}
    page.route("**/api/v1/queue/running*", lambda route: route.fulfill(status=500, json=problem))
    page.goto("/queue")
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("Something broke.")
    expect(page.locator(".queue-row").first).to_be_visible()
    page.unroute("**/api/v1/queue/running*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("region", name="Running")).to_be_visible()


def test_an_administrator_sets_policy_and_quota_and_sees_server_errors(see: Callable[..., Any]) -> None:
    page = see("/queue")
    page.get_by_role("button", name="Policy").click()
    slice_ = page.get_by_label("Time slice")
    slice_.fill("soon")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("time_slice 'soon' is not a duration")
    slice_.fill("1m")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("time_slice is shorter than min_run_time")
    slice_.fill("off")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto("/projects/labs")
    expect(page.get_by_role("meter", name=re.compile("^GPUs: 4.5 in use, limit 4.5"))).to_be_visible()
    page.get_by_role("button", name="Set quota and weight").click()
    page.get_by_label("Guaranteed, GPUs").fill("9")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("raise the limit, or guarantee less")
    page.get_by_label("Guaranteed, GPUs").fill("")
    page.get_by_label("Limit, GPUs").fill("6")
    page.get_by_label("Weight", exact=True).fill("1.5")
    page.get_by_label("Weight of kurt").fill("much")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The weight of kurt is a number above 0")
    page.get_by_label("Weight of kurt").fill("2")
    page.get_by_label("Limit of kurt, GPUs").fill("3")
    page.get_by_label("Another user").select_option("ada")
    page.get_by_label("Limit of ada, Memory").fill("64Gi")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".quota-users")).to_contain_text(
        re.compile("ada.*limit 64 GiB of memory.*kurt.*weight 2.*limit 3 GPUs", re.DOTALL)
    )
    expect(page.get_by_role("meter", name=re.compile("^GPUs: 4.5 in use, limit 6"))).to_be_visible()
    expect(page.locator(".quota-facts").first).to_contain_text("1.5")


def test_storage_is_shown_by_kind_warned_about_and_limited(see: Callable[..., Any]) -> None:
    page = see("/projects/vision")
    expect(page.get_by_role("meter", name=re.compile("^Storage: 8.5 TiB in use, limit 10 TiB"))).to_be_visible()
    expect(page.locator(".quota-lines")).to_contain_text("outputs 8 TiB · models 512 GiB · archives 4 GiB")
    expect(page.locator(".quota-lines")).to_contain_text("measured")
    warning = "Project vision uses 8.5 TiB of its storage quota of 10.0 TiB (85 %)."
    expect(page.get_by_role("status").filter(has_text="storage")).to_contain_text(warning)
    running = next(name for name, project, *_ in RUNNING if project == "vision")
    page.goto(f"/jobs/job-{running}")
    expect(page.get_by_role("status").filter(has_text="storage")).to_contain_text(warning)
    page.goto("/projects/speech")
    expect(page.locator(".quota-lines")).to_contain_text("not measured yet")
    page.get_by_role("button", name="Set quota and weight").click()
    expect(page.get_by_label("Guaranteed, Storage")).to_have_count(0)
    page.get_by_label("Limit, Storage").fill("5")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("write a unit")
    page.get_by_label("Limit, Storage").fill("1Ti")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("meter", name="Storage: 0 B in use, limit 1 TiB")).to_be_visible()


def test_nodes_are_reserved_and_released(see: Callable[..., Any]) -> None:
    page = see("/queue")
    page.get_by_role("button", name="Reservations").click()
    page.get_by_role("button", name="Reserve nodes").click()
    page.get_by_label("Name", exact=True).fill("weekend")
    page.get_by_role("dialog").get_by_label("Project").select_option("speech")
    page.get_by_label("Nodes", exact=True).fill("h100-9")
    page.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("there is no node 'h100-9'")
    page.get_by_label("Nodes", exact=True).fill("h100-3")
    page.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("weekend")
    page.get_by_role("button", name="Delete weekend").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).not_to_contain_text("weekend")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (400, "dark")])
def test_the_queue_and_a_quota_are_accessible(see: Callable[..., Any], scheme: str, width: int) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed (python3 dev.py web)")
    for path in ("/queue", "/projects/vision"):
        page = see(path, color_scheme=scheme, viewport={"width": width, "height": 900})
        expect(page.locator(".queue-row, .quota-lines").first).to_be_visible()
        page.evaluate(AXE.read_text())
        found = page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
            ".then(({violations}) => violations)"
        )
        assert [(wrong["id"], [node["html"] for node in wrong["nodes"]][:3]) for wrong in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
