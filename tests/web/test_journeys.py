"""What people do with the web pages, in a real browser against a real platform."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.web.conftest import AXE, WITHIN_MS, expect, submit

pytestmark = [
    pytest.mark.e2e,
    # One platform and one browser; and Playwright's loop must not stand in the way of other tests' own.
    pytest.mark.xdist_group("web"),
]

# What prints as a user's program may: colours, markup, and a line for each rank.
TALK = r"""
printf '\033[31mred alert\033[0m\n'
echo '<img src=x onerror=alert(1)><script>alert(2)</script>'
for i in 1 2 3 4 5; do echo "loss=0.$i step=$i"; done
"""


def test_the_login_link_is_valid_once(open_browser: Callable[..., Any], platform: Any) -> None:
    code = platform.client.create_login_code().code
    page = open_browser(logged_in=False)
    page.goto(f"/login?code={code}")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert code not in page.url
    cookie = next(cookie for cookie in page.context.cookies() if cookie["name"] == "trainmaster_session")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    stranger = open_browser(logged_in=False)
    stranger.goto(f"/login?code={code}")
    expect(stranger.get_by_role("alert")).to_contain_text("already used")


def test_the_login_returns_to_the_requested_page(open_browser: Callable[..., Any], platform: Any) -> None:
    page = open_browser(logged_in=False)
    page.goto("/jobs?state=failed,cancelled")
    page.get_by_label("Your token").fill("tm_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("Your token").fill(platform.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("button.filter", has_text="State")).to_contain_text("2")
    assert "failed" in page.url
    # The session ends elsewhere: the next look goes to the login, and from there back.
    page.context.clear_cookies()
    expect(page.get_by_label("Your token")).to_be_visible()
    page.get_by_label("Your token").fill(platform.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("button.filter", has_text="State")).to_contain_text("2")


def test_the_login_never_redirects_to_another_server(open_browser: Callable[..., Any], platform: Any) -> None:
    page = open_browser(logged_in=False)
    page.goto("/login?next=//elsewhere.example/jobs")
    page.get_by_label("Your token").fill(platform.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert urlsplit(page.url).netloc == urlsplit(platform.url).netloc


def test_a_job_is_submitted_by_form_and_followed_to_its_end(page: Any) -> None:
    page.goto("/submit")
    page.get_by_label("Name", exact=True).fill("Not a name!")
    expect(page.get_by_role("status").filter(has_text=re.compile("invalid|errors"))).to_be_visible()
    assert page.get_by_role("button", name="Submit", exact=True).is_disabled()
    page.get_by_label("Name", exact=True).fill("watched")
    page.get_by_label("Command", exact=True).fill("for i in 1 2 3; do echo tick $i; sleep 0.3; done")
    page.get_by_label("Workers", exact=True).fill("1")
    # The command and the replicas must fit each other.
    command = page.get_by_label("Command", exact=True)
    loop = command.input_value()
    warning = page.get_by_role("status").filter(has_text="the command is for 4 machines (--nnodes)")
    command.fill("torchrun --nnodes=4 train.py")
    expect(warning).to_contain_text("set workers: 4")
    command.fill(loop)
    expect(warning).to_be_hidden()
    page.get_by_label("CPUs each").fill("100m")
    page.get_by_label("Memory each").fill("128Mi")
    expect(page.get_by_label("The job as YAML")).to_contain_text("name: watched")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="watched")).to_be_visible()
    page.get_by_role("link", name="Logs", exact=True).click()
    expect(page.get_by_role("log")).to_contain_text("tick 3")
    expect(page.locator(".job-head .state")).to_have_text("succeeded")
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.get_by_text("job.succeeded")).to_be_visible()
    page.get_by_role("link", name="Spec", exact=True).click()
    page.locator(".card").get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("watched-2")


def test_logs_are_searched_coloured_and_never_executed(page: Any, platform: Any) -> None:
    job = submit(platform, "talker", TALK)
    page.goto(f"/jobs/{job}/logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("<img src=x onerror=alert(1)><script>alert(2)</script>")
    expect(log.locator(".ansi-red")).to_have_text("red alert")
    assert log.locator("img, script").count() == 0
    page.get_by_label("Search the log by a regular expression").fill("step=[24]$")
    page.keyboard.press("Enter")
    expect(log.locator(".log-line")).to_have_count(2)
    expect(log.locator("mark").first).to_have_text("step=2")
    page.reload()  # the search is in the address
    expect(log.locator(".log-line")).to_have_count(2)
    page.get_by_label("Search the log by a regular expression").fill("(")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not a regular expression")


def test_a_job_is_cancelled_and_user_text_is_never_markup(page: Any, platform: Any) -> None:
    job = submit(platform, "sleeper", "sleep 600")
    page.goto(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("Cancel sleeper?")
    dialog.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".job-head .state")).to_have_text("cancelled")
    other = submit(platform, "sleeper", "sleep 600")
    platform.client.cancel_job(other, reason="<img src=x onerror=alert(3)>")
    page.goto(f"/jobs/{other}/events")
    expect(page.get_by_text("<img src=x onerror=alert(3)>").first).to_be_visible()


def test_many_jobs_are_filtered_selected_and_deleted_with_the_selection_in_the_address(
    page: Any, platform: Any
) -> None:
    for number in range(3):
        job = submit(platform, f"many-{number}", "true", labels={"team": "blue"})
        platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    page.goto("/jobs")
    page.get_by_label("Search jobs").fill("many-")
    rows = page.locator(".grid-body .grid-row")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile(r"q=many-"))
    page.reload()
    expect(rows).to_have_count(3)
    page.get_by_label("Choose many-0").check()
    page.get_by_label("Choose many-1").check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^name"))).to_contain_text("many-1")
    page.go_back()
    expect(rows).to_have_count(3)
    page.get_by_label("Choose all listed jobs").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(rows).to_have_count(0)
    expect(page.get_by_text("No matching jobs")).to_be_visible()


def test_pages_wait_for_an_unreachable_api_and_recover(page: Any, platform: Any) -> None:
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.context.set_offline(True)
    expect(page.get_by_text("The API does not respond").first).to_be_visible()
    submit(platform, "meanwhile", "true")
    page.context.set_offline(False)
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    expect(page.get_by_text("The API does not respond")).to_have_count(0)


def test_pages_recover_after_the_api_is_killed_and_restarted(page: Any, platform: Any) -> None:
    victims = importlib.import_module("tests.e2e.test_chaos").victims
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    (api,) = victims(platform.home)["api"]
    # Its supervisor would restart it immediately, and its open socket accepts connections that no process answers.
    platform.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(api, signal.SIGKILL)
        expect(page.get_by_text("The API does not respond").first).to_be_visible()
    finally:
        platform.process.send_signal(signal.SIGCONT)
    expect(page.get_by_text("The API does not respond")).to_have_count(0)
    submit(platform, "after-the-kill", "true")
    expect(page.get_by_role("link", name="after-the-kill")).to_be_visible()  # the page was not loaded again


# Metrics of a training in TensorBoard files, with hostile names.
TELLS = r"""
import os, struct, sys
sys.path[:0] = %r
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from zlib import compress, crc32
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))
header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0))
pixels = chunk(b"IDAT", compress(bytes([0, 9, 200, 0, 90, 3])))
png = b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")
values = [
    Summary.Value(tag="<img src=x onerror=alert(4)>", simple_value=0.25),
    Summary.Value(
        tag="<script>alert(5)</script>",
        image=Summary.Image(height=2, width=2, colorspace=1, encoded_image_string=png),
    ),
    Summary.Value(
        tag="weights",
        histo=HistogramProto(min=0, max=2, num=3, sum=3, sum_squares=5, bucket_limit=[1, 2], bucket=[1, 2]),
    ),
    Summary.Value(
        tag="said",
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(dtype=7, string_val=[b"<script>alert(6)</script>"]),
    ),
]
writer = EventFileWriter(os.path.join(os.environ["TRAINMASTER_OUTPUT_DIR"], "tb"))
for step in (1, 2):
    writer.add_event(Event(step=step, wall_time=1.7e9 + step, summary=Summary(value=values)))
