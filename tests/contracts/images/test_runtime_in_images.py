"""The runtime inside real containers, in images with Python and without."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from executors.base import ExitCause
from executors.containers import paths
from executors.containers.exits import read_exit, stop_mark

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("images")]

STAMPED = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ")
KINDS = ("python", "plain", "bare")


@pytest.fixture
def image(request: pytest.FixtureRequest) -> str:
    if request.param == "python":
        request.getfixturevalue("engine")
        return "python:3.11-slim"
    name: str = request.getfixturevalue(f"{request.param}_image")
    return name


every_image = pytest.mark.parametrize("image", KINDS, indirect=True)
with_tools = pytest.mark.parametrize("image", ["python", "plain"], indirect=True)


def until(condition: Any, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.05)


def sh(text: str) -> tuple[str, ...]:
    """For the bare image too: its only program is busybox."""
    return ("busybox", "sh", "-c", text)


def shell_of(image: str, text: str) -> tuple[str, ...]:
    return sh(text) if image.endswith("/bare") else ("sh", "-c", text)


@every_image
def test_a_command_ends_well_and_its_log_has_times(image: str, run: Any) -> None:
    box = run(image, shell_of(image, 'echo "hello $NAME"; printf end'), env={"NAME": "wörld\n  'x' $HOME"})
    assert box.code == 0, box.raw_log
    assert (box.exit.cause, box.exit.exit_code) == (ExitCause.EXITED, 0)
    lines = box.raw_log.splitlines()
    assert all(STAMPED.match(line) for line in lines), lines
    assert box.log.endswith("hello wörld\n  'x' $HOME\nend\n")
    assert read_exit(box.message).exit_code == 0


@every_image
def test_the_commands_code_is_the_containers(image: str, run: Any) -> None:
    box = run(image, shell_of(image, "echo bad luck >&2; exit 7"))
    assert (box.code, box.exit.cause, box.exit.exit_code) == (7, ExitCause.EXITED, 7)
    assert box.exit.log_tail.endswith("bad luck")
    assert len(box.message) <= 4096
    assert read_exit(box.message).log_tail.endswith("bad luck")


@every_image
def test_a_command_that_is_not_there_is_reported_by_name(image: str, run: Any) -> None:
    box = run(image, ("no-such-trainer", "--fast"))
    assert (box.code, box.exit.cause) == (127, ExitCause.COMMAND_NOT_FOUND)
    assert "no-such-trainer" in box.exit.sentence
    assert "no-such-trainer" in box.log


@with_tools
def test_a_missing_interpreter_is_reported(image: str, run: Any) -> None:
    script = "printf '#!/opt/none/python\\n' > /tmp/s && chmod +x /tmp/s && exec \"$@\""
    box = run(image, ("sh", "-c", script, "sh", "/tmp/s"))
    # The shell inside says it; a command of its own is looked at by the runtime.
    assert box.code in (126, 127)
    box = run(image, ("/data/.trainmaster/s",), files={"/data/.trainmaster/s": "#!/opt/none/python\n"})
    assert box.exit.cause is ExitCause.COMMAND_NOT_FOUND
    assert "not executable" in box.exit.sentence


@every_image
def test_a_text_command_runs_with_the_best_shell_there_is(image: str, run: Any) -> None:
    if image.endswith((":3.11-slim", "/plain")):
        box = run(image, 'echo "$0 $# $1" &&', args=("true", "a b"))
        assert box.code == 0
        assert box.log.splitlines()[-1] == "sh 2 true"
    else:
        box = run(image, 'echo "one" && echo "two"')
        assert box.log.splitlines()[-2:] == ["one", "two"]


@every_image
def test_any_user_in_a_read_only_image(image: str, run: Any) -> None:
    text = 'touch "$HOME/x" && echo "$USER in $(pwd)" && [ -n "$LOGNAME" ]'
    if image.endswith("/bare"):
        text = text.replace("touch", "busybox touch")
    box = run(image, shell_of(image, text), uid=54321, options=("--read-only",))
    assert box.code == 0, box.raw_log
    assert box.log.splitlines()[-1] == "job in /data"


@every_image
def test_term_is_passed_on_and_the_end_is_a_stop(image: str, run: Any) -> None:
    text = "trap 'echo got it; exit 3' TERM; echo ready; while :; do busybox sleep 0.1 2>/dev/null || sleep 0.1; done"
    box = run(image, shell_of(image, text), wait=False)
    until(lambda: "ready" in box.log)
    (box.folder / "state/stop.json").write_bytes(stop_mark(timedelta(seconds=9)))
    box.kill("TERM")
    box.wait()
    assert (box.exit.cause, box.code) == (ExitCause.STOPPED, 3), box.raw_log
    assert "got it" in box.log


@every_image
def test_who_does_not_hear_term_is_killed_after_the_grace(image: str, run: Any) -> None:
    text = "trap '' TERM; echo ready; while :; do busybox sleep 0.1 2>/dev/null || sleep 0.1; done"
    box = run(image, shell_of(image, text), wait=False, stop_grace=timedelta(seconds=1))
    until(lambda: "ready" in box.log)
    began = time.monotonic()
    box.kill("TERM")
    box.wait()
    assert 0.9 <= time.monotonic() - began < 8
    assert (box.exit.cause, box.code) == (ExitCause.NODE_LOST, 137), box.raw_log
    assert "was killed" in box.exit.sentence
    assert read_exit(box.message, was_requested=True).cause is ExitCause.STOPPED


@every_image
def test_a_file_asks_to_stop_where_no_signal_may_come(image: str, run: Any) -> None:
    text = "echo ready; while :; do busybox sleep 0.1 2>/dev/null || sleep 0.1; done"
    box = run(image, shell_of(image, text), wait=False)
    until(lambda: "ready" in box.log)
    (box.folder / "asked/stop").write_bytes(stop_mark(timedelta(seconds=4)))
    box.wait()
    assert (box.exit.cause, box.code) == (ExitCause.STOPPED, 143), box.raw_log


@every_image
def test_it_ends_at_its_deadline(image: str, run: Any) -> None:
    text = "while :; do busybox sleep 0.1 2>/dev/null || sleep 0.1; done"
    box = run(image, shell_of(image, text), deadline_s=1.0)
    assert (box.exit.cause, box.code) == (ExitCause.DEADLINE, 143), box.raw_log


@with_tools
def test_a_child_killed_for_memory_is_reported_as_that(image: str, run: Any) -> None:
    if image.startswith("python"):
        text = "python3 -c 'x = bytearray(300 << 20)'; exit 1"
    else:
        text = "tail -c 300m /dev/zero | tail -c 300m >/dev/null; exit 1"
    box = run(
        image, ("sh", "-c", text), memory_limit_bytes=64 << 20, options=("--memory", "64m", "--memory-swap", "64m")
    )
    assert box.exit.cause is ExitCause.OUT_OF_MEMORY, (box.exit, box.raw_log)
    assert "64 MiB" in box.exit.sentence


@with_tools
def test_orphans_are_reaped_and_end_with_the_command(image: str, run: Any) -> None:
    text = (
        "for i in 1 2 3 4 5 6; do (sh -c 'sleep 0.2 & exit') ; done; sleep 1.5;"
        "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l; (setsid sleep 300 &); exit 0"
    )
    began = time.monotonic()
    box = run(image, ("sh", "-c", text))
    assert time.monotonic() - began < 15
    assert (box.code, box.log.splitlines()[-1].strip()) == (0, "0"), box.raw_log


@every_image
def test_what_a_shell_cannot_do_is_reported_first(image: str, run: Any) -> None:
    box = run(image, shell_of(image, "echo hi"))
    first = box.log.splitlines()[0]
    if image.startswith("python"):
        assert first == "hi"
    else:
        assert first.startswith("trainmaster: no Python 3.8 or newer in this image")


@every_image
def test_the_images_own_command_runs_in_its_own_folder(image: str, run: Any) -> None:
    own = (*shell_of(image, 'echo "at $(pwd) with $1"'), "sh", "arg")
    box = run(image, None, image_command=own, options=("-w", "/var/own"))
    assert box.log.splitlines()[-1] == "at /var/own with arg"


@every_image
def test_small_files_token_and_mark_are_there(image: str, run: Any) -> None:
    cat = "busybox cat" if image.endswith("/bare") else "cat"
    text = f'{cat} /data/.trainmaster/hostfile "$TRAINMASTER_TOKEN_FILE"; echo " $TRAINMASTER_REPLICA"'
    box = run(
        image, shell_of(image, text), token="t0ken", files={"/data/.trainmaster/hostfile": "a slots=1\nb slots=1\n"}
    )
    assert box.log.splitlines()[-3:] == ["a slots=1", "b slots=1", f"t0ken {box.order.key.attempt_id}/worker-0.1"]


@every_image
def test_several_processes_have_their_ranks_and_end_together(image: str, run: Any) -> None:
    sleep = "busybox sleep" if image.endswith("/bare") else "sleep"
    text = f'echo "I am $RANK"; [ "$RANK" = 5 ] && exit 4; {sleep} 60'
    began = time.monotonic()
    box = run(image, shell_of(image, text), process_env=({"RANK": "4"}, {"RANK": "5"}))
    assert time.monotonic() - began < 30
    assert (box.code, box.exit.exit_code) == (4, 4), box.raw_log
    assert {"[rank 4] I am 4", "[rank 5] I am 5"} <= set(box.log.splitlines())


@every_image
def test_peers_that_never_come_are_named(image: str, run: Any) -> None:
    box = run(
        image,
        shell_of(image, "echo never"),
        peer_hosts=("localhost", "127.0.0.1", "worker-9.nowhere.invalid"),
        peers_grace=timedelta(seconds=1),
    )
    assert box.exit.cause is ExitCause.PEERS_MISSING, box.raw_log
    assert "worker-9.nowhere.invalid" in box.exit.sentence
    assert "never" not in box.log.splitlines()


@every_image
def test_peers_are_found_by_their_names_in_a_network(image: str, run: Any, suite: str) -> None:
    subprocess.run(["docker", "network", "create", suite], check=True, capture_output=True)
    try:
        options = ("--network", suite)
        more = {"peer_hosts": ("worker-0", "worker-1"), "peers_grace": timedelta(seconds=30), "wait": False}
        together = shell_of(image, "echo together")
        first = run(image, together, options=(*options, "--network-alias", "worker-0"), **more)
        second = run(image, together, options=(*options, "--network-alias", "worker-1"), gang=first, **more)
        for box in (first, second):
            box.wait()
            # Whoever ends first takes its name away, and is known to have been there.
            assert (box.code, box.log.splitlines()[-1]) == (0, "together"), box.exit
    finally:
        subprocess.run(["docker", "network", "rm", suite], check=False, capture_output=True)


@every_image
def test_a_container_that_somebody_starts_again_runs_nothing_twice(image: str, run: Any) -> None:
    box = run(image, shell_of(image, "echo once"))
    subprocess.run(["docker", "start", box.name], check=True, capture_output=True)
    assert box.wait().code == 75
    assert box.log.splitlines().count("once") == 1
    assert box.exit.exit_code == 0


@every_image
def test_an_output_that_cannot_be_written_is_reported(image: str, run: Any) -> None:
    box = run(image, shell_of(image, "echo hi"), options=("--tmpfs", "/data/output/.trainmaster:ro"), uid=1000)
    assert box.exit.cause is ExitCause.START_REFUSED
    assert "cannot be written" in box.exit.sentence


# --- Code


def archive(folder: Path, **files: str) -> tuple[Path, str]:
    path = folder / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            member.mode = 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return path, "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@every_image
def test_code_that_the_driver_puts_in_is_unpacked_at_data(image: str, run: Any, tmp_path: Path) -> None:
    path, digest = archive(tmp_path, hello="#!/tools/busybox sh\necho from the archive\n")
    box = run(image, shell_of(image, "echo see; . /data/hello"), code=path, code_digest=digest)
    assert (box.code, box.log.splitlines()[-1]) == (0, "from the archive"), box.raw_log


@every_image
def test_code_with_another_digest_is_not_run(image: str, run: Any, tmp_path: Path) -> None:
    path, _ = archive(tmp_path, hello="echo bad\n")
    box = run(image, shell_of(image, ". /data/hello"), code=path, code_digest="sha256:" + "0" * 64)
    assert box.exit.cause is ExitCause.START_REFUSED
    assert "is not the one that was uploaded" in box.exit.sentence
    assert "bad" not in box.log.splitlines()


@every_image
def test_code_comes_from_an_api_that_breaks_off_and_is_away(
    image: str, run: Any, tmp_path: Path, code_api: Any
) -> None:
    path, digest = archive(tmp_path, hello="echo fetched\n", big="x" * 300_000)
    # Nobody guesses that much text: it stays large when it is packed.
    api = code_api(path.read_bytes(), troubles=["503", "half"])
    box = run(
        image,
        shell_of(image, ". /data/hello"),
        code_digest=digest,
        api_url=api.url,
        token="t0ken",
        options=("--network", "host"),
    )
    assert (box.code, box.log.splitlines()[-1]) == (0, "fetched"), (box.exit, box.raw_log)
    assert api.served[-1].startswith("bytes=")
    assert not (box.folder / "state/code.tar.gz").exists()


@every_image
def test_an_api_that_refuses_the_code_ends_it_at_once(image: str, run: Any, code_api: Any) -> None:
    api = code_api(b"", troubles=["404"])
    box = run(
        image,
        shell_of(image, "echo hi"),
        code_digest="sha256:" + "0" * 64,
        api_url=api.url,
        token="t0ken",
        options=("--network", "host"),
    )
    assert box.exit.cause is ExitCause.UNKNOWN
    assert "does not hand out the code archive" in box.exit.sentence


@pytest.mark.parametrize("image", ["plain"], indirect=True)
def test_code_by_https_needs_python(image: str, run: Any) -> None:
    box = run(image, ("true",), code_digest="sha256:" + "0" * 64, api_url="https://platform.invalid", token="t0ken")
    assert box.exit.cause is ExitCause.START_REFUSED
    assert "check the certificate of https://platform.invalid" in box.exit.sentence


@with_tools
def test_the_images_own_code_at_data_stays_visible(image: str, run: Any, suite: str, tmp_path: Path) -> None:
    dockerfile = f"FROM {image}\nRUN mkdir -p /data && echo 'echo own code' > /data/train.sh\n"
    name = f"{suite}/own-{'python' if image.startswith('python') else 'plain'}"
    subprocess.run(
        ["docker", "build", "-q", "-t", name, "-f", "-", str(tmp_path)], input=dockerfile, text=True, check=True
    )
    box = run(name, ("sh", "train.sh"))
    assert (box.code, box.log.splitlines()[-1]) == (0, "own code"), box.raw_log


@pytest.mark.parametrize("image", ["plain"], indirect=True)
def test_without_python_a_long_log_keeps_its_beginning_and_its_last_lines(image: str, run: Any) -> None:
    text = "i=0; while [ $i -lt 3000 ]; do echo line $i of many; i=$((i+1)); done; exit 2"
    box = run(image, ("sh", "-c", text), log_limit_bytes=20_000)
    lines = box.log.splitlines()
    assert "line 0 of many" in lines
    (at,) = [number for number, line in enumerate(lines) if "has reached its limit of 20000 bytes" in line]
    assert lines[at - 1] != "line 2999 of many"
    assert lines[at + 1 : at + 201] == [f"line {number} of many" for number in range(2800, 3000)]
    assert len(box.raw_log) < 20_000 + 200 * 60 + 1000
    assert "line 2999" in box.exit.log_tail


@pytest.mark.parametrize("image", ["plain"], indirect=True)
def test_without_python_too_a_replica_of_an_ended_attempt_is_ended(image: str, run: Any, code_api: Any) -> None:
    api = code_api(b"", troubles=[])
    api.report_status = 410
    box = run(
        image,
        ("sleep", "600"),
        api_url=api.url,
        token="t0ken",
        options=("--network", "host"),
        stop_grace=timedelta(seconds=2),
    )
    assert api.reported[0] == {"role": "worker", "index": 0, "generation": 1, "items": []}
    assert box.exit.cause is ExitCause.STOPPED
    assert "this attempt has ended" in box.raw_log


@with_tools
def test_a_long_log_is_retained_whole_and_its_tail_is_cut_to_fit(image: str, run: Any) -> None:
    box = run(image, ("sh", "-c", 'i=0; while [ $i -lt 3000 ]; do echo "line $i \\"\\\\ ü"; i=$((i+1)); done; exit 2'))
    wanted = [f'line {n} "\\ ü' for n in range(3000)]
    assert box.log.splitlines()[-3000:] == wanted
    assert len(box.message) <= 4096
    assert json.loads(box.message)["log_tail"].splitlines()[-1].startswith('line 2999 "\\')


@pytest.mark.parametrize("image", ["python"], indirect=True)
def test_entry_is_process_one(image: str, run: Any) -> None:
    box = run(image, ("sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline"))
    assert paths.RUNTIME in box.log


@pytest.mark.parametrize("image", ["plain", "bare"], indirect=True)
def test_an_image_without_python_says_that_it_cannot_be_elastic(image: str, run: Any) -> None:
    box = run(image, shell_of(image, "echo begun"), world=1)
    assert box.exit.cause is ExitCause.START_REFUSED
    assert "so a gang of this image cannot be elastic: set `workers` to one number" in box.exit.sentence
    assert "begun" not in box.log
