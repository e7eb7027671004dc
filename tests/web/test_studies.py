"""A study in the browser: found in the list, watched, looked into, extended, cloned; on a platform that runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.conftest import accessible, expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web"), pytest.mark.timeout(900)]

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

    accessible(
        page,
        "/studies",
        "/studies/new",
        *(f"/studies/{made.id}{tab}" for tab in ("", "/parameters", "/trials", "/curves")),
    )


def test_a_study_is_made_by_form_and_the_yaml_follows(page: Any, platform: Any) -> None:
    page.goto("/studies/new")
    yaml = page.get_by_label("The study as YAML")
    expect(page.get_by_text("checked by the server")).to_be_visible()
    page.get_by_label("Name", exact=True).first.fill("by-form")
    page.get_by_label("Command").fill("true")
    page.get_by_label("GPUs each").fill("")
    lr = page.get_by_role("group", name="Parameter lr")
    lr.get_by_label("From").fill("0")  # zero has no logarithm
    expect(lr.get_by_text(re.compile("zero has no logarithm"))).to_be_visible()
    expect(page.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    lr.get_by_label("From").fill("0.001")
    optimizer = page.get_by_role("group", name="Parameter optimizer")
    optimizer.get_by_label("Values").fill("sgd, adam, lion")
    optimizer.get_by_label("Name").fill("method")
    page.get_by_role("button", name="Remove layers").click()
    page.get_by_role("button", name="Add a parameter").click()
    added = page.get_by_role("group", name="Parameter p4")
    added.get_by_label("Type").select_option("discrete")
    expect(added.get_by_text(re.compile("has no values"))).to_be_visible()
    added.get_by_label("Values").fill("16, 32")
    added.get_by_label("Only when").fill("method=adam|lion")
    added.get_by_label("Name").fill("batch")
    page.get_by_label("Early stopping").select_option("asha")
    page.get_by_label("One goes on of").fill("4")
    page.get_by_label("Trials", exact=True).fill("2")
    page.get_by_label("At once").fill("1")
    expect(yaml).to_contain_text("batch: {type: discrete, values: [16, 32], when: {method: [adam, lion]}}")
    expect(yaml).to_contain_text("stopping: {rule: asha, reduction: 4}")
    # What is written by hand shows in the form, a mistake at its field.
    yaml.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("algorithm: tpe")
    expect(page.get_by_label("Algorithm")).to_have_value("tpe")
    page.get_by_label("Trials", exact=True).fill("many")
    expect(page.get_by_label("Trials", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Trials", exact=True).fill("2")
    expect(page.get_by_text("checked by the server")).to_be_visible()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="by-form", exact=True)).to_be_visible()
    spec = platform.client.get_study("by-form").spec
    assert list(spec.parameters) == ["lr", "method", "momentum", "batch"]
    assert (spec.parameters["lr"].min, spec.parameters["momentum"].when) == (0.001, {"method": ("sgd",)})
    assert spec.parameters["batch"].when == {"method": ("adam", "lion")}
    assert (spec.budget.trials, spec.stopping.reduction, spec.algorithm) == (2, 4, "tpe")
    platform.client.stop_study("by-form")


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
