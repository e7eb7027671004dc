"""Code that is chosen in the browser, packed there, sent, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import expect

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("web")]


def test_a_folder_is_packed_as_code(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("import lib.words, os\nprint(lib.words.SAY, sorted(os.listdir('/data')))\n")
    (folder / "lib" / "words.py").write_text("SAY = 'packed in the browser'\n")
    (folder / "secret.key").write_text("k")
    (folder / ".gitignore").write_text("*.key\n")
    page.goto("/submit")
    page.get_by_label("Folder with the code").set_input_files(folder)
    expect(page.get_by_text(re.compile(r"^project \(3 files, "))).to_be_visible()
    page.get_by_label("Name", exact=True).fill("from-a-page")
    page.get_by_label("Workers").fill("1")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="from-a-page")).to_be_visible()
    page.get_by_role("link", name="Logs", exact=True).click()
    log = page.get_by_role("log")
    expect(log).to_contain_text("packed in the browser")
    expect(log).to_contain_text("train.py")
    expect(log).not_to_contain_text("secret.key")


def test_a_file_that_is_no_archive_is_refused(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "code.tar.gz"
    file.write_bytes(b"PK\x03\x04")
    page.goto("/submit")
    page.get_by_label("Archive with the code").set_input_files(file)
    expect(page.get_by_role("alert").filter(has_text="no .tar.gz archive")).to_be_visible()


def test_an_environment_is_written_by_the_form_and_shown_with_the_job(page: Any) -> None:
    page.goto("/submit")
    page.get_by_label("Requirements").fill("--no-index\nno-such-package-anywhere\n")
    expect(page.locator(".cm-content")).to_contain_text("no-such-package-anywhere")
    page.get_by_label("Virtual environment").fill("bin/venv")
    expect(page.get_by_text("is not an absolute path").first).to_be_visible()
    page.get_by_label("Virtual environment").fill("")
    page.get_by_label("Name", exact=True).fill("with-requirements")
    expect(page.get_by_text("valid", exact=True)).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="with-requirements")).to_be_visible()
    expect(page.get_by_text("--no-index, no-such-package-anywhere")).to_be_visible()
    expect(page.get_by_text("The environment could not be built").first).to_be_visible(timeout=60_000)
