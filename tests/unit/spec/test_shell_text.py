"""What becomes of words that are put behind a shell's text."""

from __future__ import annotations

import subprocess

import pytest
from trainmaster.spec.shelltext import has_placeholder, reason_list_loses_words, reason_words_are_lost


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for i in 1 2; do python train.py; done", "after done they are"),
        ("while read x; do train; done < list", "after done they are"),
        ("if true; then train; fi", "after fi they are"),
        ("{ train; } 2>&1", "after } they are"),
        ("(cd src; train)", "after ) they are"),
        ("(cd src; train) > log", "after > they are"),
        ("train &", "after & they would be a separate command"),
        ("train;  ", "after ; they would be a separate command"),
        ("train & \n wait", "they would go to wait, not to train"),
        ("A=1 python train.py 2>&1 | tee log", "they would go to tee, not to python"),
        ("python train.py || exit 1", "they would go to exit, not to python"),
        ('/opt/train && echo "done; $(date)"', "they would go to echo, not to train"),
        ("train # run it", "part of the comment"),
        ('echo "got $(python one.py)"', "they would go to echo, not to python"),
        ("x=`cd src; ./one`; echo $x", "they would go to echo, not to one"),
        ("echo $(echo $(python one.py)) > file", "they would go to echo, not to python"),
        ("python one.py '$@'", "in single quotes '$@'"),
        ("go() { python one.py; }; go", "the function go would get them"),
        ("function go { python one.py | awk '{print $1}'; }; go", "the function go would get them"),
        ("cd src && bash -c 'python one.py'", "they would go to bash -c, whose text does not read them"),
        ("python - <<'END'\nprint(1)\nEND", "here-document that ends with END"),
    ],
)
def test_texts_that_pass_no_words_on(text: str, why: str) -> None:
    assert why in (reason_words_are_lost(text) or "")


@pytest.mark.parametrize(
    "text",
    [
        "python train.py",
        "cd src && exec python train.py > log 2>&1",
        "pip install x; python train.py",
        "cat data | python train.py",
        "sleep 1; echo accuracy=0.5",
        "python -c 'for i in 1; print(i) # done'",
        'python -c "a; b"',
        "run $(date; ls) $# `a; b`",
        "echo $((1 + 2)) $(date; ls) '$(python)'",
        "echo loss=$(python -c 'import os; print(len(os.environ[\"TRAINMASTER_PARAMETERS\"]))')",
        "go() { python one.py $1; }; go",
        "python one.py --price '$@x'",
        "sh run.sh",
        "sh -c 'python one.py \"$@\"' sh",
        "python a.py &&\\\n python b.py",
        'for i in 1 2; do python train.py "$@"; done',
        'train() { python train.py "$@"; }; train x',
    ],
)
def test_texts_that_pass_words_on(text: str) -> None:
    assert reason_words_are_lost(text) is None
    checked = subprocess.run(["/bin/sh", "-nc", text if has_placeholder(text) else f"{text} --lr=1"], check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('train "$@" | tee log', True),
        ("train ${@}; wait", True),
        ("train $*", True),
        ("train '$@'", False),
        ("sh -c 'train \"$@\"' sh", False),
        ('f() { train "$@"; }\nf', False),
        ('train  # "$@"', False),
    ],
)
def test_a_text_says_where_its_words_belong(text: str, *, places: bool) -> None:
    assert has_placeholder(text) is places


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sh", "-c", "python one.py"], "they go to the shell"),
        (["/bin/bash", "-euo", "pipefail", "-c", "python one.py", "bash"], "they go to the shell"),
        (["bash", "-lc", "python one.py | awk '{print $1}'"], "they go to the shell"),
        (["sh", "-c", 'python one.py "$@"'], "as its own name ($0)"),
        (["sh", "-c", 'python one.py "$@"', "sh"], None),
        (["sh", "-c", 'python one.py "$0" "$@"'], None),
        (["sh", "-c", "python -c 'os.environ[\"TRAINMASTER_PARAMETERS\"]'"], None),
        (["sh", "run.sh"], None),
        (["sh", "-e", "run.sh"], None),
        (["sh", "-c"], None),
        (["sh"], None),
        (["python", "-c", "print(1)"], None),
        ([], None),
    ],
)
def test_a_list_whose_shell_keeps_the_words(words: list[str], why: str | None) -> None:
    assert why in (reason_list_loses_words(words) or "") if why else reason_list_loses_words(words) is None
