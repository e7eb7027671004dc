"""Lines of further programs: what is read from them, and of what no series becomes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from trainmaster_runtime.metrics.patterns import PROGRESS, LinePatterns

FAIRSEQ = "2024-01-01 00:00:00 | INFO | "
MMENGINE = "11/27 10:00:00 - mmengine - INFO - "
RULE = "-" * 40


def points(*lines: str) -> dict[str, list[tuple[float, float]]]:
    """(step, value) of each metric, of lines that one process prints."""
    patterns = LinePatterns([])
    found: dict[str, list[tuple[float, float]]] = {}
    for line in (text.encode() for text in lines):
        values = patterns.find(line) if patterns.may_match(line) else {}
        step = values.get("step", values.get("epoch", -1))
        for name, value in values.items():
            if name not in PROGRESS:
                found.setdefault(name, []).append((step, value))
    return found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step: 1,000 loss: 0.4", {"loss": [(1000, 0.4)]}),
        ("step=3 ppl=1,234.5", {"ppl": [(3, 1234.5)]}),
        ("step=3 loss=0.5 tps: 7,000", {"loss": [(3, 0.5)], "tps": [(3, 7000)]}),
        ("Step 1,000/5,000 | loss 0.4", {"loss": [(1000, 0.4)]}),
        ("Step [1,000/5,000], Loss: 0.4", {"Loss": [(1000, 0.4)]}),
        ("iteration 1,234,567: loss 0.4", {"loss": [(1234567, 0.4)]}),
        ("[10,  2000] loss: 1.3", {"loss": [(2000, 1.3)]}),  # a list: epoch and batch
        ("[1,200] loss: 1.3", {"loss": [(200, 1.3)]}),
        ("step 3 loss: 0.5 (1,234) ids=[101,234]", {"loss": [(3, 0.5)]}),
        ("step 3 loss: 0,512 acc: 0.5", {"acc": [(3, 0.5)]}),  # a comma before decimals
        ("step 3 loss: 2,512 acc: 0,5", {}),
    ],
)
def test_thousands_separators_are_a_part_of_the_number(line: str, found: dict[str, Any]) -> None:
    assert points(line) == found


def test_a_pattern_reads_thousands_separators_unless_a_comma_follows_in_it() -> None:
    for pattern in ("step {step} ppl {ppl}", "step {step}, ppl {ppl}"):
        line = pattern.format(step="1,000", ppl="1,234.5").encode()
        assert LinePatterns([pattern]).find(line) == {"step": 1000, "ppl": 1234.5}
    assert LinePatterns(["at {a},{b}"]).find(b"at 1,234") == {"a": 1, "b": 234}


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(batch_size=64, test_batch_size=1000, epochs=14, lr=1.0, gamma=0.7, accuracy=0.3)",
        "    accuracy = 100. * correct / len(test_loader.dataset)",
        "loss = 0.5 * a",
        "acc = 1.0 - err",
        "        acc = 0.5  # so far",
        "    return 1.0 / accuracy",
        "config: epoch=10 lr=0.1 bs=32",
        "hparams: epoch: 10, lr: 0.1",
        "exp_name: run1 | epoch: 10 | lr: 0.1",
        "Best parameters: {'C': 1.0, 'accuracy': 0.93}",
        "{'lr': 0.001, 'batch_size': 64, 'epochs': 10}",
        '{"epochs": 3, "lr": 0.1}',
        "lr=0.001, epochs=3, steps=1000",
        "steps=1000, lr=0.001, width=3",
        "target_accuracy=0.95 patience=3",
        "loss_weight: 0.5",
        "{'C': 1.0, 'score': 0.93}",
        "{'fit_time': 0.5, 'score_time': 0.1, 'test_score': 0.93}",
        "Iteration 3 of the plan, loss of 3 files",
        "Validation: step 3 loss 0.5",  # a batch of it
        "eval step=3, loss=0.5",
        "40it [00:10, 4.0it/s]",
        "Extracting: 40it [00:10, 4.0it/s, loss=0.3]",
        "| a/b | 3 |",
        "loss at the end 0.5",
        "AssertionError: 34 != 33",
        "ValueError: 5",
        "torch.OutOfMemoryError: 5",
    ],
)
def test_of_settings_and_source_code_no_series_becomes(line: str) -> None:
    assert points("step=100 loss=0.5", line) == {"loss": [(100, 0.5)]}
    assert points(line, "step=100 loss=0.5") in ({"loss": [(100, 0.5)]}, {**points(line), "loss": [(100, 0.5)]})


def test_lines_of_a_traceback_are_source_code() -> None:
    traceback = ['  File "/app/train.py", line 3, in <module>', "    loss: 0.3", "val loss: 0.4"]
    assert points("step=100 loss=0.5", *traceback) == {"loss": [(100, 0.5)], "val_loss": [(100, 0.4)]}


@pytest.mark.parametrize(
    "name",
    [
        "gb_free", "wall", "train_wall", "wpb", "bsz", "last_time", "last_data_time", "eval_runtime", "train_runtime",
        "eval_samples", "batch_cost", "reader_cost", "rss", "cpu", "files", "reserved", "elapsed_time", "total_time",
        "micro_step", "gamma", "bs", "time/time_elapsed", "num_tokens", "peak_mem_gb", "step_time_ms", "batch_size",
    ],
)  # fmt: skip
def test_times_sizes_counts_and_settings_are_no_metrics(name: str) -> None:
    for line in (
        f"train: step=3 loss=0.5 {name}=3.2",
        f"{{'loss': 0.5, 'step': 3, '{name}': 3.2}}",
        f"step 3/9 loss 0.5 {name}: 3.2",
    ):
        assert points(line) == {"loss": [(3, 0.5)]}


@pytest.mark.parametrize("name", ["wps", "ups", "tps", "fps", "eval_samples_per_second", "steps/sec", "tokens_per_s"])
def test_rates_per_second_are_metrics(name: str) -> None:
    assert points(f"step=3 loss=0.5 {name}=3.2") == {"loss": [(3, 0.5)], name: [(3, 3.2)]}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (  # Flax's ImageNet example
            ["train epoch: 0, loss: 6.2, accuracy: 0.1", "eval epoch: 0, loss: 5.9, accuracy: 1.2",
             "train epoch: 1, loss: 5.2, accuracy: 0.2", "eval epoch: 1, loss: 4.9, accuracy: 1.3"],
            {"loss": [(0, 6.2), (1, 5.2)], "accuracy": [(0, 0.1), (1, 0.2)],
             "val/loss": [(0, 5.9), (1, 4.9)], "val/accuracy": [(0, 1.2), (1, 1.3)]},
        ),
        (  # fairseq
            [FAIRSEQ + "train_inner | epoch 001:    100 / 3000 loss=10.1, num_updates=100",
             FAIRSEQ + "valid | epoch 001 | valid on 'valid' subset | loss 4.1 | num_updates 3000",
             FAIRSEQ + "train | epoch 001 | loss 8.4 | num_updates 3000",
             FAIRSEQ + "train_inner | epoch 002:    100 / 3000 loss=8.1, num_updates=3100"],
            {"loss": [(100, 10.1), (3000, 8.4), (3100, 8.1)], "val/loss": [(3000, 4.1)]},
        ),
        (  # SpeechBrain
            ["epoch: 1, lr: 1.00e+00 - train loss: 3.1 - valid loss: 2.5, valid PER: 60.1"],
            {"lr": [(1, 1)], "train_loss": [(1, 3.1)], "valid_loss": [(1, 2.5)], "valid_PER": [(1, 60.1)]},
        ),
        (
            ["Epoch: 01 | Epoch Time: 0m 5s", "\tTrain Loss: 0.5 | Train Acc: 80.10%",
             "\t Val. Loss: 0.6 |  Val. Acc: 78.20%"],
            {"Train_Loss": [(1, 0.5)], "Train_Acc": [(1, 80.1)], "Val_Loss": [(1, 0.6)], "Val_Acc": [(1, 78.2)]},
        ),
        (["epoch 3", "Train Loss: 0.5 | Train Acc: 80 | Val. Loss: 0.6 | Val. Acc: 78"],
         {"Train_Loss": [(3, 0.5)], "Train_Acc": [(3, 80)], "Val_Loss": [(3, 0.6)], "Val_Acc": [(3, 78)]}),
        (["[LightGBM] [Info] Iteration:100, valid_1 auc : 0.8", "[LightGBM] [Info] Iteration:100, training auc : 0.9"],
         {"valid_1/auc": [(100, 0.8)], "training/auc": [(100, 0.9)]}),
        (["Epoch 3 | Train | Loss 0.3", "Epoch 3 | Val | Loss 0.4",
          "Epoch: 4 - loss: 0.2", "Epoch: 4 - val: loss: 0.3"],
         {"Loss": [(3, 0.3)], "val/Loss": [(3, 0.4)], "loss": [(4, 0.2)], "val/loss": [(4, 0.3)]}),
        (  # Megatron
            [" iteration     1000/    5000 | lm loss: 6.0E+00 |",
             "validation loss at iteration 1000 | lm loss value: 6.1E+00 | lm loss PPL: 4.5E+02 |"],
            {"lm_loss": [(1000, 6)], "val/lm_loss_value": [(1000, 6.1)], "val/lm_loss_PPL": [(1000, 450)]},
        ),
        (['{"mode": "train", "epoch": 1, "iter": 50, "loss": 0.5}',
          '{"mode": "val", "epoch": 1, "iter": 7, "mAP": 0.3}'],
         {"loss": [(50, 0.5)], "val/mAP": [(50, 0.3)]}),
    ],
)  # fmt: skip
def test_a_validation_has_series_and_a_step_of_its_own(lines: list[str], found: dict[str, Any]) -> None:
    assert points(*lines) == found


@pytest.mark.parametrize(
    "prefix", ["[test-run]", "tests/run.py", "my-eval-job-0", "developer", "Latest", "Contest", "value loss 0.1,"]
)
def test_a_word_that_only_contains_that_of_an_evaluation_is_none(prefix: str) -> None:
    assert points(f"{prefix} step=3 loss=0.3")["loss"] == [(3, 0.3)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["Loss: 0.5430:  22%|██▏       | 50/230 [00:05<00:20,  9.0it/s]"], {"Loss": [(50, 0.543)]}),
        (["loss=0.5430: 22%|██▏   | 50/230 [00:05<00:20,  9.0it/s]"], {"loss": [(50, 0.543)]}),
        (["Epoch [2/10], Loss: 0.4:  24%|██▏       | 50/230 [00:05<00:20,  9.0it/s]"], {"Loss": [(280, 0.4)]}),
        (["300it [00:10, 30.0it/s, loss=0.3]", "100it [00:10, 30.0it/s, loss=0.2]"],
         {"loss": [(300, 0.3), (400, 0.2)]}),
        (["100%|██████████| 230/230 [00:05<00:00,  9.0it/s, loss=0.5]"], {"loss": [(230, 0.5)]}),
        ([MMENGINE + "Iter(train) [   50/40000]  lr: 1e-2  eta: 1 day, 0:00:00  time: 0.5  memory: 3  loss: 2.2",
          MMENGINE + "Iter(val) [499/500]    mIoU: 30.0", MMENGINE + "Iter(val) [500/500]    mIoU: 35.2",
          MMENGINE + "Epoch(val) [1][5000]  bbox_mAP: 0.3"],
         {"lr": [(50, 0.01)], "loss": [(50, 2.2)], "val/mIoU": [(50, 35.2)], "val/bbox_mAP": [(50, 0.3)]}),
        (["    100/Unknown  3s 30ms/step - loss: 1.3"], {"loss": [(100, 1.3)]}),
        (["Epoch 1/1", "600/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step - loss: 0.5",
          "150/313 ━━━━━━━━━━━━━━━━━━━━ 1s 2ms/step - loss: 0.09",
          "313/313 ━━━━━━━━━━━━━━━━━━━━ 1s 2ms/step - accuracy: 0.97 - loss: 0.08"],
         {"loss": [(600, 0.5)], "val/accuracy": [(600, 0.97)], "val/loss": [(600, 0.08)]}),
        (["[0]\ttrain-logloss:0.48+0.001\ttest-logloss:0.5+0.002"],
         {"train-logloss": [(0, 0.48)], "test-logloss": [(0, 0.5)]}),
        (["epoch 3 {'loss': 0.15}"], {"loss": [(3, 0.15)]}),
        (["step 10: {'loss': 0.5, 'val_loss': 0.6}"], {"loss": [(10, 0.5)], "val_loss": [(10, 0.6)]}),
        (["train | step:    100 | steps/sec:  10.0 | output: {'train_loss': 0.5}",
          "eval | step:    100 | output: {'accuracy': 0.7}"],
         {"steps/sec": [(100, 10)], "train_loss": [(100, 0.5)], "val/accuracy": [(100, 0.7)]}),
        (["[Epoch 1/200] [Batch 20/938] [D loss: 0.69] [G loss: 0.7]"],
         {"D_loss": [(20, 0.69)], "G_loss": [(20, 0.7)]}),
        (["step 20/20 | loss 1.5", "step 250/18865 | train loss 6.0"], {"loss": [(20, 1.5)], "train_loss": [(250, 6)]}),
        (["Episode 10/500 - Score: 23"], {"Score": [(10, 23)]}),
        (["Batch 100: loss 0.5", "Batch 50: loss 0.4"], {"loss": [(100, 0.5), (150, 0.4)]}),
        (["Loss at step 100: 0.3"], {"Loss": [(100, 0.3)]}),
        (["Cost after epoch 3: 0.12"], {"Cost": [(3, 0.12)]}),
        (["Cost after iteration 2,000: 0.12"], {"Cost": [(2000, 0.12)]}),
        (["Training loss (for one batch) at step 0: 80.1"], {"Training_loss": [(0, 80.1)]}),
        (["Accuracy after step 115: 3/600"], {}),
        (["loss = 0.5 - acc = 0.9 - step = 3"], {"loss": [(3, 0.5)], "acc": [(3, 0.9)]}),
        (["step=3 MeanSquaredError=0.2"], {"MeanSquaredError": [(3, 0.2)]}),
        (["ep 3 loss 0.2"], {"loss": [(3, 0.2)]}),
        (["(RayTrainWorker pid=7) Reporting training result 4: TrainingReport(checkpoint=Checkpoint(filesystem=local, "
          f"path=/results/checkpoint), metrics={{'loss': 0.25, 'epoch': 3}}, validation=False) from rank {rank}"
          for rank in (0, 1)],
         {"loss": [(4, 0.25)]}),
        (["ITERATION - loss: 0.00:   0%|          | 0/24 [00:00<?, ?it/s]",
          "ITERATION - loss: 0.50:  21%|##        | 5/24 [00:00<00:03,  5.00it/s]",
          "Training Results - Epoch: 1 Avg loss: 0.25",  # names the epoch that ends
          "ITERATION - loss: 0.50:   0%|          | 0/24 [00:05<00:02,  9.27it/s]",
          "ITERATION - loss: 0.40:  21%|##        | 5/24 [00:05<00:05,  3.40it/s]"],
         {"loss": [(5, 0.5), (24, 0.5), (29, 0.4)], "Avg_loss": [(5, 0.25)]}),
        (["Loss: 0.25 after 460 batches"], {"Loss": [(460, 0.25)]}),
        (["Training loss: 0.25 after 3 epochs"], {"Training_loss": [(3, 0.25)]}),
        (["loss: 0.25 after 460 files"], {}),
        (["Epoch [1/2], Step [5/10], Loss: 0.5", "Test Accuracy of the model on the 10000 test images: 93.25 %"],
         {"Loss": [(5, 0.5)], "test/Accuracy": [(5, 93.25)]}),
        (["[1,  20] loss: 0.5", "Accuracy of the network on the 10000 test images: 57 %"],
         {"loss": [(20, 0.5)], "test/Accuracy": [(20, 57)]}),
        (["step=9 loss=0.5", "Test set: Average loss: 0.25, Accuracy: (88%)"],
         {"loss": [(9, 0.5)], "test/Average_loss": [(9, 0.25)], "test/Accuracy": [(9, 88)]}),
        (["Did not meet early stopping. Best iteration is:", "[20]\tvalid_0's l2: 0.25"], {"valid_0/l2": [(20, 0.25)]}),
        ([RULE, "| rollout/           |          |", "|    ep_rew_mean     | 22.5     |",
          "| time/              |          |", "|    fps             | 900      |", "|    iterations      | 1        |",
          "|    time_elapsed    | 2        |", "|    total_timesteps | 2048     |", "| train/             |          |",
          "|    approx_kl       | 0.008    |", "|    n_updates       | 10       |", RULE],
         {"rollout/ep_rew_mean": [(2048, 22.5)], "time/fps": [(2048, 900)], "train/approx_kl": [(2048, 0.008)]}),
        ([RULE, "| rollout/ep_rew_mean | 22.5 |", "| time/total_timesteps | 2048 |", RULE],
         {"rollout/ep_rew_mean": [(2048, 22.5)]}),
        (["step=9 loss=0.5",
          " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.402",
          " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.602",
          " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = -1.000",
          " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.3",
          " Average Recall     (AR) @[ IoU=0.50:0.95 | area= large | maxDets=100 ] = 0.5"],
         {"loss": [(9, 0.5)], "val/AP": [(9, 0.402)], "val/AP50": [(9, 0.602)], "val/AR@1": [(9, 0.3)],
          "val/ARl": [(9, 0.5)]}),
        (["step=9 loss=0.5", "[2024-01-01 00:00:00 swin_tiny] (main.py 320): INFO  * Acc@1 71.2 Acc@5 90.0"],
         {"loss": [(9, 0.5)], "val/Acc@1": [(9, 71.2)], "val/Acc@5": [(9, 90)]}),
    ],
)  # fmt: skip
def test_formats_of_further_programs_are_read(lines: list[str], found: dict[str, Any]) -> None:
    assert points(*lines) == found


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("It 100 | time 0.5 | loss 0.3", "It {step} | time {time} | loss {loss}"),
        ("round 3/10 has an accuracy of accuracy: 0.4", "round {step}/{steps} has an accuracy of accuracy: {accuracy}"),
        ("Done with 100 batches, lr: 0.1, took 3s, loss: 0.3", "loss: {loss}"),
        ("[D loss: 0.4] [G loss: 0.3]", "[D loss: {D_loss}] [G loss: {G_loss}"),
        (
            "[foo loss: 0.4] [bar loss: 0.3] [baz loss: 0.2]",
            "[foo loss: {loss}] [bar loss: {loss_2}] [baz loss: {loss_3}",
        ),
    ],
)
def test_a_suggested_pattern_has_the_count_and_most_of_the_metrics(line: str, pattern: str) -> None:
    patterns = LinePatterns([])
    assert patterns.find(line.encode()) == {}
    assert list(patterns.suggestions.values()) == [pattern]
    values = LinePatterns([pattern]).find(line.encode())
    assert len(values) == pattern.count("{")


def test_settings_and_source_code_suggest_no_pattern() -> None:
    patterns = LinePatterns([])
    for line in (b"loss = 0.5 * a", b"Namespace(lr=0.1, loss=0.5)", b"hparams: lr: 0.1, loss: 0.5"):
        assert patterns.find(line) == {}
    assert patterns.suggestions == {}


def test_lines_that_are_made_for_it_take_no_time() -> None:
    hostile = [
        "1,000," * 160, "0,1" * 300, "a, " * 330, " " * 500 + "a = 1" + "0" * 400, "config " * 140,
        "Loss at step " * 75,
        "step 1 {" + "'a':" * 240, "| a/ " + " " * 900 + "|", "-" * 990, "1/Unknown " + " " * 900, "1it [" * 200,
        "Average Precision" + " " * 900, "a_" * 490 + "loss: 0.5", "step=1 " + "val. " * 190, "step 1 loss 0.5 " * 60,
        "(main.py 3): " * 70, "[LightGBM] [Info] Iteration:1, " + "a" * 900,
    ]  # fmt: skip
    began = time.process_time()
    points(*hostile * 10)
    assert time.process_time() - began < 4


def test_a_line_of_nothing_but_names_and_numbers_is_read_as_it_is() -> None:
    line = "test_accuracy=1 test_rows=16 latency_ms=3.5 fit_seconds=2 batch_size=8 step=1"
    read = {"test_accuracy": [(1, 1.0)], "test_rows": [(1, 16.0)], "latency_ms": [(1, 3.5)], "fit_seconds": [(1, 2.0)]}
    assert points(line) == read
    assert points("train: " + line) == {"test_accuracy": [(1, 1.0)]}
