"""Lines as training programs print them, what is read from them, and what is none of their metrics."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from trainmaster_runtime import clock
from trainmaster_runtime.log_writer import LineSplitter
from trainmaster_runtime.metrics.collector import Collector
from trainmaster_runtime.metrics.patterns import PROGRESS, LinePatterns


def points(*lines: str) -> dict[str, list[tuple[float, float]]]:
    """(step, value) of each metric, of lines that one process prints."""
    patterns = LinePatterns([])
    found: dict[str, list[tuple[float, float]]] = {}
    for line in (text.encode() for text in lines):
        add(found, patterns.find(line) if patterns.may_match(line) else {})
    add(found, patterns.finish())
    return found


def add(found: dict[str, list[tuple[float, float]]], values: dict[str, float]) -> None:
    step = int(values.get("step", values.get("epoch", -1)))
    for name, value in values.items():
        if name not in PROGRESS:
            found.setdefault(name, []).append((step, value))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (  # PyTorch's MNIST example
            [
                "Train Epoch: 1 [640/768 (83%)]\tLoss: 0.310000",
                "",
                "Test set: Average loss: 0.0462, Accuracy: 192/256 (75%)",
                "Train Epoch: 2 [0/768 (0%)]\tLoss: 0.200000",
            ],
            {
                "Loss": [(640, 0.31), (768, 0.2)],
                "test/Average_loss": [(640, 0.0462)],
                "test/Accuracy": [(640, 0.75)],
            },
        ),
        (  # its ImageNet example
            [
                "Epoch: [0][30/40]\tTime  0.4 ( 0.5)\tLoss 6.9e+00 (7.1)\tAcc@1   3.12 (  1.5)\tAcc@5  12.50 (  9.0)",
                "Test: [1/8]\tTime  3.801 ( 3.801)\tLoss 5.0e+00 (5.0e+00)\tAcc@1 100.00 (100.00)",
                " *   Acc@1 50.000 Acc@5 100.000",
                "Epoch: [1][30/40]\tTime  0.402 ( 0.512)\tLoss 5.9e+00 (7.1e+00)",
            ],
            {
                "Loss": [(30, 6.9), (70, 5.9)],
                "Acc@1": [(30, 3.12)],
                "Acc@5": [(30, 12.5)],
                "val/Acc@1": [(30, 50.0)],
                "val/Acc@5": [(30, 100.0)],
            },
        ),
        (  # its language model
            [
                "| epoch   1 |    20/   34 batches | lr 20.00 | ms/batch 126.57 | loss  8.14 | ppl  3435.27",
                "| end of epoch   1 | time:  5.50s | valid loss  7.40 | valid ppl  1640.36",
                "| End of training | test loss  6.80 | test ppl   900.10",
            ],
            {
                "lr": [(20, 20.0)],
                "loss": [(20, 8.14)],
                "ppl": [(20, 3435.27)],
                "valid_loss": [(20, 7.4)],
                "valid_ppl": [(20, 1640.36)],
                "test_loss": [(20, 6.8)],
                "test_ppl": [(20, 900.1)],
            },
        ),
        (  # its quick start
            ["Epoch 1", "-----", "loss: 2.303494  [   64/60000]", "loss: 2.2  [ 6464/60000]", "Epoch 2",
             "loss: 2.1  [   64/60000]", "Test Error: ", " Accuracy: 68.8%, Avg loss: 0.789201 "],
            {"loss": [(64, 2.303494), (6464, 2.2), (60064, 2.1)], "test/Accuracy": [(60064, 68.8)],
             "test/Avg_loss": [(60064, 0.789201)]},
        ),
        (  # its CIFAR tutorial
            ["[1,  2000] loss: 2.200", "[1, 12000] loss: 1.300", "[2,  2000] loss: 1.200"],
            {"loss": [(2000, 2.2), (12000, 1.3), (14000, 1.2)]},
        ),
        (  # its reinforcement learning example
            ["Episode 10\tLast reward: 40.00\tAverage reward: 16.52"],
            {"Last_reward": [(10, 40.0)], "Average_reward": [(10, 16.52)]},
        ),
        (  # timm
            [
                "Train: 0 [   5/8 ( 62%)]  Loss: 2.31 (2.35)  Time: 0.5s, 7.81/s  LR: 1.000e-05  Data: 0.012 (0.020)",
                "Test: [   2/3]  Time: 0.402 (0.402)  Loss:   2.300 ( 2.300)  Acc@1:  10.000 ( 10.000)",
                "Test: [   3/3]  Time: 0.402 (0.402)  Loss:   2.300 ( 2.200)  Acc@1:  10.000 ( 50.000)",
            ],
            {"Loss": [(5, 2.31)], "LR": [(5, 1e-05)], "test/Loss": [(5, 2.2)], "test/Acc@1": [(5, 50.0)]},
        ),
        (  # nanoGPT
            ["step 250: train loss 2.1000, val loss 2.2000", "iter 250: loss 2.4700, time 12.30ms, mfu 1.20%"],
            {
                "train_loss": [(250, 2.1)],
                "val_loss": [(250, 2.2)],
                "loss": [(250, 2.47)],
                "mfu": [(250, 1.2)],
            },
        ),
        (["epoch 3 loss 0.15"], {"loss": [(3, 0.15)]}),
        (["Epoch 1 - loss: 0.5 - acc: 0.9", "Epoch 2 - loss: nan - acc: inf"], {"loss": [(1, 0.5), (2, math.nan)],
                                                                               "acc": [(1, 0.9), (2, math.inf)]}),
        (["epoch: 1, batch: 20, loss: 0.5", "epoch: 2, batch: 10, loss: 0.4"], {"loss": [(20, 0.5), (30, 0.4)]}),
        (["Epoch: 1 Step: 50 Loss: 0.5", "Epoch: 2 Step: 10 Loss: 0.4"], {"Loss": [(50, 0.5), (60, 0.4)]}),
        (["INFO:tensorflow:loss = 2.95, step = 101 (0.5 sec)"], {"loss": [(101, 2.95)]}),
        (["INFO:tensorflow:Saving dict for global step 60: accuracy = 0.9, global_step = 60, loss = 0.3"],
         {"accuracy": [(60, 0.9)], "loss": [(60, 0.3)]}),
        (  # Flax
            ["INFO:absl:epoch:  1, train_loss: 0.4736, train_accuracy: 84.96, test_loss: 0.2418"],
            {"train_loss": [(1, 0.4736)], "train_accuracy": [(1, 84.96)], "test_loss": [(1, 0.2418)]},
        ),
        (  # clu
            ["I1127 10:00:00.123456 139 logging_writer.py:48] [100] accuracy=0.5, loss=1.3"],
            {"accuracy": [(100, 0.5)], "loss": [(100, 1.3)]},
        ),
        (  # detectron2
            [("[11/27 10:00:00 d2.utils.events]:  eta: 0:12:34  iter: 19  total_loss: 1.23  loss_cls: 0.4  time: 0.41  "
             "data_time: 0.0100  lr: 4.9e-06  max_mem: 2000M")],
            {"total_loss": [(19, 1.23)], "loss_cls": [(19, 0.4)], "lr": [(19, 4.9e-06)]},
        ),
        (  # fairseq
            [("2026-11-27 10:00:00 | INFO | train_inner | epoch 001:    100 / 3000 loss=10.1, ppl=900.5, "
             "num_updates=100, lr=0.001, gnorm=1.5")],
            {"loss": [(100, 10.1)], "ppl": [(100, 900.5)], "lr": [(100, 0.001)], "gnorm": [(100, 1.5)]},
        ),
        (  # Megatron
            [(" [2026-11-27 10:00:00] iteration       10/     100 | consumed samples:          160 | elapsed time per "
             "iteration (ms): 402.1 | learning rate: 1.500E-04 | global batch size:    16 | lm loss: 1.080E+01 | "
             "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |")],
            {"learning_rate": [(10, 1.5e-4)], "lm_loss": [(10, 10.8)], "loss_scale": [(10, 1.0)],
             "grad_norm": [(10, 1.234)]},
        ),
        (  # DeepSpeed
            ["[2026-11-27 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001, 0.1]"],
            {"skipped": [(10, 0)], "lr": [(10, 0.001)]},
        ),
        (  # MMEngine
            [("11/27 10:00:00 - mmengine - INFO - Epoch(train) [1][ 6/10]  lr: 1.0000e-01  eta: 0:00:01  "
             "time: 0.0032  data_time: 0.0010  loss: 0.7920"),
             "11/27 10:00:01 - mmengine - INFO - Epoch(val) [1][10/10]    accuracy: 46.2500  data_time: 0.0029"],
            {"lr": [(6, 0.1)], "loss": [(6, 0.792)], "val/accuracy": [(6, 46.25)]},
        ),
    ],
)  # fmt: skip
def test_a_line_with_a_count_and_names_is_read(lines: list[str], found: dict[str, Any]) -> None:
    assert str(points(*lines)) == str(
        {name: [(step, float(value)) for step, value in at] for name, at in found.items()}
    )


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            ["[0]\ttrain-logloss:0.48\teval-auc:0.90", "[10]\ttrain-logloss:0.20\teval-auc:0.95"],
            {"train-logloss": [(0, 0.48), (10, 0.2)], "eval-auc": [(0, 0.9), (10, 0.95)]},
        ),
        (["[1]\tvalid_0's l2: 0.24\ttraining's auc: 0.9"], {"valid_0/l2": [(1, 0.24)], "training/auc": [(1, 0.9)]}),
        (["[3]\tvalid's binary_logloss: 0.63 + 0.018"], {"valid/binary_logloss": [(3, 0.63)]}),
        (
            ["[3]\ttraining's auc: 0.9", "Did not meet early stopping. Best iteration is:", "[2]\ttraining's auc: 0.8"],
            {"training/auc": [(3, 0.9)]},
        ),
        (
            ["7:\tlearn: 0.6\ttest: 0.7\tbest: 0.7 (7)\ttotal: 149ms\tremaining: 1.34s"],
            {"learn": [(7, 0.6)], "test": [(7, 0.7)]},
        ),
        (["Iteration 1, loss = 0.7", "Validation score: 0.4"], {"loss": [(1, 0.7)], "Validation_score": [(1, 0.4)]}),
        (
            ["      Iter       Train Loss   Remaining Time ", "         2           1.2681            0.10s"],
            {"Train_Loss": [(2, 1.2681)]},
        ),
        (
            ["epoch     train_loss  valid_loss  accuracy  time    ",
             "0         0.700714    0.692735    0.5625    00:01  ",
             "1         0.6         0.5         0.7       00:01  "],
            {"train_loss": [(0, 0.700714), (1, 0.6)], "valid_loss": [(0, 0.692735), (1, 0.5)],
             "accuracy": [(0, 0.5625), (1, 0.7)]},
        ),
        (
            ["  epoch    train_loss    valid_acc    valid_loss     dur",
             "-------  ------------  -----------  ------  --",
             "      1        0.7671       0.4625        0.7296  0.0123"],
            {"train_loss": [(1, 0.7671)], "valid_acc": [(1, 0.4625)], "valid_loss": [(1, 0.7296)]},
        ),
        (
            ["      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size",
             "\x1b[K        1/3         0G      6.248      3.514          4         64: 25% ━━━────── 1/4 4.0s/it",
             "\x1b[K        1/3         0G      5.774      3.271          4         64: 100% ━━━━━━━━━ 4/4 1.5s/it",
             "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━ 1/1",
             "                   all          8          8        0.1          1       0.25       0.5"],
            {"box_loss": [(1, 5.774)], "cls_loss": [(1, 3.271)], "val/P": [(1, 0.1)], "val/R": [(1, 1.0)],
             "val/mAP50": [(1, 0.25)], "val/mAP50-95": [(1, 0.5)]},
        ),
        (["      7  0.5  0.7"], {}),  # a row without a header
    ],
)  # fmt: skip
def test_rounds_of_boosting_and_columns_below_a_header_are_read(lines: list[str], found: dict[str, Any]) -> None:
    assert points(*lines) == found


HF = "{'loss': '0.6904', 'grad_norm': '0.4119', 'learning_rate': '4.833e-05', 'epoch': '%s'}"


def test_a_record_without_a_step_has_that_of_the_bar_below_it() -> None:
    bar = "  4%%|▍         | %d/120 [00:00<00:21,  5.37it/s]"
    found = points(bar % 4, HF % "0.125", bar % 5, bar % 9, HF % "0.25", bar % 10, "{'eval_loss': 0.5, 'epoch': 0.25}")
    assert found["loss"] == [(5, 0.6904), (10, 0.6904)]
    assert found["learning_rate"] == [(5, 4.833e-05), (10, 4.833e-05)]
    assert found["eval_loss"] == [(10, 0.5)]  # the last line


def test_a_record_without_a_bar_counts_parts_of_epochs() -> None:
    assert points(HF % "0.15", HF % "1.0")["loss"] == [(150, 0.6904), (1000, 0.6904)]
    assert points(HF % "1.0", HF % "2.0")["loss"] == [(1, 0.6904), (2, 0.6904)]
    assert points('{"step": 100, "loss": 2.5, "is_best": true}') == {"loss": [(100, 2.5)]}
    assert points("{'port': 8080, 'epoch': 3}", '{"level": "info", "step": 3, "duration": 0.2}') == {}


def test_metrics_in_blocks_and_boxes_count_with_the_last_step() -> None:
    block = [
        "***** eval metrics *****",
        "  epoch                   =        3.0",
        "  eval_accuracy           =      0.625",
    ]
    assert points("step 9/20 loss=0.5", *block)["eval_accuracy"] == [(9, 0.625)]
    box = ["┃        Test metric        ┃       DataLoader 0        ┃",
           "┡━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━┩",
           "│         test_acc          │    0.7562500238418579     │"]  # fmt: skip
    assert points("Epoch 2/3 loss=0.5", *box)["test_acc"] == [(2, 0.7562500238418579)]
    assert points(*block, *box) == {}  # without a step


def test_bars_are_read_with_the_step_over_all_epochs() -> None:
    tqdm = "Epoch 1:  50%|█████     | 5/10 [00:01<00:01,  3.00it/s, v_num=0, train_loss=0.5]"
    assert points("Epoch 0:  10%|█         | 1/10 [00:01<00:01, 3.00it/s]", tqdm) == {"train_loss": [(15, 0.5)]}
    keras = "115/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step - accuracy: 0.89 - loss: 0.31\x08\x08\x08"
    assert points("Epoch 2/10", keras) == {"accuracy": [(715, 0.89)], "loss": [(715, 0.31)]}
    assert points("Epoch 1/2", "100/100 - 1s - 10ms/step - loss: 0.63 - val_loss: 0.62") == {
        "loss": [(100, 0.63)],
        "val_loss": [(100, 0.62)],
    }
    rich = "Epoch 2/2  ━━━━━━━━━━━━━━━━━ 40/40 0:00:04 • 0:00:00 8.57it/s train_loss: 0.632 "
    below = "                                                              val_loss: 0.595   "
    assert points(rich, below) == {"train_loss": [(120, 0.632)], "val_loss": [(120, 0.595)]}
    ignite = "Epoch [2/3]: [20/40]  50%|█████     , loss=0.69 [00:01<00:00]"
    assert points(ignite) == {"loss": [(60, 0.69)]}
    evaluation = " 50%|█████     | 5/8 [00:01<00:01,  3.00it/s, loss=0.9]"
    assert points("100%|##########| 10/20 [00:01<00:01, 3.00it/s, loss=0.5]", evaluation) == {"loss": [(10, 0.5)]}


def test_another_ranks_copy_of_a_line_and_the_same_point_again_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert points("[rank1]: epoch 3 loss 0.15", "[Rank 2] step=3 loss=0.1") == {}
    assert points("[rank0]: epoch 3 loss 0.15") == {"loss": [(3, 0.15)]}
    collector = Collector(patterns=LinePatterns([]))
    collector.note([b"epoch 3 loss 0.15"] * 4 + [b"epoch 4 loss 0.15"])
    (metrics, _) = collector.collect(is_last=False)
    assert metrics["data"]["series"][0]["steps"] == [3, 4]
    assert metrics["data"]["is_printed"]


def test_of_a_bar_there_are_two_points_a_second_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    collector = Collector(patterns=LinePatterns([]))
    for step in range(1, 101):
        now += 0.1
        collector.note([b"%d/100 [=====>.....] - ETA: 3s - loss: 0.5%d" % (step, step)])
    (metrics, _) = collector.collect(is_last=False)
    steps = metrics["data"]["series"][0]["steps"]
    assert steps[-1] == 100
    assert 19 <= len(steps) <= 22


def test_what_is_drawn_first_behind_a_line_over_a_bar_is_a_line() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"\r 4/120\r 5/120\r        \r{'loss': 1}\n\r 6/120\r 7/120\r 8/120\r", 10.0)
    assert lines == [b" 5/120", b"{'loss': 1}", b" 6/120"]
    assert splitter.feed(b" 9/120\r 10/120\r", 10.1) == []


@pytest.mark.parametrize(
    "line",
    [
        "Python 3.11.7 on linux, step by step",
        "Epoch 3 begins at 10:30:00, port: 8080",
        "step 3: version: 1.2.3 host: 10.0.0.1 size: 5GB",
        "epoch=14, lr=1.0, amp=True, seed=1",
        "Namespace(batch_size=64, epoch=14, lr=1.0, loss=0.5)",
        "ds = tf.data.experimental.Counter(start=2, step=5).take(5)",
        "agnostic_nms=False, batch=4, box=7.5, cls=0.5, epochs=3, lr0=0.01",
        "[ 12.345678] usb 1-1: new high-speed USB device number 3",
        "[3] accuracy of the clock: 5",
        "Step 3/14 : RUN pip install foo==1.2.3",
        "loss 0.31",
        "Accuracy: 92.1%",
        "Test set: Average loss: 0.0462",
        "accuracy = correct / total",
        "0:\tfile.py: 12\tother: 7",
        "2026-11-27 10:00:00,123 - INFO - server: port 8080, 3 workers, load 0.35",
        "Get:12 http://deb.example.org stable/main libloss 1.2-3 [24.1 kB]",
        "{'name': 'x', 'epoch': 3, 'size': 12}",
        "***** Running training *****",
        "  Num Epochs = 3",
        "10%|█         | 3/30 [00:01<00:10, loading shards, loss=0.1, 5.0MB/s]",
    ],
)
def test_what_is_no_metric_is_not_read(line: str) -> None:
    assert points(line) == {}


def test_times_sizes_and_versions_next_to_metrics_are_not_read() -> None:
    line = "step=5 loss=0.5 time=10:30:15 version=3 eta: 0:12 mem=3 gpu_mem: 5 path=/a/3 date=2026 port=80"
    assert points(line) == {"loss": [(5, 0.5)]}
    line = "Epoch 3/10 loss: 0.5 checkpoint: 3/4 build: 1.2.3 of 12,345 items: 1,234 at 10.0.0.1"
    assert points(line) == {"loss": [(3, 0.5)]}


def test_each_suggested_pattern_reads_its_log_line() -> None:
    lines = [
        b"2026-11-27 10:00:00 INFO after 20 minutes the accuracy: 0.93, val loss 0.41",
        b"after 30 minutes the accuracy: 0.95, val loss 0.39",
        b"all is well, 3 files",
        b"reward 12.5 in round 3",
        b"score: 3",
    ]
    patterns = LinePatterns([])
    for line in lines:
        assert patterns.find(line) == {}
    suggestions = patterns.suggestions
    expected = ["minutes the accuracy: {accuracy}, val loss {val_loss}", "reward {reward} in round {step}"]
    assert list(suggestions.values()) == expected
    read = LinePatterns(list(suggestions.values()))
    assert read.find(lines[1]) == {"accuracy": 0.95, "val_loss": 0.39}
    assert read.find(lines[3]) == {"reward": 12.5, "step": 3}


def test_suggestions_are_those_of_a_job_without_metrics_with_patterns_of_its_own_or_without() -> None:
    for patterns, expected in (([], ["loss {loss}"]), (["error {error}"], ["loss {loss}"])):
        collector = Collector(patterns=LinePatterns(patterns))
        collector.note([b"loss 0.5"])
        collector.collect(is_last=True)
        assert [entry["pattern"] for entry in collector.suggestions()] == expected
        collector.reports_metrics = True
        assert collector.suggestions() == []
    collector = Collector(patterns=LinePatterns([]))
    collector.note([b"loss 0.5", b"epoch 1 loss 0.5"])
    collector.collect(is_last=True)
    assert collector.suggestions() == []


def test_lines_that_are_made_for_it_take_no_time() -> None:
    hostile = [
        "loss " * 200, "loss= " * 160, "a: 1 " * 200, "{" + "'a': 1, " * 110 + "}", "epoch  " * 140, "1  " * 330,
        "epoch" + "  loss" * 160, "[0]\t" + "a:1\t" * 240, "2026-11-27 10:00:00 " * 50, "| " * 500, " " * 1000,
        "a" * 1000, "step 3 " + "a." * 490, "step 3 loss" + " " * 980, "Epoch 1:" + "━" * 900, "x(" * 500, "A(a," * 250,
        "INFO " * 200, "1/2 " * 250, "step 1 " + "loss 1" * 160,
    ]  # fmt: skip
    began = time.process_time()
    points(*hostile * 10)
    assert time.process_time() - began < 4
