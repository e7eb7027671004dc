"""What the runtime finds without a line of code in the script, in whatever state the files are."""

from __future__ import annotations

import json
import math
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from trainmaster_runtime.metrics.collector import Collector, HypertuneFile, SeriesBuffer, SourceCounts
from trainmaster_runtime.metrics.eventfiles import EventFileReader, FileClaims
from trainmaster_runtime.metrics.patterns import LinePatterns
from trainmaster_runtime.metrics.sampler import Sampler
from trainmaster_runtime.metrics.tfevents import Broken, Decoder, masked_crc, read_records

# --- an event file, as its writers make it


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def part(number: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def event(step: int, *values: bytes, time_s: float = 1000.5) -> bytes:
    summary = b"".join(part(1, value) for value in values)
    return double(1, time_s) + whole(2, step) + (part(5, summary) if values else part(3, "brain.Event:2"))


def simple(tag: str, value: float) -> bytes:
    """As torch and tensorboardX write a scalar."""
    return part(1, tag) + single(2, value)


def tensor(tag: str, kind: int, content: bytes, *, plugin: str = "") -> bytes:
    """As TensorFlow 2 writes a scalar."""
    metadata = part(9, part(1, part(1, plugin))) if plugin else b""
    return part(1, tag) + part(8, whole(1, kind) + part(4, content)) + metadata


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def write(path: Path, *events: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        stream.write(b"".join(map(record, events)))


def reported(record_data: bytes, decoder: Decoder | None = None) -> list[tuple[Any, ...]]:
    return [
        (entry_.name, entry_.kind, entry_.step, entry_.data) for entry_ in (decoder or Decoder()).values(record_data)
    ]


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 8a9136aa.
    crc = 0x8A9136AA
    assert masked_crc(b"\0" * 32) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_all_writers_are_read() -> None:
    assert reported(event(3, simple("loss", 0.5))) == [("loss", "scalar", 3, 0.5)]
    assert reported(event(-1, tensor("lr", 1, struct.pack("<f", 0.25), plugin="scalars"))) == [
        ("lr", "scalar", -1, 0.25)
    ]
    assert reported(event(1, tensor("n", 9, struct.pack("<q", -7), plugin="scalars"))) == [("n", "scalar", 1, -7.0)]
    listed = part(1, "listed") + part(8, whole(1, 1) + part(5, struct.pack("<f", 1.5)))
    assert reported(event(1, listed)) == [("listed", "scalar", 1, 1.5)]
    (found,) = reported(event(1, simple("bad", math.nan)))
    assert math.isnan(found[3])


def test_the_first_event_defines_the_kind_of_a_tag() -> None:
    decoder = Decoder()
    rows = struct.pack("<9d", 0, 1, 4, 1, 2, 0, 2, 3, 5)
    assert reported(event(1, tensor("w", 2, rows, plugin="histograms")), decoder)[0][3] == {
        "edges": [0, 1, 2, 3],
        "counts": [4, 0, 5],
    }
    assert reported(event(2, tensor("w", 2, rows)), decoder)[0][1] == "histogram"


def test_histograms_images_and_texts_are_read() -> None:
    limits, counts = struct.pack("<4d", 0.0, 1.0, 2.0, 1e300), struct.pack("<4d", 0, 3, 4, 0)
    histogram = part(1, "h") + part(5, double(1, -0.5) + double(2, 1.9) + part(6, limits) + part(7, counts))
    assert reported(event(1, histogram)) == [("h", "histogram", 1, {"edges": [0.0, 1.0, 2.0], "counts": [3, 4]})]
    image = part(1, "i") + part(4, whole(1, 2) + whole(2, 2) + part(4, b"\x89PNG"))
    assert reported(event(1, image)) == [("i", "image", 1, b"\x89PNG")]
    text = part(1, "t") + part(8, whole(1, 7) + part(8, "hello")) + part(9, part(1, part(1, "text")))
    assert reported(event(1, text)) == [("t", "text", 1, "hello")]
    audio = part(1, "a") + part(6, b"RIFF")
    assert reported(event(1, audio)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,
        b"\x0a\xff",
        part(5, b"\x0a\x7f"),
        random.Random(1).randbytes(64),
        part(5, part(1, part(8, b"\xff"))),
    ],
    ids=["no varint's end", "no length", "too short", "noise", "nested"],
)
def test_what_is_no_event_is_an_error_and_nothing_else(data: bytes) -> None:
    try:
        Decoder().values(data)
    except ValueError:
        pass


def test_a_record_that_is_being_written_waits_and_a_damaged_one_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    whole_record = record(event(1, simple("loss", 1)))
    path.write_bytes(whole_record + whole_record[:9])
    fd = os.open(path, os.O_RDONLY)
    try:
        records, offset = read_records(fd, 0, 1 << 20)
        assert (len(records), offset) == (1, len(whole_record))
        with path.open("ab") as stream:
            stream.write(whole_record[9:])
        assert len(read_records(fd, offset, 1 << 20)[0]) == 1
        # A gigantic length with a good checksum is passed over, never read.
        head = struct.pack("<Q", 2**40)
        path.write_bytes(head + struct.pack("<I", masked_crc(head)))
        assert read_records(fd, 0, 1 << 20) == ([], 0)
        path.write_bytes(whole_record[:-3] + b"\0\0\0" + whole_record)
        with pytest.raises(Broken, match="checksum"):
            read_records(fd, 0, 1 << 20)
    finally:
        os.close(fd)


# --- files under the output


@pytest.fixture
def log_text() -> list[str]:
    return []


def files(output: Path, log_text: list[str], owner: str = "1/worker-0") -> EventFileReader:
    claims = FileClaims(str(output / ".trainmaster/metrics/job"), owner)
    return EventFileReader(str(output), None, claims, log_text.append, now=0.0, began=2000.0)


def names(found: list[tuple[str, Any]]) -> list[tuple[str, int]]:
    return [(name, value.step) for name, value in found]


def test_a_file_is_read_as_it_grows_and_only_by_the_replica_that_writes_it(tmp_path: Path, log_text: list[str]) -> None:
    ours, theirs = files(tmp_path, log_text), files(tmp_path, log_text, "1/worker-1")
    path = tmp_path / "logs/events.out.tfevents.1"
    write(path, event(0), event(1, simple("loss", 1)))
    assert ours.collect(1.0, is_last=False) == []  # no process has it open: left to the others for a while
    assert names(ours.collect(20.0, is_last=False)) == [("loss", 1)]
    assert theirs.collect(20.0, is_last=True) == []
    assert theirs.collect(40.0, is_last=True) == []
    write(path, event(2, simple("loss", 1)))
    assert names(ours.collect(21.0, is_last=False)) == [("loss", 2)]
    assert ours.collect(22.0, is_last=True) == []


def test_the_next_attempt_goes_on_behind_what_was_read(tmp_path: Path, log_text: list[str]) -> None:
    path = tmp_path / "events.out.tfevents.1"
    first = files(tmp_path, log_text)
    write(path, event(1, simple("loss", 1)))
    assert names(first.collect(20.0, is_last=True)) == [("loss", 1)]
    first.close()
    again = files(tmp_path, log_text, "2/worker-0")
    write(path, event(2, simple("loss", 1)))
    assert names(again.collect(20.0, is_last=True)) == [("loss", 2)]


def test_what_was_there_before_the_job_is_not_its_own(tmp_path: Path, log_text: list[str]) -> None:
    path = tmp_path / "old/events.out.tfevents.1"
    write(path, event(1, simple("loss", 1)))
    # Begun by its own process, in the moment before anybody looked.
    write(tmp_path / "new/events.out.tfevents.1", event(0, time_s=1999.9), event(1, simple("quick", 1)))
    ours = files(tmp_path, log_text)
    assert names(ours.collect(20.0, is_last=True)) == [("quick", 1)]
    write(path, event(2, simple("loss", 1)))
    assert names(ours.collect(40.0, is_last=True)) == [("loss", 2)]


def test_files_of_one_run_in_several_folders_keep_apart(tmp_path: Path, log_text: list[str]) -> None:
    ours = files(tmp_path, log_text)
    for folder in ("logs/train", "logs/validation", "runs/a", "runs/a/loss_valid"):
        write(tmp_path / folder / "events.out.tfevents.1", event(1, simple("loss", 1)))
    assert sorted(names(ours.collect(20.0, is_last=True))) == [
        ("loss", 1),
        ("loss_valid/loss", 1),
        ("train/loss", 1),
        ("validation/loss", 1),
    ]


def test_damaged_vanishing_and_linked_files_are_left_alone(tmp_path: Path, log_text: list[str]) -> None:
    output, outside = tmp_path / "output", tmp_path / "outside"
    output.mkdir()
    ours = files(output, log_text)
    write(outside / "events.out.tfevents.9", event(1, simple("secret", 1)))
    (output / "events.out.tfevents.2").symlink_to(outside / "events.out.tfevents.9")
    (output / "folder").symlink_to(outside)
    (output / "events.out.tfevents.3").write_bytes(b"this is no event file, it is a text of some length")
    write(output / "events.out.tfevents.4", event(1, simple("gone", 1)))
    assert ours.collect(1.0, is_last=False) == []
    (output / "events.out.tfevents.4").unlink()
    assert ours.collect(20.0, is_last=True) == []
    assert len(log_text) == 1
    assert "events.out.tfevents.3" in log_text[0]


# --- hypertune


def test_hypertunes_file_is_merged_though_it_is_rewritten_each_time(tmp_path: Path) -> None:
    path = tmp_path / "output.metric"
    source = HypertuneFile(str(path))
    assert source.collect() == []

    def line(step: int, value: str) -> str:
        entry = {
            "accuracy": value,
            "checkpoint_path": "",
            "global_step": str(step),
            "timestamp": 100.0 + step,
            "trial": "3",
        }
        return json.dumps(entry) + "\n"

    path.write_text(line(1, "0.5") + line(2, "nan"))
    found = source.collect()
    assert found[0] == ("accuracy", 1, 101.0, 0.5)
    assert math.isnan(found[1][3])
    path.write_text("")
    assert source.collect() == []
    path.write_text(line(2, "nan") + line(3, "0.7") + line(4, "0.8")[:30])
    assert [entry[1] for entry in source.collect()] == [3]
    path.write_text("[1]\n7\n{}\n" + line(4, "x") + '{"timestamp": "y", "a": 1}\n')
    assert source.collect() == []


# --- lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"loss=0.31 step=20", {"loss": 0.31, "step": 20}),
        (b"\x1b[32mepoch: 3\x1b[0m acc: 0.92, val/loss: 1e-3", {"epoch": 3, "acc": 0.92, "val/loss": 1e-3}),
        (b"iter=5 loss=nan", {"step": 5, "loss": math.nan}),
        (b"the step was good", {}),
        (b"x=3 y=4", {}),
        (b"step=7", {}),
        (b"step=20 version=1.2.3 host=10.0.0.1", {}),
        (b"step=1 \xff\xfe=2 ok=3", {"step": 1, "ok": 3}),
        (b"step=160/200 loss=0.5", {"step": 160, "steps": 200, "loss": 0.5}),
        (b"Epoch 3 of 9 epoch: 3 of 9, acc: 0.9", {"epoch": 3, "epochs": 9, "acc": 0.9}),
        (b"iter=7/8.5 loss=1/3", {"step": 7, "loss": 1}),
    ],
)
def test_lines_that_name_a_step_are_read(line: bytes, found: dict[str, float]) -> None:
    reported = LinePatterns([]).find(line)
    assert {name: str(value) for name, value in reported.items()} == {
        name: str(float(value)) for name, value in found.items()
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"epoch 1/3 accuracy=0.9 loss: 1.5", {"epoch": 1, "epochs": 3, "accuracy": 0.9, "loss": 1.5}),
        (
            b"Epoch [3/10], Step [2/8], Loss: 0.3, ETA: 0:00:50",
            {"epoch": 3, "epochs": 10, "step": 18, "steps": 80, "Loss": 0.3},
        ),
        (b"Epoch 3 loss=0.31", {"epoch": 3, "loss": 0.31}),
        (b"Epoch: 3 Acc: 0.92", {"epoch": 3, "Acc": 0.92}),
        (b"Step 20: loss=0.5", {"step": 20, "loss": 0.5}),
        (b"step 20:30 loss=0.5", {}),
        (b"[step 20] loss=0.5", {"step": 20, "loss": 0.5}),
        (b"Validation epoch 3 loss=0.31", {"step": 3, "val/loss": 0.31}),
        (b"Epoch 3 begins", {}),
        (b"3 epochs with lr=0.1", {}),
        (b" 19%|##   | 115/600 [00:12<00:50,  9.60it/s, loss=0.3]", {"step": 115, "steps": 600, "loss": 0.3}),
        (b"115/600 [====>.......] - ETA: 3s - loss: 0.5", {"step": 115, "steps": 600, "loss": 0.5}),
    ],
)
def test_metrics_beside_other_words_for_how_far_it_is(line: bytes, found: dict[str, float]) -> None:
    patterns = LinePatterns([])
    assert not found or patterns.may_match(line)
    assert patterns.find(line) == found


