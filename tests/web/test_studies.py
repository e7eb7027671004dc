"""A study in the browser: found in the list, watched, looked into, extended, cloned; on a platform that runs."""

from __future__ import annotations

import re
from typing import Any

from tests.web.conftest import AXE, expect

SPEC = {
    "name": "digits-search",
    "parameters": {
        "lr": {"type": "float", "min": 0.00001, "max": 0.1, "scale": "log"},
        "optimizer": {"type": "categorical", "values": ["sgd", "adam"]},
        "momentum": {"type": "float", "min": 0, "max": 0.99, "when": {"optimizer": "sgd"}},
    },
    "metric": "accuracy",
    "goal": "maximize",
    "algorithm": "random",
    "budget": {"trials": 24, "parallel": 12},
}


def tried(platform: Any, study: str, count: int) -> None:
    """So many more trials, each fifth of which fails."""
    done = 0
    while done < count:
        for trial in platform.client.suggest_trials(study, count=min(12, count - done)).trials:
            done += 1
            if trial.number % 5 == 0:
                platform.client.complete_trial(study, trial.number, reason="it exploded")
            else:
                platform.client.complete_trial(study, trial.number, {"accuracy": 1 - trial.parameters["lr"]})


def test_a_study_is_watched_looked_into_and_gone_on_from(page: Any, platform: Any) -> None:
    made = platform.client.create_study(SPEC)
    tried(platform, made.id, 20)
    page.goto("/studies")
    page.get_by_role("link", name="digits-search").click()
    expect(page.get_by_role("img", name=re.compile("^accuracy of 16 trials in order"))).to_be_visible()
    expect(page.get_by_text("20 of 24 trials")).to_be_visible()
    weights = page.get_by_role("heading", name="Which parameters matter").locator("xpath=../..")
    expect(weights.locator("dt")).to_have_count(3)
    tried(platform, made.id, 4)  # the page was not loaded again
    expect(page.get_by_text("All 24 trials are done.")).to_be_visible()

    page.get_by_role("link", name="Parameters", exact=True).click()
    expect(
        page.get_by_role("img", name="20 of 20 trials as lines over lr, optimizer, momentum, accuracy")
    ).to_be_visible()
    page.get_by_label("Up", exact=True).select_option("momentum")
    expect(page.get_by_role("img", name=re.compile("by lr and momentum"))).to_be_visible()

    page.get_by_role("link", name="Trials", exact=True).click()
    rows = page.get_by_role("table", name="Trials").get_by_role("row")
    page.get_by_role("columnheader", name="accuracy").get_by_role("button").click()
    page.get_by_role("columnheader", name="accuracy").get_by_role("button").click()
    best = platform.client.get_study_best(made.id).trials[0]
    expect(rows.nth(1).get_by_role("button")).to_have_text(str(best.number))
    page.get_by_label("Search trials").fill("exploded")
    expect(page.get_by_text("4 of 24 trials", exact=True)).to_be_visible()
    page.get_by_role("button", name="Open trial 5").click()
    expect(page.get_by_role("region", name="Trial 5")).to_contain_text("it exploded")

    page.get_by_role("button", name="Extend").click()
    page.get_by_label("More trials").fill("6")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    expect(page.get_by_text("24 of 30 trials")).to_be_visible()
    page.get_by_role("button", name="Clone and edit").click()
    page.get_by_label("learn from its trials").check()
    expect(page.get_by_text("checked by the server")).to_be_visible()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="digits-search-2")).to_be_visible()
    assert platform.client.get_study("digits-search-2").spec.warm_start == (made.id,)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Stop the study").click()
    expect(page.locator(".job-head .state")).to_have_text("cancelled")

    if AXE.exists():
        page.add_init_script(path=AXE)
        for path in (
            "/studies",
            "/studies/new",
            *(f"/studies/{made.id}{tab}" for tab in ("", "/parameters", "/trials", "/curves")),
        ):
            page.goto(path)
            expect(page.locator("main h1, main h2").first).to_be_visible()
            expect(page.locator("[aria-busy=true]")).to_have_count(0)
            found = page.evaluate(
                "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
                ".then((all) => all.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`))"
            )
            assert found == [], path
            assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), path


def test_a_job_leads_to_its_trial_and_a_trial_to_its_job(page: Any, platform: Any) -> None:
    template = {"command": ["sh", "-c", "for i in 1 2 3; do echo loss=0.$i step=$i; done"], "max_restarts": 0}
    spec = {"name": "by-jobs", "template": template, "parameters": {"x": {"type": "float", "min": 0, "max": 1}}}
    made = platform.client.create_study(
        {**spec, "metric": "loss", "goal": "minimize", "algorithm": "random", "budget": {"trials": 2, "parallel": 2}}
    )
    platform.client.wait_for_study(made.id, timeout_s=90)
    page.goto(f"/studies/{made.id}/curves")
    expect(page.get_by_role("img", name="Curves of 2 trials")).to_be_visible()
    page.get_by_role("link", name="Trials", exact=True).click()
    page.get_by_label("Choose trial 1").check()
    page.get_by_label("Choose trial 2").check()
    expect(page.get_by_role("link", name="Compare 2")).to_be_visible()
    page.get_by_role("button", name="Open trial 2").click()
    page.get_by_role("link", name="Its job").click()
    expect(page.get_by_role("heading", name="by-jobs-2")).to_be_visible()
    page.get_by_role("link", name="by-jobs", exact=True).click()
    expect(page.get_by_role("heading", name="by-jobs", exact=True)).to_be_visible()
