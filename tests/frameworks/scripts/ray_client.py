"""Ray's own client, unmodified, against a platform of ours: ``ray_client.py ADDRESS FOLDER``; what it saw, as JSON.

The token is in ``TM_TOKEN``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from ray.job_submission import JobSubmissionClient

_WITHIN_S = 240.0


def main(address: str, folder: str) -> dict[str, Any]:
    client = JobSubmissionClient(address, headers={"Authorization": f"Bearer {os.environ['TM_TOKEN']}"})
    seen: dict[str, Any] = {"version": client.get_version()}

    ran = client.submit_job(
        entrypoint="python train.py one 'two three'",
        runtime_env={"working_dir": folder, "env_vars": {"LR": "0.1"}},
        metadata={"job_name": "Digits", "team": "vision"},
        entrypoint_num_cpus=0.5,
    )
    seen["tail"] = asyncio.run(tail(client, ran))
    info = client.get_job_info(ran)
    seen["succeeded"] = [str(info.status), info.message, info.driver_exit_code, info.metadata, str(info.type.value)]
    seen["took"] = info.end_time >= info.start_time > 10**12
    seen["logs"] = client.get_job_logs(ran)
    seen["id"] = info.job_id

    failed = client.submit_job(
        entrypoint="python train.py",
        runtime_env={"working_dir": folder, "env_vars": {"CODE": "3"}},
        submission_id="bad",
    )
    end = wait(client, failed)
    seen["failed"] = [str(end.status), end.driver_exit_code, end.error_type, end.message]
    seen["twice"] = refusal(lambda: client.submit_job(entrypoint="true", submission_id="bad"))

    stuck = client.submit_job(
        entrypoint="python train.py", runtime_env={"working_dir": folder, "env_vars": {"WAITS": "1"}}
    )
    while not client.get_job_logs(stuck):
        time.sleep(0.2)
    seen["not deleted"] = refusal(lambda: client.delete_job(stuck))
    seen["stopped"] = [client.stop_job(stuck), str(wait(client, stuck).status), client.stop_job(stuck)]

    own = {ran, failed, stuck}
    seen["found"] = len(own & {job.submission_id for job in client.list_jobs()})
    seen["deleted"] = client.delete_job(stuck)
    seen["left"] = len(own & {job.submission_id for job in client.list_jobs()})
    seen["gone"] = refusal(lambda: client.get_job_status(stuck))
    seen["conda"] = refusal(lambda: client.submit_job(entrypoint="true", runtime_env={"conda": "base"}))
    seen["nobody"] = refusal(lambda: JobSubmissionClient(address, headers={"Authorization": "Bearer tm_none"}))
    seen["nowhere"] = refusal(
        lambda: JobSubmissionClient(f"{address}/nowhere", headers={"Authorization": f"Bearer {os.environ['TM_TOKEN']}"})
    )
    return seen


async def tail(client: JobSubmissionClient, submission_id: str) -> str:
    # Why it waits stands before what it prints.
    lines = [text async for text in client.tail_job_logs(submission_id)]
    return "".join(line for line in lines if not line.startswith("[trainmaster]"))


def wait(client: JobSubmissionClient, submission_id: str) -> Any:
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        info = client.get_job_info(submission_id)
        if info.status.is_terminal():
            return info
        time.sleep(0.2)
    raise TimeoutError(f"{submission_id}: {info.status} {info.message}")


def refusal(call: Any) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 (what a user reads)
        return str(error)
    return ""


if __name__ == "__main__":
    print("SEEN " + json.dumps(main(*sys.argv[1:])))