def test_a_line_matches_where_a_metric_came_of_it() -> None:
    collector = Collector(patterns=LinePatterns([]), sources=SourceCounts())
    collector.note([b"Epoch 1/3", b"Epoch 2/3 points 0.5", b"Epoch 2/3 score=0.5", b"done"])
    collector.collect(is_last=True)
    reported = collector.sources.summary() if collector.sources else {}
    assert (reported["log"]["lines"], reported["matching"]["lines"]) == (4, 1)


def test_a_pattern_of_ones_own_reads_lines_as_they_are() -> None:
    patterns = LinePatterns(["Epoch {epoch}/{epochs} - loss {loss}", "(a+)+$ {x}"])
    assert patterns.find(b"Epoch  3/10 -  loss 0.5 extra") == {"epoch": 3, "epochs": 10, "loss": 0.5}
    assert patterns.find(b"(a+)+$ 7") == {"x": 7}  # no regular expression
    assert patterns.find(b"loss=1 step=2") == {}
    assert patterns.find(b"a" * 900 + b" -" * 50) == {}


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        ("step {step}.", b"step 12.", {"step": 12}),
        ("at {epoch}.{step}: {loss}", b"at 3.20: 0.5", {"epoch": 3, "step": 20, "loss": 0.5}),
        ("accuracy {acc}.", b"accuracy 0.93. next", {"acc": 0.93}),
        ("loss {loss} of {steps}", b"loss none of 3, loss 5. of 7", {"loss": 5, "steps": 7}),
        ("{step} of", b"8 or 1.5.7 of", {"step": 5.7}),
        ("{loss}e", b"1e-3e", {"loss": 0.001}),
        ("from {a}-{b}", b"from 3-4", {"a": 3, "b": 4}),
    ],
)
def test_a_number_ends_where_the_patterns_text_begins(pattern: str, line: bytes, found: dict[str, float]) -> None:
    assert LinePatterns([pattern]).find(line) == found


