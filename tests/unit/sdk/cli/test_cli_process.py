"""The command line as a process of its own; up and down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainmaster.cli.platform import updown
from trainmaster.cli.terminal import output
from typer.testing import Result

Invoke = Callable[..., Result]


@pytest.fixture
def run_as_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """``run_as_platform(script)``: this runs where Python would run the platform."""

    def replace(script: str) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\n{script}\n")
        python.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(python))

    return replace


def start(*arguments: str, home: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINMASTER_")}
    environ |= {"TRAINMASTER_HOME": str(home), "TRAINMASTER_CONFIG": str(home / "contexts.json"), **more}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", *arguments],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_start_loads_no_http_no_models_and_no_rich(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv[1:] = ['version']\n"
        "import trainmaster.cli.main as main\n"
        "heavy = {'httpx', 'pydantic', 'rich.console', 'yaml', 'pathspec', 'trainmaster.wire'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "main.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.1.0")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m trainmaster.cli.main schema | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd="/")
    assert done.stderr == ""
    assert done.stdout == "141\n"


def test_sigterm_while_packing_leaves_no_file_behind(tmp_path: Path) -> None:
    code, scratch = tmp_path / "code", tmp_path / "scratch"
    code.mkdir()
    scratch.mkdir()
    with (code / "big.bin").open("wb") as big:
        big.truncate(40 * 2**30)  # of zeros, so that packing takes minutes and no room
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "import trainmaster.cli.main as main\n"
        "from trainmaster.packing import pack_folder\n"
        "@main.app.command()\n"
        f"def pack() -> None: pack_folder(Path({str(code)!r}))\n"
        "sys.argv[1:] = ['pack']\n"
        "main.run()\n"
    )
    packing = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(scratch)})
    try:
        deadline_s = time.monotonic() + 30
        # Not just any file: ``tempfile`` writes a probe of its own first.
        while not any(archive.stat().st_size for archive in scratch.glob("trainmaster-code-*")):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        packing.terminate()
        assert packing.wait(10) == 143
    finally:
        packing.kill()
    assert list(scratch.iterdir()) == []


def test_without_the_platforms_package_up_says_what_to_install(
    cli: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    done = cli("up", "--home", str(tmp_path))
    assert done.exit_code == 1
    assert "trainmaster-server" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_down_without_a_platform_is_one_sentence(tmp_path: Path) -> None:
    done = start("down", "--home", str(tmp_path), home=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_second_up_tells_where_the_first_one_is_with_a_fresh_link(
    cli: Invoke, server: Any, run_as_platform: Callable[[str], None], no_config: Path
) -> None:
    (no_config / "up.json").write_text(
        json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid(), "login_url": "old"})
    )
    run_as_platform("import sys; sys.exit(6)")
    server.on("GET", "/health", {"status": "ok", "version": "1"})
    server.on("POST", "/login/codes", {"user": "admin", "code": "new", "expires_at": "2026-11-21T08:00:00Z"})
    done = cli("up")
    assert done.exit_code == 6
    assert "http://127.0.0.1:1/login?code=new" in done.stdout
    assert "already runs" in done.stderr
    assert cli("up", "--detach", "--json").exit_code == 0


def test_an_up_shows_what_the_platform_lacks(cli: Invoke, run_as_platform: Callable[[str], None]) -> None:
    run_as_platform(
        "import json, os, pathlib, sys, time\n"
        "home = pathlib.Path(sys.argv[sys.argv.index('--home') + 1])\n"
        "facts = {'url': 'http://127.0.0.1:1', 'pid': os.getpid(), 'warnings': ['The web pages are not built.']}\n"
        "(home / 'up.json').write_text(json.dumps(facts))\n"
        "time.sleep(1)"
    )
    done = cli("up")
    assert done.exit_code == 0
    assert "The web pages are not built.\n" in done.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_an_up_without_a_terminal_shows_each_stage_on_its_own_line(
    cli: Invoke, run_as_platform: Callable[[str], None], no_config: Path, as_json: bool
) -> None:
    go = no_config / "go"
    run_as_platform(
        "import json, os, pathlib, sys, time\n"
        "home = pathlib.Path(sys.argv[sys.argv.index('--home') + 1])\n"
        "print('Starting: preparing the data folder', flush=True)\n"
        "while not (home / 'go').exists(): time.sleep(0.01)\n"
        "(home / 'up.json').write_text(json.dumps({'url': 'http://127.0.0.1:1', 'pid': os.getpid()}))\n"
        "time.sleep(1)\n"  # it serves
    )
    if as_json:
        go.touch()
        done = cli("up", "--json")
        assert (done.exit_code, done.stderr) == (0, "")
        return
    with pytest.MonkeyPatch.context() as patch:
        note = output.note

        def note_and_go(text: str, style: str = "") -> None:
            note(text, style)
            if "preparing" in text:
                go.touch()

        patch.setattr(output, "note", note_and_go)
        shown = cli("up").stderr.splitlines()
    assert shown[0] == "Starting the platform: preparing the data folder"


def test_an_up_that_is_not_ready_in_time_says_how_long_it_waited_and_at_what(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(updown, "READY_WITHIN_S", 0.0)
    with (tmp_path / "log").open("w+b") as log, subprocess.Popen(["sleep", "60"]) as stuck:
        log.write(
            b"Starting: bringing the database up to date\nStarting: waiting for the API to answer\nSome warning\n"
        )
        log.flush()
        with pytest.raises(updown.PlatformNotStarted) as reported:
            updown.PlatformProcess(stuck, tmp_path, log).await_ready()
        assert stuck.returncode is not None
    words = reported.value.sentence
    assert "was not ready after 0 s and was stopped; it was still waiting for the API to answer in" in words
    assert f"{tmp_path / 'logs'} shows no error, the machine is busy: try again" in words


def test_of_an_up_that_fails_the_last_sentence_is_reported_and_not_how_far_it_was(
    cli: Invoke, run_as_platform: Callable[[str], None]
) -> None:
    run_as_platform("import sys; sys.exit('Starting: preparing\\nThe port 1 is taken.')")
    done = cli("up", "--detach")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, "Error: The port 1 is taken.")


def test_of_an_up_that_is_killed_it_is_informed_how_far_it_was(
    cli: Invoke, run_as_platform: Callable[[str], None]
) -> None:
    run_as_platform(
        "import os, sys; print('Starting: waiting for the API', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    )
    done = cli("up", "--detach")
    reported = "The platform ended while it was waiting for the API without a message; see the logs"
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"Error: {reported} in its data folder."
