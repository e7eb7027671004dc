"""AutoML in the browser: the whole leaderboard, the best of each family, and the winner's honest test."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.studies.test_automl import write_table
from tests.web.conftest import accessible, expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web"), pytest.mark.timeout(1800)]
# Each trial reads scikit-learn first, which a machine with much to do takes its time for.
DONE_MS = 600_000


def test_the_leaderboard_shows_every_model_and_the_winners_test_score(page: Any, platform: Any) -> None:
    write_table(platform.home / "data" / "buyers.csv")
    made = platform.client.create_automl(
        "data/buyers.csv", "bought", families=["baseline", "linear"], trials=3, folds=2, budget="15m", name="shop",
        resources={"cpu": "500m"},
    )  # fmt: skip
    page.goto(f"/studies/{made.id}")
    board = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="Family"))
    test = page.locator("section", has=page.get_by_role("heading", name="Test score of the winner"))
    expect(test).to_contain_text(re.compile(r"accuracy 1.*on 16 held-out rows", re.DOTALL), timeout=DONE_MS)
    expect(board.get_by_role("row")).to_have_count(4)
    first = board.get_by_role("row").nth(1)
    expect(first).to_contain_text(re.compile(r"^1linear.*1 ± 0", re.DOTALL))
    best = page.get_by_role("list", name="Best model of each family").get_by_role("listitem")
    expect(best.nth(0)).to_contain_text("linear")
    expect(best.nth(1)).to_contain_text("baseline")
    first.get_by_role("link", name=re.compile("^trial")).click()
    expect(page.get_by_role("region", name=re.compile("^Trial"))).to_contain_text("linear")
    accessible(page, f"/studies/{made.id}")