def test_no_pattern_takes_long_on_a_line_that_was_made_for_it() -> None:
    # As one regular expression this took longer than anybody waits: every way to share the digits was tried.
    hostile = LinePatterns(["{a}{b}{c}{d}{e}{f}!", "{a}0{b}0{c}0{d}!", "x {a}  {b}  {c}  !"])
    assert hostile.find(b"0" * 1000) == {}
    assert hostile.find((b"x " + b" " * 400 + b"1") * 3) == {}


def test_a_source_that_fails_takes_no_other_along() -> None:
    class Unlucky:
        def collect(self) -> list[tuple[str, int, float, float]]:
            raise RuntimeError("no luck")

    collector = Collector(patterns=LinePatterns([]), hypertune=Unlucky())  # type: ignore[arg-type]
    for step in range(12):
        collector.note([b"step=%d loss=1" % step])
        assert collector.collect(is_last=False)[0]["data"]["series"][0]["steps"] == [step]
    first, last = collector.troubles
    assert first == "metrics of hypertune's file: RuntimeError: no luck"
    assert last.endswith("10 times in a row: they are not read any more")


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"timestamp": 1, "x": 1' + "0" * 400 + "}", '{"timestamp": 1e400, "x": 1}']
)
def test_a_line_that_hypertune_never_wrote_is_passed_over(tmp_path: Path, line: str) -> None:
    file = tmp_path / "output.metric"
    file.write_text(line + '\n{"timestamp": 5, "loss": 0.5, "global_step": "3"}\n')
    assert ("loss", 3, 5.0, 0.5) in HypertuneFile(str(file)).collect()


