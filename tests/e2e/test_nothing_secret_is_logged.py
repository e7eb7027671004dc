"""A job with a secret runs, fails and is asked about; then every log of the platform is searched."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from trainmaster.errors import TrainmasterError

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECRET = "wandb-key-of-the-end-to-end-test"
# The job proves that it has the secret, and shows its own token to the test alone.
WORK = """
import os, sys
assert os.environ["WANDB_KEY"] == sys.argv[1][::-1]
token = open(os.environ["TRAINMASTER_TOKEN_FILE"]).read().strip()
open("/data/output/token" if os.path.isdir("/data/output") else "output/token", "w").write(token)
sys.exit(int(sys.argv[2]))
"""


def test_no_token_and_no_secret_is_in_any_log_of_the_platform(own_platform: Any, eventually: Any) -> None:
    client, home = own_platform.client, own_platform.home
    client.set_secret("default", "WANDB_KEY", SECRET)
    jobs = [
        client.submit(
            {
                "name": f"secret-{code}",
                "command": [sys.executable, "-c", WORK, SECRET[::-1], str(code)],
                "secrets": ["WANDB_KEY"],
                "max_restarts": 0,
            }
        ).id
        for code in (0, 3)
    ]
    eventually(lambda: all(client.get_job(job).finished_at for job in jobs), within_s=60, what="both end")
    assert [client.get_job(job).state for job in jobs] == ["succeeded", "failed"]
    with pytest.raises(TrainmasterError):
        client.get_job("no-such-job")
    tokens = [path.read_text() for path in (home / "volumes").rglob("token")] or [
        path.read_text() for path in home.rglob("token") if path != home / "token" and "run" not in path.parts
    ]
    assert len(tokens) == 2
    hushed = {
        "the secret": SECRET,
        "the user's token": own_platform.token,
        "the key": (home / "secret.key").read_text(errors="replace").strip(),
        **{f"the token of attempt {number}": token for number, token in enumerate(tokens)},
    }
    logs = [
        home / "supervisor.out",
        *(home / "logs").iterdir(),
        *(home / "run").rglob("runtime.log"),
        *home.rglob(".trainmaster/logs/**/*.log"),
    ]
    reported = {path: path.read_text(errors="replace") for path in logs if path.is_file()}
    assert any("api.log" in path.name and text for path, text in reported.items()), "the platform logs nothing at all"
    for path, text in reported.items():
        for name, value in hushed.items():
            assert value not in text, f"{name} is in {path.relative_to(home)}"
