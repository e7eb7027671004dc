"""Endpoints in the browser: deploy, predict, split traffic, update, roll back, scale, delete; batch predictions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import accessible, expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web"), pytest.mark.timeout(1800)]
# A replica reads scikit-learn before it is ready, which a machine with much to do takes its time for.
READY_MS = 400_000


def save_models(folder: Path) -> None:
    """Of sums, and of ten times as much: they tell which one answered."""
    from sklearn.linear_model import LinearRegression
    from skops import io

    for name, factor in (("one", 1.0), ("ten", 10.0)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        model = LinearRegression(fit_intercept=False).fit([[1, 0], [0, 1]], [factor, factor])
        io.dump(model, folder / name / "model.skops")


def deploy(page: Any, model: str, **fields: str) -> None:
    page.get_by_role("button", name="Deploy a model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model", exact=True).fill(model)
    for label, value in {"CPUs each": "100m", **fields}.items():
        dialog.get_by_label(label, exact=True).fill(value)
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    expect(dialog).to_have_count(0)


def card(page: Any, name: str = "default") -> Any:
    return page.get_by_role("region", name=f"Deployed model {name}")


def until_ready(page: Any, words: str, name: str = "default") -> None:
    """Wait until the card says ``words`` and the state is ready, without reloading the page."""
    expect(card(page, name)).to_contain_text(words, timeout=READY_MS)
    expect(card(page, name).locator("header .state")).to_have_text("ready", timeout=READY_MS)


def ask(page: Any, instances: Any, *, of: str = "") -> Any:
    page.get_by_role("link", name="Try it").click()
    if of:
        page.get_by_label("Deployed model").select_option(of)
    page.get_by_label("JSON body").fill(json.dumps({"instances": instances}))
    page.get_by_role("button", name="Send").click()
    return page.get_by_role("region", name="Response")


def test_a_new_endpoint_has_no_deployed_models(page: Any) -> None:
    page.goto("/endpoints")
    page.get_by_role("button", name="Create an endpoint").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("No Name")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Name").fill("empty")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="No deployed models")).to_be_visible()
    page.get_by_role("link", name="Try it").click()
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response").get_by_role("alert")).to_contain_text(
        "nothing is deployed to it"
    )
    expect(page.get_by_text("The API does not respond")).to_have_count(0)  # a 503 of an endpoint is no silence


def test_models_are_deployed_updated_rolled_back_scaled_and_deleted(page: Any, platform: Any) -> None:
    save_models(platform.home / "output/default/models")
    platform.client.create_endpoint("sums")
    page.goto("/endpoints/default/sums")
    page.get_by_role("button", name="Deploy a model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model", exact=True).fill("nowhere/at-all")
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    expect(dialog.get_by_role("alert").first).to_contain_text("no volume 'nowhere'")
    dialog.get_by_role("button", name="Cancel").click()
    deploy(page, "output/default/models/one")
    until_ready(page, "1 of 1 ready")
    expect(ask(page, [[1, 2]])).to_contain_text(
        re.compile(r"predictions.*\b3(\.0)?\b.*From default, revision 1", re.DOTALL)
    )
    refused = ask(page, "none")
    expect(refused.get_by_role("alert")).to_contain_text("The model returned an error")

    page.get_by_role("link", name="Overview").click()
    deploy(page, "output/default/models/ten", **{"Deployment name": "next", "Traffic, %": "0"})
    until_ready(page, "1 of 1 ready", "next")
    expect(ask(page, [[1, 2]], of="next")).to_contain_text(re.compile(r"\b30(\.0)?\b.*From next", re.DOTALL))
    page.get_by_role("button", name="Traffic").click()
    dialog.get_by_label(re.compile("^next")).fill("70")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert").first).to_contain_text("100")
    dialog.get_by_label(re.compile("^default")).fill("0")
    dialog.get_by_label(re.compile("^next")).fill("100")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog).to_have_count(0)
    expect(ask(page, [[1, 3]], of="")).to_contain_text(re.compile(r"\b40(\.0)?\b", re.DOTALL))

    page.get_by_role("link", name="Overview").click()
    card(page).get_by_role("button", name="Update").click()
    dialog.get_by_label("Model", exact=True).fill("output/default/models/ten")
    dialog.get_by_label("Reason").fill("ten times better")
    dialog.get_by_role("button", name="Update", exact=True).click()
    until_ready(page, "revision 2 · 0 % of traffic")
    page.get_by_role("link", name="Revisions").click()
    expect(page.get_by_role("region", name="Revisions of default").first).to_contain_text("ten times better")
    page.get_by_role("button", name="Roll back to revision 1").click()
    dialog.get_by_role("button", name="Roll back").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("link", name="Overview").click()
    until_ready(page, "revision 1 · 0 % of traffic")

    card(page, "next").get_by_role("button", name="Scale").click()
    dialog.get_by_label("Replicas").fill("0")
    dialog.get_by_role("button", name="Scale").click()
    until_ready(page, "0 of 0 ready", "next")
    expect(ask(page, [[1, 2]]).get_by_role("alert")).to_contain_text("no ready replica", timeout=READY_MS)
    accessible(page, "/endpoints", *(f"/endpoints/default/sums{tab}" for tab in ("", "/try", "/revisions")))
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/endpoints$"))
    expect(page.get_by_role("link", name="sums", exact=True)).to_have_count(0, timeout=READY_MS)


def test_a_batch_prediction_runs_from_form_to_results(page: Any, platform: Any) -> None:
    output = platform.home / "output/default"
    save_models(output / "models")
    (output / "questions").mkdir()
    (output / "questions/a.jsonl").write_text("[1, 2]\n[3, 4]\nnonsense\n")
    page.goto("/batch-predictions")
    page.get_by_role("button", name="New batch prediction").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("sums-of-all")
    dialog.get_by_label("Model", exact=True).fill("output/default/models/ten")
    dialog.get_by_label("Instances").fill("output/default/nothing.jsonl")
    dialog.get_by_label("Output").fill("output/default/answers")
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog.get_by_role("alert").first).to_contain_text("does not exist")
    dialog.get_by_label("Instances").fill("output/default/questions")
    dialog.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="sums-of-all")).to_be_visible()
    expect(page.locator(".job-head .state").first).to_have_text("succeeded", timeout=READY_MS)
    page.goto("/batch-predictions")
    row = page.get_by_role("row", name=re.compile("sums-of-all"))
    expect(row).to_contain_text("succeeded")
    row.get_by_role("link", name="results").click()
    page.get_by_role("link", name=re.compile("predictions-00000.jsonl")).first.click()
    answers = [json.loads(line) for line in (output / "answers/predictions-00000.jsonl").read_text().splitlines()]
    assert [one["prediction"] for one in answers] == pytest.approx([30.0, 70.0])
    assert "nonsense" in (output / "answers/errors-00000.jsonl").read_text()
    accessible(page, "/batch-predictions")