def test_the_newest_reports_of_hypertune_count_when_their_names_are_long(tmp_path: Path) -> None:
    file = tmp_path / "output.metric"
    name = "n" * 5_000
    file.write_text("".join(f'{{"timestamp": {at}, "{name}": 1, "global_step": {at}}}\n' for at in range(100)))
    steps = [step for _, step, _, _ in HypertuneFile(str(file)).collect()]
    assert steps[-1] == 99


def test_a_flood_of_lines_costs_a_bounded_piece_and_the_newest_count() -> None:
    collector = Collector(patterns=LinePatterns([]))
    collector.note([b"step=%d loss=1" % step for step in range(10_000)])
    (metrics, progress) = collector.collect(is_last=False)
    steps = metrics["data"]["series"][0]["steps"]
    assert len(steps) == 2000
    assert steps[-1] == 9999
    assert progress["data"] == {"step": 9999}


def test_lines_that_no_pattern_was_named_for_are_reported_as_printed() -> None:
    for patterns in ([], ["step={step} loss={loss}"]):
        collector = Collector(patterns=LinePatterns(patterns))
        collector.note([b"step=1 loss=1"])
        (metrics, _) = collector.collect(is_last=False)
        assert metrics["data"].get("is_printed", False) is (not patterns)


def test_what_the_script_tells_itself_counts_once() -> None:
    collector = Collector(patterns=LinePatterns([]))
    collector.reports_metrics = True
    collector.note([b"step=1 loss=1"])
    assert [item["kind"] for item in collector.collect(is_last=False)] == ["progress"]


