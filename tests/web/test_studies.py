"""A study in the browser: found in the list, watched, looked into, extended, cloned; on a platform that runs."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.web.conftest import accessible, expect
from tests.web.study_stage import Tried, put_study

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


SEARCH = {
    "parameters": {
        "lr": {"type": "float", "min": 0.001, "max": 1, "scale": "log"},
        "depth": {"type": "integer", "min": 1, "max": 9},
    },
    "metric": "accuracy",
    "goal": "maximize",
}
COUNT = 24


def searched(platform: Any, name: str) -> str:
    """Id of a finished study: each sixth trial failed, each fourth was stopped early, and the last is the best."""
    trials = []
    for number in range(1, COUNT + 1):
        point = {"lr": 0.001 * 1.3**number, "depth": 1 + number % 9}
        if number % 6 == 1:
            trials.append(Tried(point, None, "failed", "it exploded"))
            continue
        is_stopped = number % 4 == 2
        curve = [(step, number / 30 * step / 4) for step in range(1, 3 if is_stopped else 5)]
        state, reason = ("stopped", "not among the best") if is_stopped else ("succeeded", "")
        trials.append(Tried(point, {"accuracy": curve[-1][1]}, state, reason, curve))
    return put_study(platform.home, {**SEARCH, "name": name, "budget": {"trials": COUNT}}, trials)


def clicked(page: Any, chart: Any) -> None:
    """A click on the first trial that the mouse finds on its way over the chart."""
    expect(chart).to_be_visible()
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    for across in (0.5, 0.3, 0.7, 0.9, 0.1):
        for down in range(6, int(box["height"]), 12):
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down)
            page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
            if page.locator(".plot-tip").count():
                page.mouse.click(box["x"] + across * box["width"], box["y"] + down)
                return
    pytest.fail("the mouse found no trial")


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


def test_a_study_is_followed_inspected_and_cloned(page: Any, platform: Any) -> None:
    made = platform.client.create_study(SPEC)
    tried(platform, made.id, 20)
    page.goto("/studies")
    page.get_by_role("link", name="digits-search").click()
    expect(page.get_by_role("img", name=re.compile("^accuracy of 16 trials in order"))).to_be_visible()
    expect(page.get_by_text("20 of 24 trials")).to_be_visible()
    weights = page.get_by_role("heading", name="Parameter importance").locator("xpath=../..")
    expect(weights.get_by_role("listitem")).to_have_count(3)
    tried(platform, made.id, 4)  # the page was not loaded again
    expect(page.get_by_text("All 24 trials are done.")).to_be_visible()

    page.get_by_role("link", name="Parameters", exact=True).click()
    expect(
        page.get_by_role("img", name="20 of 20 trials as lines over lr, optimizer, momentum, accuracy")
    ).to_be_visible()
    page.get_by_label("Y axis", exact=True).select_option("momentum")
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
    page.get_by_label("warm start from its trials").check()
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="digits-search-2")).to_be_visible()
    assert platform.client.get_study("digits-search-2").spec.warm_start == (made.id,)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Stop study").click()
    expect(page.locator(".job-head .state")).to_have_text("cancelled")

    accessible(
        page,
        "/studies",
        "/studies/new",
        *(f"/studies/{made.id}{tab}" for tab in ("", "/parameters", "/trials", "/curves")),
    )


def test_a_study_is_created_by_form_and_yaml(page: Any, platform: Any) -> None:
    page.goto("/studies/new")
    yaml = page.get_by_label("The study as YAML")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_label("Name", exact=True).first.fill("by-form")
    page.get_by_label("Command").fill("sleep 600")
    page.get_by_label("GPUs each").fill("")
    lr = page.get_by_role("group", name="Parameter lr")
    lr.get_by_label("Min").fill("0")  # zero has no logarithm
    expect(lr.get_by_text(re.compile("zero has no logarithm"))).to_be_visible()
    expect(page.get_by_role("button", name="Create", exact=True)).to_be_disabled()
    lr.get_by_label("Min").fill("0.001")
    optimizer = page.get_by_role("group", name="Parameter optimizer")
    optimizer.get_by_label("Values").fill("sgd, adam, lion")
    optimizer.get_by_label("Name").fill("method")
    page.get_by_role("button", name="Remove layers").click()
    page.get_by_role("button", name="Add a parameter").click()
    added = page.get_by_role("group", name="Parameter p4")
    added.get_by_label("Type").select_option("discrete")
    expect(added.get_by_text(re.compile("has no values"))).to_be_visible()
    added.get_by_label("Values").fill("16, 32")
    added.get_by_label("Condition").fill("method=adam|lion")
    added.get_by_label("Name").fill("batch")
    page.get_by_label("Early stopping").select_option("asha")
    page.get_by_label("Reduction factor").fill("4")
    page.get_by_label("Trials", exact=True).fill("2")
    page.get_by_label("Parallel trials").fill("1")
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
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="by-form", exact=True)).to_be_visible()
    spec = platform.client.get_study("by-form").spec
    assert list(spec.parameters) == ["lr", "method", "momentum", "batch"]
    assert (spec.parameters["lr"].min, spec.parameters["momentum"].when) == (0.001, {"method": ("sgd",)})
    assert spec.parameters["batch"].when == {"method": ("adam", "lion")}
    assert (spec.budget.trials, spec.stopping.reduction, spec.algorithm) == (2, 4, "tpe")
    platform.client.stop_study("by-form")


def test_a_job_leads_to_its_trial_and_a_trial_to_its_job(page: Any, platform: Any) -> None:
    template = {
        "command": ["sh", "-c", "for i in 1 2 3; do echo loss=0.$i step=$i; done; : $1", "sh"],
        "max_restarts": 0,
    }
    spec = {"name": "by-jobs", "template": template, "parameters": {"x": {"type": "float", "min": 0, "max": 1}}}
    made = platform.client.create_study(
        {**spec, "metric": "loss", "goal": "minimize", "algorithm": "random", "budget": {"trials": 2, "parallel": 2}}
    )
    platform.client.wait_for_study(made.id, timeout_s=90)
    page.goto(f"/studies/{made.id}/curves")
    expect(page.get_by_role("img", name="Curves of 2 trials")).to_be_visible()
    page.get_by_role("link", name="Trials", exact=True).click()
    page.get_by_role("button", name="Open trial 2").click()
    page.get_by_role("link", name="Job", exact=True).click()
    expect(page.get_by_role("heading", name="by-jobs-2")).to_be_visible()
    page.get_by_role("link", name="by-jobs", exact=True).click()
    expect(page.get_by_role("heading", name="by-jobs", exact=True)).to_be_visible()


def test_two_trials_are_compared(page: Any, platform: Any) -> None:
    script = 'case "$TRAINMASTER_PARAMETERS" in *\\"a\\"*) echo loss=0.31 step=1;; *) echo loss=0.72 step=1;; esac'
    spec = {
        "name": "compared",
        "template": {"command": ["sh", "-c", script], "max_restarts": 0},
        # Not among the arguments: what the trials tried stands in no spec then.
        "arguments": False,
        "parameters": {
            "kind": {"type": "categorical", "values": ["a", "b"]},
            "depth": {"type": "integer", "min": 1, "max": 9},
        },
        "initial": [{"kind": "a", "depth": 7}, {"kind": "b", "depth": 7}],
    }
    made = platform.client.create_study(
        {**spec, "metric": "loss", "goal": "minimize", "algorithm": "random", "budget": {"trials": 3, "parallel": 3}}
    )
    platform.client.wait_for_study(made.id, timeout_s=90)
    page.goto(f"/studies/{made.id}/trials")
    for number in (1, 2):
        page.get_by_label(f"Choose trial {number}").check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    results = page.get_by_role("table").filter(has_text="Ran")
    expect(results.get_by_role("row", name=re.compile("^loss"))).to_have_text(re.compile("0.31.*0.72"))
    expect(results.get_by_role("link", name=re.compile("^compared-"))).to_have_text(["compared-1", "compared-2"])
    parameters = page.get_by_role("table").filter(has_text="Parameter")
    rows = parameters.locator("tbody tr")
    expect(rows).to_have_text(["depth77", "kindab"])
    expect(parameters.locator("tr.differs")).to_have_text(["kindab"])
    accessible(page, page.url)


def test_the_forecast_of_more_trials_is_shown_if_known(page: Any, platform: Any) -> None:
    draw = random.Random(5)
    values = [round(draw.gauss(0.5, 0.1), 3) for _ in range(60)]
    ids = [
        put_study(
            platform.home,
            {**SEARCH, "name": f"ahead-{count}", "budget": {"trials": count}},
            [
                Tried({"lr": 0.01, "depth": 1 + place % 9}, {"accuracy": value})
                for place, value in enumerate(values[:count])
            ],
        )
        for count in (60, 5)
    ]
    prediction = platform.client.get_study_prediction(ids[0])
    last = prediction.points[-1]
    assert (last.more, prediction.best) == (60, max(values))
    assert last.low < last.high
    assert last.low <= last.likely <= last.high
    page.goto(f"/studies/{ids[0]}")
    ahead = page.locator(".card").filter(has=page.get_by_role("heading", name="Forecast"))
    shown = [f"{value:.4g}" for value in (last.likely, last.low, last.high)]
    expect(ahead).to_contain_text(
        f"Expected best accuracy after 60 more trials: {shown[0]} (80 % interval {shown[1]} to {shown[2]}). "
        f"Chance of improvement: {int(100 * prediction.chance + 0.5)} %."
    )
    expect(ahead).to_contain_text(f"{prediction.held} held. Extend the study to run more trials.")
    page.goto(f"/studies/{ids[1]}")
    expect(ahead).to_contain_text("Not known: 5 trials have a result, and 17 are needed.")


@pytest.mark.parametrize(
    ("tab", "chart", "first"),
    [
        ("", "^accuracy of 20 trials in order; the best is 0.8, of trial 24", 2),
        ("/parameters", "^20 of 20 trials as lines over lr, depth, accuracy", 24),
        ("/parameters", "^accuracy over lr, of 20 trials", 2),
        ("/parameters", "^Where accuracy is good, by lr and depth, of 20 trials", 2),
        ("/curves", "^Curves of 20 trials, 6 of them stopped early", 24),
    ],
)
def test_each_chart_leads_to_a_trial_and_its_job(
    page: Any, platform: Any, charted: str, tab: str, chart: str, first: int
) -> None:
    page.goto(f"/studies/{charted}{tab}")
    keys = page.get_by_role("listbox", name=re.compile(chart))
    expect(keys.get_by_role("option")).to_have_text(re.compile(f"^Trial {first}: "))
    keys.focus()
    page.keyboard.press("End")
    last = keys.get_by_role("option").inner_text().partition(":")[0]
    assert last != f"Trial {first}"
    expect(page.locator(".plot-tip b")).to_have_text(last)
    page.keyboard.press("ArrowRight")  # there is none behind the last one
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name=last, exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Job", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"charted-{last.removeprefix('Trial ')}", exact=True)).to_be_visible()

    page.goto(f"/studies/{charted}{tab}")
    clicked(page, page.get_by_role("img", name=re.compile(chart)))
    expect(
        page.get_by_role("region", name=re.compile(r"^Trial \d+$")).get_by_role("link", name="Job", exact=True)
    ).to_be_visible()


@pytest.fixture(scope="module")
def charted(platform: Any) -> str:
    searched(platform, "charted")  # of the same name, and older
    return searched(platform, "charted")


def test_counts_parameters_and_the_best_trial_link_to_trials(page: Any, platform: Any, charted: str) -> None:
    status = page.get_by_role("status").filter(has_text="trials")
    page.goto("/studies?q=charted")
    row = page.get_by_role("row").filter(has=page.locator(f"a[href='/studies/{charted}']"))
    row.get_by_role("link", name="4 failed").click()
    expect(status).to_have_text(f"4 of {COUNT} trials")
    page.locator(".job-head").get_by_role("link", name="6 stopped early").click()
    expect(status).to_have_text(f"6 of {COUNT} trials")
    page.get_by_role("link", name="Overview", exact=True).click()
    page.get_by_role("link", name="4 failed").last.click()  # below the history
    expect(status).to_have_text(f"4 of {COUNT} trials")
    page.get_by_role("link", name="Overview", exact=True).click()
    page.get_by_role("link", name=re.compile(r"^depth\b.*20 trials\)$")).click()
    expect(page.get_by_role("columnheader", name="depth")).to_have_attribute("aria-sort", "ascending")
    expect(status).to_have_text(f"20 of {COUNT} trials")
    page.get_by_role("link", name=f"{COUNT} of {COUNT} trials").click()
    expect(status).to_have_text(f"{COUNT} trials")
    page.get_by_role("link", name="job of trial 24", exact=True).click()
    expect(page.get_by_role("heading", name="charted-24", exact=True)).to_be_visible()


def test_jobs_of_a_study_exclude_those_of_a_namesake(page: Any, platform: Any, charted: str) -> None:
    page.goto(f"/studies/{charted}")
    page.get_by_role("link", name="their jobs").click()
    expect(page.get_by_role("status").filter(has_text="jobs")).to_have_text(f"{COUNT} jobs")
    page.get_by_role("button", name="study: charted").click()
    page.get_by_label("Search jobs").fill("charted-24")
    expect(page.get_by_role("link", name="charted-24", exact=True)).to_have_count(2)


def test_the_front_of_two_goals_is_drawn_named_and_clicked(page: Any, platform: Any) -> None:
    goals = {"parameters": SEARCH["parameters"], "metrics": {"accuracy": "maximize", "latency": "minimize"}}
    values = [(0.9, 30), (0.8, 10), (0.7, 20), (0.95, 60), (0.6, 70), *((0.5 + i / 100, 5 - i / 10) for i in range(9))]
    trials = [
        Tried({"lr": 0.01 * number, "depth": number % 9 + 1}, {"accuracy": accuracy, "latency": latency})
        for number, (accuracy, latency) in enumerate(values, start=1)
    ]
    study = put_study(platform.home, {**goals, "name": "two-goals", "budget": {"trials": len(trials)}}, trials)
    page.goto("/studies?q=two-goals")
    page.get_by_role("link", name="4 trials on the Pareto front").click()
    label = re.compile("^latency over accuracy of 14 trials; 4 are on the front")
    expect(page.get_by_role("heading", name="Pareto front: 4 trials")).to_be_visible()
    front = page.get_by_role("list", name="Trials on the front")
    expect(front.get_by_role("link", name="trial", exact=False)).to_have_count(8)  # and the job of each
    keys = page.get_by_role("listbox", name=label)
    keys.focus()
    page.keyboard.press("End")  # the one with the largest accuracy
    expect(keys.get_by_role("option")).to_have_text(re.compile("^Trial 4: accuracy: 0.95, latency: 60"))
    clicked(page, page.get_by_role("img", name=label))
    expect(page.get_by_role("region", name=re.compile(r"^Trial \d+$"))).to_be_visible()
    page.goto(f"/studies/{study}")
    front.get_by_role("link", name="its job, of trial 14").click()
    expect(page.get_by_role("heading", name="two-goals-14", exact=True)).to_be_visible()
    accessible(page, f"/studies/{study}", f"/studies/{study}/parameters", f"/studies/{study}/trials?trial=14")


def test_cleared_filters_leave_the_search_box(page: Any, platform: Any, charted: str) -> None:
    page.goto("/studies")
    page.get_by_label("Search studies").fill("no-such-study")
    expect(page.get_by_text("No matching studies")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_label("Search studies")).to_have_value("")
    expect(page.get_by_role("link", name="charted", exact=True)).to_have_count(2)


def test_a_click_right_after_typing_is_not_undone(page: Any, platform: Any, charted: str) -> None:
    page.goto("/studies")
    link = page.locator(f"a.job-name[href='/studies/{charted}']")
    expect(link).to_be_visible()
    delayed: list[Any] = []  # the next page's scripts, which are long on their way
    page.route(re.compile(r"/assets/.*\.js$"), lambda route: delayed.append(route))  # noqa: PLW0108
    page.get_by_label("Search studies").press_sequentially("cha")
    link.click()
    page.wait_for_timeout(600)  # the address follows what is typed after 0.2 s
    page.unroute_all()  # they go on
    assert delayed
    expect(page.get_by_role("heading", name="charted", exact=True)).to_be_visible(timeout=60_000)
