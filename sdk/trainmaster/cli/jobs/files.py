"""``files``, ``cp`` and ``tensorboard``: a job's output files, to list, to copy and in TensorBoard."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client

_PANEL = "Output"


def register(root: typer.Typer) -> None:
    root.command("files", rich_help_panel=_PANEL)(list_files)
    root.command("cp", rich_help_panel=_PANEL)(copy)
    root.command("tensorboard", rich_help_panel=_PANEL)(tensorboard)


def list_files(
    job: options.Job,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A folder in the job's output.")] = "",
    json: options.Json = False,
) -> None:
    """List the files of a job's output."""
    with session.client() as client:
        files = list(client.list_files(job, path.strip("/")))
    if json:
        output.print_json(files)
        return
    output.print_table(
        ("SIZE", "CHANGED", "NAME"),
        [
            (
                None if entry.is_dir else output.size(entry.size_bytes),
                output.local_time(entry.modified_at),
                entry.path + ("/" if entry.is_dir else ""),
            )
            for entry in files
        ],
        empty="No files yet.",
    )


def copy(
    source: Annotated[str, typer.Argument(metavar="JOB:PATH", help="A file or folder in a job's output.")],
    target: Annotated[Path, typer.Argument(metavar="LOCAL", help="A local file or folder; `-` is stdout.")] = Path(),
    json: options.Json = False,
) -> None:
    """Download files of a job's output. An interrupted download resumes where it stopped."""
    job, separator, path = source.partition(":")
    if not separator or not job:
        raise typer.BadParameter(
            f"{source!r} is not JOB:PATH; files are copied from a job's output to this machine", param_hint="JOB:PATH"
        )
    path = path.strip("/")
    with session.client() as client:
        job = client.get_job(job).id  # the name may soon refer to a newer job
        if str(target) == "-":
            _print_file(client, job, path)
            return
        fetched = fetch(client, job, path, target, is_quiet=json)
    if json:
        output.print_json(fetched)


def fetch(client: Client, job: str, path: str, target: Path, *, is_quiet: bool) -> list[dict[str, Any]]:
    """Download the file or folder ``path`` to ``target`` with a message for each file; returns the copied files."""
    files, left_out = _files_under(client, job, path, target)
    for name, size, local in files:
        local.parent.mkdir(parents=True, exist_ok=True)
        with output.progress_bar(name) as progress:
            client.download_file(job, name, local, progress=progress)
        if not is_quiet:
            output.note(f"{name} → {local} ({output.size(size)})", "dim")
    if not files and not is_quiet:
        output.note(f"{path or 'The output'} has no files.", "dim")
    if left_out:
        links = "1 link to a folder was" if left_out == 1 else f"{left_out} links to folders were"
        output.note(f"{links} skipped; name a link to copy its target.", "dim")
    return [{"path": name, "size_bytes": size, "local": str(local)} for name, size, local in files]


def _print_file(client: Client, job: str, path: str) -> None:
    """Write one file to stdout after it was downloaded completely."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        files, _ = _files_under(client, job, path, Path(folder) / "content")
        if [name for name, _, _ in files] != [path]:
            raise typer.BadParameter(f"{path or 'the output'} is a folder; only a file goes to stdout", param_hint="-")
        with output.progress_bar(path) as progress:
            copied = client.download_file(job, path, Path(folder) / "content", progress=progress)
        with copied.open("rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.flush()


def _files_under(client: Client, job: str, path: str, target: Path) -> tuple[list[tuple[str, int, Path]], int]:
    """The files to copy as (path in the output, size, local path), with folders as in ``cp -r``.

    Also the number of skipped links to folders, which may form cycles or point to files that are copied anyway.
    """
    from trainmaster.errors import NotFound

    parent, _, leaf = path.rpartition("/")
    into = target / leaf if target.is_dir() else target
    if path:
        entry = next((entry for entry in client.list_files(job, parent) if entry.path.rstrip("/") == path), None)
        if entry is None:
            raise NotFound(
                f"The output of {job} has no {path}; see `trainmaster files {job}{' ' + parent if parent else ''}`."
            )
        if not entry.is_dir:
            return [(entry.path, entry.size_bytes, into)], 0
    files: list[tuple[str, int, Path]] = []
    left_out = 0
    folders = [path]
    while folders:
        for entry in client.list_files(job, folders.pop()):
            name = entry.path.rstrip("/")
            if entry.is_dir and entry.is_link:
                left_out += 1
            elif entry.is_dir:
                folders.append(name)
            else:
                below = name[len(path) :].lstrip("/")
                files.append((name, entry.size_bytes, into / below))
    return sorted(files), left_out


def tensorboard(
    jobs: options.Jobs,
    browser: Annotated[bool, typer.Option(help="Open the URL in a browser.")] = True,
    json: options.Json = False,
) -> None:
    """Show the event files of jobs in TensorBoard, which the platform starts and stops.

    Prints a URL that grants access without a token, for at most a day; do not share it.
    """
    with session.client() as client:
        link = client.open_tensorboard(jobs)
        url = f"{client.url}{link.path}"
    if json:
        output.print_json({**link.model_dump(mode="json"), "url": url})
        return
    output.answers().print(url, soft_wrap=True, markup=False, highlight=False)
    if browser and _has_screen():
        import webbrowser

        webbrowser.open(url)


def _has_screen() -> bool:
    """Whether a graphical browser can be opened, and stdout is a terminal."""
    return sys.stdout.isatty() and bool(
        sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