writer.close()
"""


def test_images_histograms_texts_and_tensorboard_are_shown(page: Any, platform: Any) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("TensorBoard is not installed: pip install -e '.[tensorboard]'")
    job = platform.client.submit_job(
        {
            "name": "teller",
            "command": [sys.executable, "-c", TELLS % (sys.path,)],
            "workers": 1,
            "labels": {"team": "blue"},
            "max_restarts": 0,
        }
    )
    assert platform.client.wait_for_job(job.id, timeout_s=WITHIN_MS / 1000).state == "succeeded"
    page.goto(f"/jobs/{job.id}/metrics")
    expect(page.get_by_role("heading", name="<img src=x onerror=alert(4)>")).to_be_visible()
    image = page.get_by_role("img", name="<script>alert(5)</script> at step 2")
    expect(image).to_have_js_property("naturalWidth", 2)  # it has come, and is the one of two by two
    expect(page.get_by_role("img", name="Histogram of weights")).to_be_visible()
    expect(page.get_by_text("<script>alert(6)</script>")).to_be_visible()
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="TensorBoard").click()
    board = opened.value
    board.wait_for_url(re.compile("/tensorboard/"))
    expect(board).to_have_title("TensorBoard")
    assert board.evaluate("window.opener") is None  # what it shows is users': it gets no handle on our page


def test_all_pages_are_reachable_by_keyboard(page: Any) -> None:
    page.goto("/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    palette = page.get_by_role("combobox")
    palette.fill("cluster")
    expect(page.get_by_role("option", selected=True)).to_contain_text("Cluster")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Cluster", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Tokens", exact=True)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("combobox")).to_have_count(0)


# Two checkpoints in the safetensors format, which needs no library to write: one of three weights moves, one has a NaN.
SAVES = """
import json, os, struct
folder = os.path.join(os.environ["TRAINMASTER_OUTPUT_DIR"], "checkpoints")
os.makedirs(folder, exist_ok=True)
for step, moved in ((1, 1.0), (2, 5.0)):
    tensors = {"fc.weight": [moved, 2.0, 3.0, 4.0], "fc.bias": [0.0, 0.0], "head.weight": [1.0, float("nan")]}
    header, data = {}, b""
    for name, values in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(os.path.join(folder, f"step-{step}.safetensors.tmp"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    os.rename(file.name, file.name[:-4])
"""


def test_checkpoints_are_inspected_compared_and_cloned_from(page: Any, platform: Any) -> None:
    job = platform.client.submit_job({"name": "saver", "command": ["python3", "-c", SAVES], "workers": 1})
    platform.client.wait_for_job(job.id, timeout_s=WITHIN_MS / 1000)
    page.goto(f"/jobs/{job.id}/checkpoints")
    page.get_by_role("link", name="checkpoints/step-2.safetensors", exact=True).click()
    weight = page.get_by_role("row", name=re.compile("weight 2"))  # head.weight, of shape 2
    expect(weight).to_contain_text("float32")
    expect(weight.locator(".tone-red")).to_have_text("1")
    expect(page.get_by_role("img", name=re.compile("Histogram")).first).to_be_visible()
    page.get_by_role("navigation", name="Checkpoint", exact=True).get_by_role("link", name="Checkpoints").click()
    page.get_by_label("Choose checkpoints/step-1.safetensors").check()
    page.get_by_label("Choose checkpoints/step-2.safetensors").check()
    page.get_by_role("link", name="Compare", exact=True).click()
    moved = page.get_by_role("row", name=re.compile("fc.weight changed"))
    expect(moved).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("fc.bias"))).to_have_count(0)  # equal in both
    page.go_back()
    page.get_by_label("Pin checkpoints/step-1.safetensors").click()
    expect(page.get_by_text("pinned", exact=True)).to_be_visible()
    # An ended job does not start again: its page says so and submits another that begins there.
    page.get_by_label("Resume from checkpoints/step-1.safetensors").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("saver has ended (succeeded)")
    dialog.get_by_role("button", name="Edit the new job").click()
    expect(page.get_by_text("Clone of saver, resuming from checkpoints/step-1.safetensors")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("saver-2")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("resuming from step-1.safetensors")).to_be_visible()
    expect(page.get_by_role("link", name=job.id)).to_be_visible()  # cloned from


# Saves as above, prints the checkpoint it starts from, and keeps running.
STAYS = 'echo begins at ${TRAINMASTER_RESUME_FROM:-nothing}; python3 -c "$SAVES"; echo saved; sleep 600'


def test_a_running_and_a_paused_job_resume_from_a_chosen_checkpoint(page: Any, platform: Any) -> None:
    job = submit(platform, "stayer", STAYS, env={"SAVES": SAVES})
    page.goto(f"/jobs/{job}/logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("saved")
    page.goto(f"/jobs/{job}/checkpoint?path=checkpoints/step-1.safetensors")
    page.get_by_role("button", name="Resume from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("stayer is stopped, returns to the queue and restarts from step-1")
    dialog.get_by_role("button", name="Resume this job").click()
    expect(page.get_by_text("stayer resumes from step-1.safetensors.")).to_be_visible()
    page.get_by_role("link", name="Logs", exact=True).click()
    expect(log).to_contain_text(re.compile("begins at .*step-1.safetensors"))
    expect(page.locator(".job-head .state")).to_have_text("running")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".job-head .state")).to_have_text("paused")
    page.get_by_role("link", name=re.compile("^Checkpoints")).click()
    page.get_by_label("Resume from checkpoints/step-2.safetensors").click()
    expect(dialog).to_contain_text("stayer is paused")
    dialog.get_by_role("button", name="Resume this job").click()
    page.get_by_role("link", name="Logs", exact=True).click()
    expect(log).to_contain_text(re.compile("begins at .*step-2.safetensors"))
    platform.client.cancel_job(job)


def test_metrics_of_two_jobs_are_in_one_chart(page: Any, platform: Any) -> None:
    names = ("first", "second")
    ids = [submit(platform, name, "for i in 1 2 3; do echo loss=0.$i step=$i; done; sleep 1") for name in names]
    for job in ids:
        platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    page.goto(f"/jobs/{ids[0]}/metrics")
    expect(page.get_by_role("img", name=re.compile("^loss. Latest: worker-0: 0.3"))).to_be_visible()
    page.goto(f"/compare?jobs={','.join(ids)}")
    chart = page.get_by_role("img", name=re.compile("^loss. Latest: "))
    expect(chart).to_have_attribute("aria-label", re.compile("first: 0.3, second: 0.3"))


@pytest.mark.parametrize("look", ["light", "dark phone"])
def test_pages_are_accessible_and_fit(open_browser: Callable[..., Any], platform: Any, look: str) -> None:
    """No violation of WCAG 2.2 A and AA that axe-core finds, and nothing wider than the window."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed (python3 dev.py web installs it)")
    jobs = [
        submit(platform, name, 'echo loss=0.1 step=1; python3 -c "$SAVES"', env={"SAVES": SAVES})
        for name in ("seen", "seen-too")
    ]
    for job in jobs:
        platform.client.wait_for_job(job, timeout_s=WITHIN_MS / 1000)
    size = {"viewport": {"width": 390, "height": 844}} if look == "dark phone" else {}
    page = open_browser(color_scheme="dark" if look == "dark phone" else "light", **size)
    page.context.add_init_script(path=AXE)
    tabs = ("", "/logs", "/metrics", "/checkpoints", "/files", "/events", "/spec")
    inside = "/checkpoint?path=checkpoints/step-2.safetensors"
    of_jobs = (
        *(f"/jobs/{job}{tab}" for tab in (*tabs, inside, f"{inside}&other=checkpoints/step-1.safetensors")),
        f"/compare?jobs={','.join(jobs)}",
        "/jobs/none-such",
    )
    of_the_platform = (
        "/projects",
        "/projects/default",
        "/users",
        "/tokens",
        "/webhooks",
        "/notifications",
        "/volumes",
        "/settings",
    )
    for path in ("/jobs", *of_jobs, "/submit", "/cluster", *of_the_platform):
        page.goto(path)
        expect(page.locator("main h1, main h2").first).to_be_visible()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        found = page.evaluate(
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
            ".then(({violations}) => violations.map("
            "({id, nodes}) => `${id}: ${nodes.map((node) => node.html).join(' | ')}`))"
        )
        assert found == [], (path, look)
        wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        assert not wide, (path, look)


def test_pages_have_titles_and_an_unknown_address_shows_the_shell(page: Any, platform: Any) -> None:
    job = submit(platform, "titled", "true")
    page.goto(f"/jobs/{job}/logs")
    expect(page).to_have_title(re.compile(r"^titled \(\w+\) · Logs · Jobs · Trainmaster$"))
    page.goto("/projects/default/models")
    expect(page).to_have_title("Page not found · Trainmaster")
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Models").click()
    expect(page).to_have_url(re.compile(r"/models\?project=default$"))
    expect(page).to_have_title("Models · Trainmaster")
