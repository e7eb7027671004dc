"""Submits a spec with a code folder, with messages and progress for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cli.terminal import output

if TYPE_CHECKING:
    from trainmaster.client import Client, Job
    from trainmaster.packing import FolderEntry

# Above this, packing takes seconds, and most of the folder is hardly code.
_LARGE_BYTES: Final = 100 * 2**20


def submit_spec(client: Client, spec: Mapping[str, Any], code: Path | None) -> Job:
    """Submit a job, after the server has validated the spec and ``code`` was packed and uploaded."""
    if code is None:
        return client.submit(spec)
    from trainmaster.packing import pack_folder
    from trainmaster.sizes import format_size

    client.check_spec(without_code(client, spec))
    with output.progress_bar("Packing") as progress:
        packed = pack_folder(code, progress=progress, listed=_tell_if_large)
    with packed:
        for name in packed.skipped:
            output.note(f"{name} is skipped: it is neither a file nor a folder.", "dim")
        with output.progress_bar("Uploading") as progress:
            job = client.submit(spec, code=packed, progress=progress)
        files = output.count(packed.file_count, "file")
        output.note(f"Code: {files} from {code}, {format_size(packed.size_bytes)} packed.", "dim")
    return job


def _tell_if_large(files: Sequence[FolderEntry]) -> None:
    from trainmaster.packing import IGNORE_FILE, largest_of
    from trainmaster.sizes import format_size

    content = sum(entry.size for entry in files)
    if content > _LARGE_BYTES:
        output.note(
            f"Packing {format_size(content)}; the largest files: {largest_of(files)}. List files that the training "
            f"does "
            f"not need in {IGNORE_FILE}, and put data on a volume.",
            "dim",
        )


def without_code(client: Client, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec for validation by the server before the code is uploaded."""
    project = {} if client.project == "default" else {"project": client.project}
    return {**project, **{key: value for key, value in spec.items() if key != "code"}}


def stay_or_leave(client: Client, job: Job, *, detach: bool, as_json: bool) -> int:
    """The exit code: at once if detached, otherwise at the job's end."""
    if as_json:
        if not detach:
            job.wait()
        output.print_json(job.view)
        if detach:
            return 0
        from trainmaster.cli.jobs.follow import exit_code_of_job

        return exit_code_of_job(job.view)
    if detach:
        output.say(job.id)
        output.note(f"Submitted {job.name}; watch it with `trainmaster logs -f {job.id}`.", "dim")
        return 0
    from trainmaster.cli.jobs.follow import JobFollower

    output.note(f"Submitted {job.name} ({job.id}).", "dim")
    return JobFollower(client, job).run()