def test_items_are_of_a_size_that_one_report_can_carry() -> None:
    columns = SeriesBuffer()
    for step in range(12_000):
        columns.add("loss", step, 1.0, math.inf)
    items = columns.items()
    assert [len(item["series"][0]["steps"]) for item in items] == [5000, 5000, 2000]
    assert items[0]["series"][0]["values"][0] == "Infinity"
    assert columns.items() == []


# --- the machine


def test_the_machine_is_sampled_and_the_first_sample_has_no_rates(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000000\n")
    sampler = Sampler({"memory": str(tmp_path), "cpu": str(tmp_path)}, "", has_own_network=True)
    first = sampler.sample(10.0)
    assert first == {"memory_bytes": 4000.0}
    (tmp_path / "cpu.stat").write_text("usage_usec 3000000\n")
    second = sampler.sample(12.0)
    assert second["cpu_percent"] == 100.0
    assert second["network_received_bytes_s"] >= 0
    assert second["disk_written_bytes_s"] >= 0
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")  # begun again
    assert sampler.sample(14.0)["cpu_percent"] == 0.0
    sampler.close()


def test_without_groups_and_without_a_gpu_library_there_is_what_proc_tells() -> None:
    sampler = Sampler({}, None, has_own_network=False)
    assert "memory_bytes" in sampler.sample(1.0)
    sampler.close()


def test_a_plain_process_has_no_network_figures_of_its_machine() -> None:
    sampler = Sampler({}, "", has_own_network=False)
    sampler.sample(1.0)
    second = sampler.sample(2.0)
    sampler.close()
    assert "cpu_percent" in second
    assert not [name for name in second if name.startswith("network")]


# --- the real writer


def test_what_tensorboards_own_writer_makes_is_read(tmp_path: Path, log_text: list[str]) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    ours = files(tmp_path, log_text)
    writer = EventFileWriter(str(tmp_path / "logs"))
    for step in range(3):
        value = Summary.Value(tag="loss", simple_value=step / 2)
        writer.add_event(Event(step=step, wall_time=1000.0, summary=Summary(value=[value])))
    writer.flush()
    # Our own process has it open, so there is no wait.
    found = ours.collect(0.0, is_last=False) or ours.collect(20.0, is_last=True)
    writer.close()
    assert [(name, value.step, value.data) for name, value in found] == [
        ("loss", 0, 0.0),
        ("loss", 1, 0.5),
        ("loss", 2, 1.0),
    ]
