"""Models in the browser: registration, comparison, aliases, stages, protection and deletion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import WITHIN_MS, accessible, expect, submit

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web")]

TRAIN = """
mkdir -p "$TRAINMASTER_OUTPUT_DIR/model/vocabulary"
echo {content} > "$TRAINMASTER_OUTPUT_DIR/model/weights.txt"
echo a > "$TRAINMASTER_OUTPUT_DIR/model/vocabulary/words.txt"
echo accuracy={accuracy} loss=0.5 step=3
"""


def trained(platform: Any, name: str, accuracy: float) -> str:
    job = submit(platform, name, TRAIN.format(content=name, accuracy=accuracy))
    platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    return job


def test_a_job_is_registered_as_model_and_its_versions_are_compared(page: Any, platform: Any, tmp_path: Path) -> None:
    first, second = trained(platform, "letters-1", 0.81), trained(platform, "letters-2", 0.93)
    page.goto(f"/jobs/{first}")
    page.get_by_role("button", name="Register as model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model", exact=True).fill("Not a name")
    dialog.get_by_role("button", name="Register").click()
    expect(dialog.get_by_role("alert")).to_contain_text("letters (a to z), digits")
    dialog.get_by_label("Model", exact=True).fill("letters")
    dialog.get_by_label("Path in the output").fill("nothing-there")
    dialog.get_by_role("button", name="Register").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nothing-there")
    dialog.get_by_label("Path in the output").fill("")
    dialog.get_by_label("Aliases").fill("best")
    dialog.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="v1", exact=True)).to_be_visible()
    expect(page.get_by_label("Version", exact=True).locator(".state").first).to_have_text("ready")  # live
    expect(page.get_by_role("region", name="Metrics")).to_contain_text("0.81")
    expect(page.get_by_role("region", name="Files").first).to_contain_text("vocabulary/words.txt")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download weights.txt").click()
    assert Path(download.value.path()).read_text() == "letters-1\n"
    page.get_by_role("link", name="letters-1", exact=True).click()
    expect(page.get_by_role("heading", name="letters-1")).to_be_visible()
    page.get_by_role("link", name="letters", exact=True).click()  # the job's page leads back

    registered = platform.client.register_version("default", "letters", second)
    platform.client.wait_for_version("default", "letters", str(registered.version))
    page.get_by_label("Choose version 2").check()
    page.get_by_label("Choose version 1").check()
    page.get_by_role("link", name="Compare 2").click()
    metrics = page.get_by_role("region", name="Metrics")
    expect(metrics.get_by_role("row", name=re.compile("^accuracy"))).to_have_text(re.compile("0.81.*0.93"))
    expect(metrics.locator("tr.differs")).to_have_count(1)
    accessible(page, "/models", "/models/default/letters", "/models/default/letters/versions/1",
               "/models/default/letters/compare?versions=1,2", "/models/default/letters/history")  # fmt: skip


def test_a_version_gets_an_alias_a_stage_and_protection_before_deletion(page: Any, platform: Any) -> None:
    job = trained(platform, "digits", 0.9)
    for _ in range(2):
        made = platform.client.register_version("default", "digits", job)
        platform.client.wait_for_version("default", "digits", str(made.version))
    page.goto("/models")
    page.get_by_label("Search models").fill("digits")
    page.get_by_role("link", name="digits", exact=True).click()
    page.get_by_role("button", name="Add").click()
    page.get_by_label("Alias", exact=True).fill("latest")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("always names the newest")
    page.get_by_label("Alias", exact=True).fill("prod")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("button", name="Move prod")).to_be_visible()
    page.get_by_role("button", name="Move prod").click()
    page.get_by_role("dialog").get_by_label("Version").select_option("1")
    page.get_by_role("dialog").get_by_label("Reason").fill("the newer one was worse")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert platform.client.get_model("default", "digits").aliases == {"prod": 1}
    # Who has moved it meanwhile is not undone.
    page.get_by_role("button", name="Move prod").click()
    platform.client.set_model_alias("default", "digits", "prod", 2)
    page.get_by_role("dialog").get_by_label("Version").select_option("1")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    alert_or_moved = page.get_by_role("dialog").get_by_role("alert")
    expect(alert_or_moved).to_contain_text("now points to version 2")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    page.get_by_role("table").get_by_role("link", name="v2", exact=True).click()
    page.get_by_role("button", name="Set stage").click()
    page.get_by_role("dialog").get_by_label("Stage").select_option("production")
    page.get_by_role("dialog").get_by_label("Reason").fill("it won")
    page.get_by_role("dialog").get_by_role("button", name="Set").click()
    expect(page.get_by_text("Stage none → production")).to_be_visible()
    expect(page.get_by_text("it won")).to_be_visible()
    page.get_by_role("button", name="Protect version 2").click()
    expect(page.get_by_role("button", name="Unprotect version 2")).to_be_visible()
    page.get_by_role("button", name="Delete version 2").click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("is protected; remove the protection first")
    dialog.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Unprotect version 2").click()
    page.get_by_role("button", name="Delete version 2").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("has the alias prod")
    dialog.get_by_label("ignore protection").check()
    dialog.get_by_role("button", name="Force delete").click()
    expect(page.get_by_role("table").get_by_role("link", name="v1", exact=True)).to_be_visible()
    expect(page.get_by_role("table").get_by_role("link", name="v2", exact=True)).to_have_count(0)
    page.get_by_role("link", name="History", exact=True).click()
    expect(page.get_by_text("Version deleted")).to_be_visible()
    page.goto("/models?stage=production")
    expect(page.get_by_role("link", name="digits", exact=True)).to_have_count(0)


def test_a_checkpoint_and_a_studys_best_trial_are_registered(page: Any, platform: Any) -> None:
    # One weight in the safetensors format, which a shell can write: the header's length, the header, a byte.
    header = '{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    length = f"\\{len(header):03o}" + "\\000" * 7
    saved = f"""
mkdir -p "$TRAINMASTER_OUTPUT_DIR/checkpoints"
printf '{length}{header}w' > "$TRAINMASTER_OUTPUT_DIR/checkpoints/step-5.safetensors"
"""
    template = {"command": ["sh", "-c", TRAIN.format(content="x", accuracy="0.7") + saved], "max_restarts": 0}
    study = platform.client.create_study(
        {
            "name": "search",
            "template": template,
            "arguments": False,
            "parameters": {"lr": {"type": "float", "min": 0.1, "max": 1}},
            "metric": "accuracy",
            "goal": "maximize",
            "algorithm": "random",
            "budget": {"trials": 1},
        }
    )
    platform.client.wait_for_study(study.id, timeout_s=WITHIN_MS / 1000)
    page.goto(f"/studies/{study.id}")
    page.get_by_role("button", name="Register as model").click()
    page.get_by_role("dialog").get_by_label("Model", exact=True).fill("searched")
    page.get_by_role("dialog").get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="v1", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile(r"^lr = 0\."))).to_be_visible()
    page.get_by_role("link", name="search", exact=True).click()
    expect(page.get_by_role("heading", name="search", exact=True)).to_be_visible()
    job = platform.client.get_study_best(study.id).trials[0].job
    page.goto(f"/jobs/{job}/checkpoints")
    page.get_by_role("button", name=re.compile("^Register .* as model")).first.click()
    page.get_by_role("dialog").get_by_label("Model", exact=True).fill("searched")
    page.get_by_role("dialog").get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="v2", exact=True)).to_be_visible()
    page.get_by_role("link", name="checkpoints/step-5.safetensors").click()
    expect(page).to_have_url(re.compile(f"/jobs/{job}/checkpoint"))
