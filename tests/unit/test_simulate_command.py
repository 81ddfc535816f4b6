"""``uvsdk simulate`` as a user meets it: on the digits, in a few rounds."""

import csv
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uvsdk.bundle import Bundle
from uvsdk.cli import main
from uvsdk.federation import algorithms
from uvsdk.simulation import experiment, references
from uvsdk.simulation.progress import Progress
from uvsdk.simulation.records import RoundRecord
from uvsdk.simulation.sinks import CsvSink, TensorBoardSink

SHORT = ["simulate", "--algorithm", "fedaws", "--data", "digits", "--rounds", "4", "--held-out", "0.9", "--seed", "5"]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def record(round_id: int, *, committed: bool = True) -> RoundRecord:
    loss = 0.25 if committed else float("nan")
    nothing = float("nan")
    return RoundRecord(round_id, loss, 3 if committed else 0, 1, 0.5, nothing, nothing, nothing, committed)


def test_every_method_is_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert set(lines) == {*algorithms.names(), *references.names()}
    assert all(len(line.split()) > 4 for line in lines.values())


def test_a_short_run_writes_everything_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*SHORT, "--output", str(one), "--tensorboard"]) == 0
    said = capsys.readouterr()
    assert "8 devices" in said.out
    assert "EER" in said.out
    assert "round 4 (4/4)" in said.err
    assert {path.name for path in one.iterdir() if not path.name.startswith("events")} == {
        "rounds.csv", "config.json", "checkpoint.uvs", "model.uvb", "evaluation.csv"
    }  # fmt: skip
    assert any(path.name.startswith("events") for path in one.iterdir())
    assert [row["round_id"] for row in read(one / "rounds.csv")] == ["1", "2", "3", "4"]
    rows = read(one / "evaluation.csv")
    assert [(row["model"], row["people"]) for row in rows] == [
        (model, people) for model in ("before", "after") for people in ("seen", "strangers", "unseen")
    ]
    for row in rows:
        assert 0 <= float(row["value"]) <= 1
        assert (row["low"] == "") == (int(row["subjects"]) < 5)
    model = Bundle.open(one / "model.uvb")
    assert model.manifest.backbone == "digits-cnn"
    assert json.loads((one / "config.json").read_text())["config"]["algorithm"] == "fedaws"

    assert main([*SHORT[:6], "2", *SHORT[7:], "--output", str(two)]) == 0
    assert main(["simulate", "--resume", "--rounds", "4", "--output", str(two)]) == 0
    assert [row["round_id"] for row in read(two / "rounds.csv")] == ["1", "2", "3", "4"]
    assert Bundle.open(two / "model.uvb").theta.tobytes() == model.theta.tobytes()


def test_a_folder_of_people_and_settings_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for person in range(5):
        place = tmp_path / "people" / f"p{person}"
        place.mkdir(parents=True)
        for sample in range(5):
            page = np.full((24, 24), 255, np.uint8)
            page[4 + person : 20, 3 + sample : 12] = draw.integers(0, 60)
            Image.fromarray(page).save(place / f"{sample}.png")
    (tmp_path / "people" / "p0" / "4.png").write_bytes(b"no picture")
    settings = tmp_path / "settings.toml"
    settings.write_text('algorithm = "positive_only"\nrounds = 2\noptimiser = "momentum"\n')
    arguments = ["simulate", "--data", str(tmp_path / "people"), "--config", str(settings), "--unseen", "0"]
    assert main([*arguments, "--set", "margin_positive=0.8", "--failure-rate", "0.1", "--local-steps", "2"]) == 0
    said = capsys.readouterr().out
    assert "positive_only on digits-cnn" in said
    assert "5 devices, 19 samples, 5 more held out; 0 people unseen" in said
    assert "1 samples could not be used" in said


