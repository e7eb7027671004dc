"""Lines as training loops of the field print them, and what they tell about how far a training is."""

from __future__ import annotations

import time

import pytest
from trainmaster_runtime.metrics.patterns import LinePatterns


def read(*lines: str) -> list[dict[str, float]]:
    patterns = LinePatterns([])
    raw = [line.encode() for line in lines]
    return [patterns.find(line) if patterns.may_match(line) else {} for line in raw]


def last(*lines: str) -> tuple[float | None, float | None]:
    reported: dict[str, float] = {}
    for found in read(*lines):
        reported.update(found)
    return reported.get("step"), reported.get("steps")


@pytest.mark.parametrize(
    "line",
    [
        "step 115/600",
        "Step: 115/600, loss 0.31",
        "[step 115/600] loss 0.31",
        "2026-11-22 13:05:01 INFO train.py:31 Step [115/600] loss: 0.31",
        "iter 115 of 600",
        "Iteration 115/600",
        " iteration      115/     600 | consumed samples:        29440 | elapsed time per iteration (ms): 402.1",
        "global step 115/600",
        " 19%|█▉        | 115/600 [00:12<00:50,  9.60it/s]",
        "Training:  19%|█▉        | 115/600 [00:12<00:50,  9.60it/s, loss=0.31]",
        (
            "\x1b[1m115/600\x1b[0m \x1b[32m━━━━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━\x1b[0m \x1b[1m3s\x1b[0m 8ms/step - "
            "accuracy: 0.89 - loss: 0.31"
        ),
        "115/600 [====>.........................] - ETA: 3s - loss: 0.3100 - accuracy: 0.8921",
    ],
)
def test_a_count_of_steps_is_how_far_it_is(line: str) -> None:
    assert last(line) == (115, 600)


@pytest.mark.parametrize(
    ("lines", "step", "steps"),
    [
        (["Epoch [3/10], Step [115/600], Loss: 0.3100"], 1315, 6000),  # PyTorch's tutorials
        (["Epoch: [0][ 115/5005]\tTime  0.402 ( 0.512)\tLoss 6.9e+00"], 115, 0),  # its ImageNet example
        (
            ["Epoch: [0]  [  0/600]  eta: 0:50:00", "Epoch: [1]  [115/600]  eta: 0:00:50  lr: 0.1"],
            715,
            0,
        ),  # torchvision
        (["| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.1 | loss  7.62 | ppl  2038.33"], 200, 0),
        (["Epoch 3/10:  19%|█▉        | 115/600 [00:12<00:50,  9.60it/s]"], 1315, 6000),
        (
            [
                "Epoch 0:  50%|█████     | 5/10 [00:01<00:01]",
                "Epoch 1:  20%|██        | 2/10 [00:01<00:01,  3.00it/s, v_num=0]",
            ],
            12,
            0,
        ),
        (["Epoch 2/10", "115/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step - loss: 0.5"], 715, 6000),  # Keras
        (["Epoch 1/3", "step 550/1800", "Epoch 2/3", "step 650/1800"], 650, 1800),  # counted over all epochs
    ],
)
def test_a_count_within_an_epoch_is_a_part_of_the_whole(lines: list[str], step: int, steps: int) -> None:
    assert last(*lines) == (step, steps)


def test_epochs_alone_tell_how_many_are_done() -> None:
    assert read("Epoch 3/10", "Epoch 3/10 - 12s - loss 0.31", "EPOCH 10 of 10: loss 0.2") == [
        {"epoch": 2, "epochs": 10}, {"epoch": 3, "epochs": 10, "loss": 0.31}, {"epoch": 10, "epochs": 10, "loss": 0.2},
    ]  # fmt: skip
    assert read("Epoch 0/10, loss 0.9", "Epoch 1/10, loss 0.8")[1] == {"epoch": 2, "epochs": 10, "loss": 0.8}


def test_an_evaluation_in_between_does_not_move_it() -> None:
    main = "  2%|▏         | {}/6000 [00:12<10:50,  9.00it/s]"
    lines = [main.format(500), " 54%|█████▍    | 7/13 [00:00<00:00, 13.0it/s]", main.format(501)]
    assert read(*lines) == [{"step": 500, "steps": 6000}, {}, {"step": 501, "steps": 6000}]


def test_a_larger_loop_that_is_over_when_it_is_first_reported_does_not_move_it() -> None:
    main, other = "  2%|▏         | {}/100 [00:12<10:50,  9.00it/s]", "100%|██████████| 500/500 [00:09<00:00, 50it/s]"
    lines = [main.format(50), other, main.format(51), main.format(100)]
    assert read(*lines) == [{"step": step, "steps": 100} if step else {} for step in (50, 0, 51, 100)]
    assert read("Epoch 1/3", main.format(50), other, main.format(51))[2] == {}


def test_an_epoch_that_is_reported_at_its_end_alone_counts() -> None:
    bar = "100%|██████████| 600/600 [00:12<00:00,  9.60it/s]"
    assert last(f"Epoch 1/3: {bar}", f"Epoch 2/3: {bar}") == (1200, 1800)
    assert last("Epoch 1/3", "600/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step", "Epoch 2/3") == (600, 1800)


def test_a_bar_that_begins_again_has_no_known_end() -> None:
    bar = " 19%|█▉        | {}/600 [00:12<00:50,  9.60it/s]"
    assert read(*(bar.format(step) for step in (599, 600, 1))) == [
        {"step": 599, "steps": 600}, {"step": 600, "steps": 600}, {"step": 601, "steps": 0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "Step 2/5 : RUN pip install torch",
        "Step 1/3: preparing the data",
        "Resolving data files:  50%|█████     | 20/40 [00:00<00:00, 200it/s]",
        "Skipping batches:  50%|█████     | 150/300 [00:01<00:01, 200it/s]",
        "Finding best initial lr:  50%|█████     | 50/100 [00:08<00:08]",
        "100%|██████████| 40/40 [00:00<00:00, 200it/s]",
        "Downloading: 45%|████▌     | 45/100 [00:10<00:12, 4.50MB/s]",
        "model.safetensors:  45%|████▌     | 2.21G/4.93G [00:10<00:12, 220MB/s]",
        "100%|██████████| 9912422/9912422 [00:00<00:00, 48.1MB/s]",
        "Map:  19%|█▉        | 11500/60000 [00:01<00:05, 9012.31 examples/s]",
        "Loading checkpoint shards:  50%|█████     | 1/2 [00:03<00:03,  3.20s/it]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 30.0it/s]",
        "Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 30.0it/s]",
        "Validation step 50/200",
        "Test: [ 10/100]  Acc@1 71.2",
        "wrote checkpoints/epoch-3/10/model.pt",
        "https://example.org/epoch/3/10",
        "the step of 2026/11/22",
        "step 7/0",
        "step 700/600",
        "step 115/600.5",
        "epoch 11/10",
        "accuracy after step 115: 3/600 wrong",
    ],
)
def test_what_only_looks_like_progress_is_none(line: str) -> None:
    assert read(line) == [{}]


def test_a_line_that_is_made_for_it_takes_no_time() -> None:
    hostile = [
        "epoch " * 160,
        "step 1/" * 140,
        "1%|" * 300,
        "[" + "=" * 990,
        "9" * 990,
        "epoch" + " " * 990,
        "] [ 1 " * 150,
    ]
    began = time.process_time()
    read(*hostile * 20)
    assert time.process_time() - began < 2
