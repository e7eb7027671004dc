"""What-if questions, explanations and simulations in the browser, answered by the real planner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.conftest import AXE, expect
from tests.web.planner_stage import answering
from tests.web.queue_stage import MEMBER_TOKEN
from tests.web.test_queue_page import see, stage  # noqa: F401 (fixtures)

pytestmark = [
    pytest.mark.e2e,
    # Playwright's loop must not stand in the way of other tests' own.
    pytest.mark.xdist_group("web"),
]


@pytest.fixture(scope="module", autouse=True)
def planner(stage: Any) -> Iterator[None]:  # noqa: F811
    with answering(stage):
        yield


def test_what_if_questions_about_a_waiting_job(see: Callable[..., Any]) -> None:  # noqa: F811
    page = see("/jobs/job-world-model-xl")
    form = page.get_by_role("form", name="What if")
    form.get_by_role("button", name="Ask the planner").click()
    expect(form.get_by_role("alert")).to_contain_text("Change at least one field.")
    form.get_by_label("GPUs each").fill("4")
    page.keyboard.press("Enter")
    answers = page.get_by_role("region", name="Answers").locator(".answer")
    expect(answers).to_have_count(2)
    expect(answers.first).to_contain_text(
        re.compile(r"Unchanged.*Expected start: (\w{3} \d\d )?\d\d:\d\d \(", re.DOTALL)
    )
    expect(answers.nth(1)).to_contain_text(re.compile(r"4 GPUs each.*Needs 4 GPUs of h100", re.DOTALL))
    form.get_by_label("GPUs each").fill("")
    form.get_by_label("Workers").fill("1")
    form.get_by_label("Priority").fill("high")
    form.get_by_role("button", name="Ask the planner").click()
    expect(answers.nth(2)).to_contain_text(re.compile(r"1 worker, priority high.*Jobs to preempt", re.DOTALL))
    form.get_by_label("Workers").fill("")
    form.get_by_label("Priority").fill("")
    form.get_by_label("Additional nodes").fill("2")
    form.get_by_label("Like node").fill("h100-9")
    form.get_by_role("button", name="Ask the planner").click()
    expect(answers.nth(3).get_by_role("alert")).to_contain_text("h100-9")
    answers.nth(3).get_by_role("button", name=re.compile("^Remove")).click()
    expect(answers).to_have_count(3)


def test_what_if_questions_about_an_edited_spec(see: Callable[..., Any]) -> None:  # noqa: F811
    page = see("/submit?from=job-world-model-xl")
    page.get_by_role("button", name="What if…").click()
    form = page.get_by_role("form", name="What if")
    form.get_by_label("GPU model").fill("a100")
    form.get_by_role("button", name="Ask the planner").click()
    answers = page.get_by_role("region", name="Answers").locator(".answer")
    expect(answers.nth(1)).to_contain_text(re.compile("on a100.*It would", re.DOTALL))
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="What if…")).to_be_focused()


def test_explanation_of_a_past_wait(see: Callable[..., Any]) -> None:  # noqa: F811
    page = see("/jobs/job-world-model-xl")
    card = page.locator("section.card").filter(has_text="Why did it wait?")
    card.get_by_role("button", name="1 min ago").click()
    expect(card).to_contain_text(
        re.compile(r"Waiting.*Queue position \d.*Plan of .*22 jobs waiting, 9 running, 7 nodes", re.DOTALL)
    )
    card.get_by_role("button", name="1 h ago").click()
    expect(card.get_by_role("alert")).to_contain_text("No plan of that time is kept")


def test_a_policy_and_additional_nodes_are_simulated_on_the_history(see: Callable[..., Any]) -> None:  # noqa: F811
    page = see("/queue")
    page.get_by_role("link", name="Simulate").click()
    form = page.get_by_role("form", name="Changes")
    form.get_by_role("button", name="Simulate").click()
    expect(form.get_by_role("alert")).to_contain_text("Change at least one field.")
    form.get_by_label("Time slice").fill("soon")
    form.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_contain_text("time_slice 'soon' is not a duration")
    form.get_by_label("Time slice").fill("")
    form.get_by_label("Additional nodes").fill("2")
    form.get_by_label("Like node").fill("b200-9")
    form.get_by_role("button", name="Simulate").click()
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_role("alert")).to_contain_text("b200-9")
    form.get_by_label("Order").select_option("fifo")
    form.get_by_label("Like node").fill("a100-0")
    form.get_by_role("button", name="Simulate").click()
    expect(result).to_contain_text("Order fifo, 2 more nodes like a100-0")
    expect(result.get_by_role("row", name=re.compile("^GPUs in use .* %.* %.*points"))).to_be_visible()
    expect(result).to_contain_text("Both columns are simulated")
    expect(result.get_by_role("img", name=re.compile("^GPUs in use over time"))).to_be_visible()
    if AXE.exists():
        demand_accessible(page, 1440)
    page.reload()  # the address shows the result again
    expect(result.get_by_role("row", name=re.compile("^CPUs in use"))).to_be_visible()
    member = see("/simulations", token=MEMBER_TOKEN)
    expect(member.locator("body")).to_contain_text("Only platform admins")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (400, "dark")])
def test_planner_questions_are_accessible(see: Callable[..., Any], scheme: str, width: int) -> None:  # noqa: F811
    if not AXE.exists():
        pytest.skip("axe-core is not installed (python3 dev.py web)")
    page = see("/jobs/job-world-model-xl", color_scheme=scheme, viewport={"width": width, "height": 900})
    page.get_by_label("GPUs each").fill("4")
    page.keyboard.press("Enter")
    expect(page.locator(".answer").nth(1)).to_contain_text("It would")
    demand_accessible(page, width)


def demand_accessible(page: Any, width: int) -> None:
    page.evaluate(AXE.read_text())
    found = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}).then(r => r.violations)"
    )
    assert [(wrong["id"], [node["html"] for node in wrong["nodes"]][:3]) for wrong in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