def test_people_who_only_evaluate_lead_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for person in range(20):
        place = tmp_path / "people" / f"p{person:02d}"
        place.mkdir(parents=True)
        for sample in range(4):
            page = np.full((24, 24), 255, np.uint8)
            page[4 + person // 5 * 3 : 20, 3 + person % 5 * 3 + sample % 2 : 20] = draw.integers(0, 60)
            Image.fromarray(page).save(place / f"{sample}.png")
    (tmp_path / "often.json").write_text('{"evaluate_every": 1, "server_learning_rate": 100.0}')
    arguments = ["simulate", "--algorithm", "fedaws", "--data", str(tmp_path / "people"), "--unseen", "0"]
    arguments += ["--rounds", "2", "--config", str(tmp_path / "often.json"), "--evaluators", "0.999"]
    output = ["--output", str(tmp_path / "run")]
    assert main([*arguments, *output]) == 0
    assert "2 evaluations by 12 people" in capsys.readouterr().out
    assert main(["simulate", "--resume", *output]) == 1
    assert "start it anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digits"], "name the --algorithm"),
        (["--algorithm", "fedaws"], "name the --data"),
        (["--algorithm", "nothing", "--data", "digits"], "no algorithm 'nothing'"),
        (["--algorithm", "central_softmax", "--data", "digits"], "is a reference"),
        (["--algorithm", "fedaws", "--data", "nowhere"], "nowhere is not a folder"),
        (["--algorithm", "fedaws", "--data", "digits", "--set", "no=1"], "settings of fedaws"),
        (["--algorithm", "fedaws", "--data", "digits", "--recipe", "no"], "no recipe 'no'; there are voice-head, .*"),
        (
            ["--algorithm", "fedaws", "--data", "digits", "--recipe", "letters", "--train", "all"],
            "settings are for voice",
        ),
        (["--algorithm", "fedaws", "--data", "digits", "--rounds", "0"], "rounds is 0"),
        (["--algorithm", "fedaws", "--data", "digits", "--unseen", "1"], "below 1"),
        (["--algorithm", "fedaws", "--data", "digits", "--batching", "fast"], "batching 'fast'"),
        (["--algorithm", "fedaws", "--data", "digits", "--backbone", "none.uvb"], "none.uvb"),
        (["--algorithm", "fedaws", "--data", "digits", "--config", "none.json"], "cannot be read as JSON"),
        (["--algorithm", "feduv", "--data", "digits"], "digits-cnn|head of that size"),
        (
            ["--algorithm", "fedaws", "--data", "digits", "--evaluators", "0.5"],
            "0 would only evaluate, 8 are the least",
        ),
        (["--resume"], "need --output"),
        (["--resume", "--output", "nowhere"], "config.json cannot be read"),
        (["--resume", "--output", "nowhere", "--seed", "0"], "leave out --seed"),
    ],
)
def test_wrong_calls_say_what_to_do(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    assert main(["simulate", *arguments]) == 1
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert said.count("\n") == 1


def test_rows_after_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    sink = CsvSink(path)
    for number in (1, 2, 3):
        sink(record(number))
    CsvSink(path, after=2)(record(3, committed=False))
    rows = read(path)
    assert [(row["round_id"], row["loss"], row["committed"]) for row in rows] == [
        ("1", "0.25", "True"), ("2", "0.25", "True"), ("3", "nan", "False")
    ]  # fmt: skip


def test_tensorboard_gets_numbers_only(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink(record(1))
    sink(record(2, committed=False))
    sink.close()
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [event.value for event in found.Scalars("loss")] == [0.25]
    assert "mean_cosine" not in found.Tags()["scalars"]


def test_progress_on_a_terminal_and_without_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress(0, 20) as plain:
        for number in range(1, 21):
            plain(record(number, committed=number != 3))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10  # every second of 19 committed rounds, and the aborted one
    assert "round 3 (2/20): aborted, 1 devices failed" in lines
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress(0, 2) as bar:
        bar(record(1))
    assert "1/2 rounds" in capsys.readouterr().err


def test_strangers_are_impostors_of_those_who_trained_and_of_nobody_else() -> None:
    """a and b trained: a's probe 0.6 from b's template (0.8 from its own), c's reaches 0.96 of a's and 0.28 of b's."""
    templates = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
    probes = {"a": np.array([[0.8, 0.6]]), "b": np.array([[0.0, 1.0]]), "c": np.array([[0.96, 0.28]])}
    apart = experiment._trials(templates, probes, apart=True)
    assert sorted(apart.genuine.tolist()) == [0.8, 1.0]
    assert sorted(apart.impostor.tolist()) == [0.28, 0.96]
    together = experiment._trials(templates, {name: probes[name] for name in "ab"}, apart=False)
    assert sorted(together.impostor.tolist()) == [0.0, 0.6]
