"""Lists of comparisons: VoxCeleb's form, LFW's form, what is scored of them, and every way a line can be wrong."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import real_data
from tests.builders import angle_file, embed_angle
from uvsdk.arrays import Float32
from uvsdk.errors import EnrolmentError, SettingsError
from uvsdk.evaluation import lfw, pairs, trial_lists
from uvsdk.evaluation.acquisition import acquire
from uvsdk.evaluation.pairs import PairList
from uvsdk.evaluation.summary import summarise


def listing(folder: Path, text: str) -> Path:
    path = folder / "trials.txt"
    path.write_text(text, encoding="utf-8")
    return path


VOX = "1 id1/x/1.wav id1/y/2.wav\n0 id1/x/1.wav id2/z/1.wav\n0 id1/y/2.wav id2/z/1.wav\n"


def vox_files(folder: Path) -> None:
    for name, angle in (("id1/x/1.wav", 0), ("id1/y/2.wav", 60), ("id2/z/1.wav", 90)):
        angle_file(folder / name, angle)


def test_a_voxceleb_list(tmp_path: Path) -> None:
    vox_files(tmp_path)
    read = trial_lists.read(listing(tmp_path, VOX))
    assert read.files == ("id1/x/1.wav", "id1/y/2.wav", "id2/z/1.wav")
    assert (read.first.tolist(), read.second.tolist()) == ([0, 0, 1], [1, 2, 2])
    assert (read.subjects, read.subject.tolist()) == (("id1", "id2"), [0, 0, 1])
    outcome = pairs.score(read, lambda name: tmp_path / name, embed_angle).outcome()
    # cos 60, cos 90, cos 30.
    assert outcome.trials.scores == pytest.approx([0.5, 0.0, np.sqrt(0.75)], abs=1e-6)
    assert outcome.trials.is_genuine.tolist() == [True, False, False]
    assert (outcome.samples, outcome.failures, outcome.left_out, outcome.repeated) == (3, (), 0, 0)


@pytest.mark.parametrize("jobs", [1, 4])
def test_each_file_is_embedded_once(tmp_path: Path, jobs: int) -> None:
    vox_files(tmp_path)
    seen: list[Path] = []
    told: list[tuple[int, int]] = []

    def counted(path: Path) -> Float32:
        seen.append(path)
        return embed_angle(path)

    read = trial_lists.read(listing(tmp_path, VOX * 50))
    scored = pairs.score(
        read, lambda name: tmp_path / name, counted, jobs=jobs, progress=lambda done, total: told.append((done, total))
    )
    assert len(seen) == len(set(seen)) == 3
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert len(scored.scores) == 150
    with pytest.raises(SettingsError, match="at least one job"):
        acquire([], embed_angle, jobs=0)


def test_gzip_byte_order_mark_windows_ends_and_blank_lines_make_no_difference(tmp_path: Path) -> None:
    plain = trial_lists.read(listing(tmp_path, VOX))
    odd = ("\ufeff" + VOX.replace("\n", "\r\n\r\n")).encode()
    (tmp_path / "odd.txt").write_bytes(odd)
    # The name does not say that it is compressed; the content does.
    (tmp_path / "packed.txt").write_bytes(gzip.compress(odd))
    for name in ("odd.txt", "packed.txt"):
        read = trial_lists.read(tmp_path / name)
        assert read.files == plain.files
        assert read.second.tolist() == plain.second.tolist()


def test_kaldi_labels_stand_behind_and_tabs_let_names_hold_spaces(tmp_path: Path) -> None:
    read = trial_lists.read(listing(tmp_path, "a/1.wav a/2.wav target\na/1.wav b/1.wav nontarget\n"))
    assert (read.files, read.subjects) == (("a/1.wav", "a/2.wav", "b/1.wav"), ("a", "b"))
    read = trial_lists.read(listing(tmp_path, "1\ta/one 1.wav\ta/2.wav\n0\ta/one 1.wav\tb/1.wav\n"))
    assert read.files[0] == "a/one 1.wav"


def test_who_a_file_is_of_is_told_by_the_level_that_agrees_with_the_labels(tmp_path: Path) -> None:
    # The first level is the set, the second the person.
    read = trial_lists.read(listing(tmp_path, "1 dev/ann/1 dev/ann/2\n0 dev/ann/1 dev/bob/1\n"))
    assert read.subjects == ("ann", "bob")
    # No level does: genuine trials join files, here 1-2-3 and 4.
    flat = trial_lists.read(listing(tmp_path, "1 1.wav 2.wav\n1 2.wav 3.wav\n0 1.wav 4.wav\n"))
    assert flat.subjects == ("1.wav", "4.wav")
    assert flat.subject.tolist() == [0, 0, 0, 1]
    assert "labels" in flat.protocol


def test_labels_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    contradiction = "1 1.wav 2.wav\n1 2.wav 3.wav\n0 1.wav 4.wav\n0 1.wav 3.wav\n"
    with pytest.raises(SettingsError, match="1 line is malformed: line 4: labelled as two people, but"):
        trial_lists.read(listing(tmp_path, contradiction))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 a/1.wav", "2 fields, the first line has 3"),
        ("a/1.wav", "1 fields, need a label and two paths"),
        ("1 a/1.wav a/2.wav a/3.wav", "4 fields"),
        ("2 a/1.wav a/2.wav", "the label is 1, 0, target or nontarget, got '2'"),
        ("yes a/1.wav a/2.wav", "got 'yes'"),
        ("1\t\ta/2.wav", "an empty field"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        trial_lists.read(listing(tmp_path, f"1 a/1.wav a/2.wav\n\n{line}\n0 a/1.wav b/1.wav\n"))
    assert "trials.txt: 1 line is malformed: line 3: " in str(error.value)
    assert words in str(error.value)


def test_every_malformed_line_is_named_up_to_ten(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        trial_lists.read(listing(tmp_path, "1 a/1.wav a/2.wav\n" + "broken\n" * 14))
    assert "14 lines are malformed" in str(error.value)
    assert "line 11: " in str(error.value)
    assert "line 12: " not in str(error.value)
    assert "and 4 more" in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no trial"),
        (b"\xff\xfe\x00broken", "not UTF-8 text"),
        (gzip.compress(b"1 a/1 a/2\n" * 100, mtime=0)[:-12], "damaged gzip"),
        (b"1 only.wav\n", "a label and one path"),
    ],
)
def test_a_file_that_is_no_list(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "odd").write_bytes(content)
    with pytest.raises(SettingsError, match=words):
        trial_lists.read(tmp_path / "odd")
    with pytest.raises(SettingsError, match="cannot read the list gone"):
        trial_lists.read(tmp_path / "gone")


def test_missing_and_unreadable_files_are_counted_and_in_no_rate(tmp_path: Path) -> None:
    vox_files(tmp_path)
    angle_file(tmp_path / "id2/z/2.wav", "silence")
    text = VOX + "1 id2/z/1.wav id2/z/2.wav\n0 id1/x/1.wav id3/gone.wav\n0 id1/y/2.wav id3/gone.wav\n"
    scored = pairs.score(trial_lists.read(listing(tmp_path, text)), lambda name: tmp_path / name, embed_angle)
    outcome = scored.outcome()
    assert [failure.kind for failure in outcome.failures] == ["no speech", "missing file"]
    assert outcome.failures_by_reason == {"missing file": 1, "no speech": 1}
    assert (outcome.samples, outcome.left_out, len(outcome.trials.scores)) == (5, 3, 3)
    assert np.isnan(scored.scores).tolist() == [False] * 3 + [True] * 3


def test_when_nothing_can_be_read_the_error_says_where_to_look(tmp_path: Path) -> None:
    scored = pairs.score(trial_lists.read(listing(tmp_path, VOX)), lambda name: tmp_path / name, embed_angle)
    assert scored.left_out == 3
    with pytest.raises(EnrolmentError, match=r"0 genuine and 0 impostor trials .* \(3 of 3 samples .*--root"):
        scored.outcome()


def test_a_sample_against_itself_measures_nothing(tmp_path: Path) -> None:
    vox_files(tmp_path)
    angle_file(tmp_path / "id1/copy.wav", 0)  # the bytes of id1/x/1.wav
    angle_file(tmp_path / "id2/copy.wav", 0)  # the same, under another person: a false match the report must show
    text = VOX + "1 id1/x/1.wav id1/copy.wav\n1 id1/x/1.wav id1/x/1.wav\n0 id1/x/1.wav id2/copy.wav\n"
    scored = pairs.score(trial_lists.read(listing(tmp_path, text)), lambda name: tmp_path / name, embed_angle)
    assert scored.repeated.tolist() == [False, False, False, True, True, False]
    outcome = scored.outcome()
    assert outcome.repeated == 2
    assert outcome.trials.genuine == pytest.approx([0.5], abs=1e-6)
    assert outcome.trials.impostor.max() == pytest.approx(1.0)


def test_a_person_on_one_side_only(tmp_path: Path) -> None:
    vox_files(tmp_path)
    angle_file(tmp_path / "id3/1.wav", 180)
    read = trial_lists.read(listing(tmp_path, VOX + "0 id3/1.wav id1/x/1.wav\n"))
    summary = summarise(pairs.score(read, lambda name: tmp_path / name, embed_angle).outcome(), resamples=20)
    assert (summary.people, summary.people_with_genuine) == (3, 1)


def test_scores_are_written_as_people_share_them(tmp_path: Path) -> None:
    vox_files(tmp_path)
    angle_file(tmp_path / "id1/with space.wav", 90)
    (tmp_path / "id2/z/1.wav").unlink()
    blind = "id1/x/1.wav\tid1/y/2.wav\nid1/x/1.wav\tid2/z/1.wav\nid1/x/1.wav\tid1/with space.wav\n"
    read = trial_lists.read(listing(tmp_path, blind))
    assert not read.labelled
    scored = pairs.score(read, lambda name: tmp_path / name, embed_angle)
    assert trial_lists.write_scores(tmp_path / "scores.txt", read, scores=scored.scores) == 1
    lines = (tmp_path / "scores.txt").read_text().splitlines()
    assert lines == ["0.500000 id1/x/1.wav id1/y/2.wav", "0.000000\tid1/x/1.wav\tid1/with space.wav"]
    with pytest.raises(EnrolmentError, match="does not say which trials are genuine"):
        scored.outcome()


def test_a_model_that_gives_no_numbers_is_a_failure_not_a_score(tmp_path: Path) -> None:
    vox_files(tmp_path)
    bad = lambda path: np.array([np.nan, 1], np.float32) if path.name == "2.wav" else embed_angle(path)  # noqa: E731
    scored = pairs.score(trial_lists.read(listing(tmp_path, VOX)), lambda name: tmp_path / name, bad)
    assert [failure.kind for failure in scored.acquisition.failures] == ["no embedding"]
    assert scored.left_out == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40))
def test_genuine_trials_join_exactly_their_components(trials: list[tuple[bool, int, int]]) -> None:
    labels = np.array([own for own, _, _ in trials])
    first, second = np.array([a for _, a, _ in trials]), np.array([b for _, _, b in trials])
    files = tuple(f"{index}.wav" for index in range(10))
    subjects, person = trial_lists._joined(files, first, second, labels)
    # Components by hand: relabel until nothing changes.
    component = np.arange(10)
    for _ in range(10):
        for a, b in zip(first[labels], second[labels], strict=True):
            component[component == component[b]] = component[a]
    assert np.array_equal(person[:, None] == person, component[:, None] == component)
    assert len(subjects) == len(set(component.tolist()))


def test_voxceleb_o_with_random_embeddings_takes_seconds(tmp_path: Path) -> None:
    path = real_data.file("protocols/voxceleb1_O_original.txt.gz")
    started = time.process_time()
    read = trial_lists.read(path)
    # Counted in the file: 37,720 lines, half of them genuine, 40 speakers.
    assert (len(read.first), len(read.subjects), read.subjects[0]) == (37_720, 40, "id10270")
    for number, name in enumerate(read.files):
        angle_file(tmp_path / name, number)
    rng = np.random.default_rng(0)

    def noise(path: Path) -> Float32:
        vector = rng.normal(size=64).astype(np.float32)
        return vector / np.linalg.norm(vector)

    summary = summarise(pairs.score(read, lambda name: tmp_path / name, noise).outcome(), resamples=100)
    assert (summary.curve.genuine, summary.curve.impostor, summary.outcome.samples) == (18_860, 18_860, 4715)
    # A model that knows nothing; the standard error over 18,860 trials a side is 0.4 points.
    assert summary.intervals["eer"].value == pytest.approx(0.5, abs=0.02)
    assert time.process_time() - started < 10


LFW = "2\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\nBob\t1\t2\nBob\t2\tAnn\t2\n"


def lfw_images(folder: Path) -> None:
    for name, angle in (("Ann_0001", 0), ("Ann_0002", 20), ("Bob_0001", 90), ("Bob_0002", 100)):
        angle_file(folder / name[:3] / f"{name}.jpg", angle)


def test_lfw_pairs(tmp_path: Path) -> None:
    lfw_images(tmp_path)
    path = listing(tmp_path, LFW)
    assert lfw.is_pairs(path)
    assert not lfw.is_pairs(listing(tmp_path, VOX))
    read = lfw.read(listing(tmp_path, LFW))
    assert read.files == ("Ann/Ann_0001", "Ann/Ann_0002", "Bob/Bob_0001", "Bob/Bob_0002")
    assert (read.subjects, read.subject.tolist()) == (("Ann", "Bob"), [0, 0, 1, 1])
    assert read.folds is not None
    assert read.folds.tolist() == [0, 0, 1, 1]
    outcome = pairs.score(read, lambda name: lfw.locate(tmp_path, name), embed_angle).outcome()
    expected = np.cos(np.deg2rad([20, 90, 10, 80]))
    assert outcome.trials.scores == pytest.approx(expected, abs=1e-6)
    summary = summarise(outcome, resamples=20)
    found = summary.accuracy
    assert found is not None
    assert summary.rows()[0] == ("Accuracy", "100.00 %", "± 0.00 % standard error, 2 folds")
    # Fold 1 is decided half way between cos 10 and cos 80, fold 2 half way between cos 20 and cos 90.
    assert found.thresholds == pytest.approx(
        ((expected[2] + expected[3]) / 2, (expected[0] + expected[1]) / 2), abs=1e-6
    )
    assert found.by_fold == (1.0, 1.0)
    assert found.standard_error == 0.0


def test_accuracy_and_its_standard_error_by_hand() -> None:
    # Fold 0 is perfect on its own. Fold 1 has one of four wrong under any threshold that fold 0 gives.
    scores = np.array([1.0, 0.9, 0.1, 0.0, 1.0, 0.3, 0.2, 0.0])
    genuine = np.array([True, True, False, False] * 2)
    found = lfw.accuracy(scores, genuine, folds=np.repeat([0, 1], 4))
    # Fold 0 by fold 1's (0.2 + 0.3) / 2: all right. Fold 1 by fold 0's (0.1 + 0.9) / 2: 0.3 is genuine and rejected.
    assert found.thresholds == pytest.approx((0.25, 0.5))
    assert found.by_fold == (1.0, 0.75)
    # Deviation of (1, 0.75): 0.125 * sqrt 2; over sqrt 2.
    assert found.standard_error == pytest.approx(0.125)
    with pytest.raises(ValueError, match="at least two folds"):
        lfw.accuracy(scores, genuine, folds=np.zeros(8, np.int64))


def test_the_best_threshold_of_several_is_the_middle_one() -> None:
    # Right decisions: at 0.2 and below 3 of 4 (0.2 is accepted wrongly); 3 of 4 at (0.2, 0.4], 4 at none.
    assert lfw.best_threshold(np.array([0.75, 0.875]), np.array([0.25])) == 0.5
    # Nothing separates equal scores; accepting all, or nobody, is right for one half: the later of the two.
    assert lfw.best_threshold(np.ones(2), np.ones(2)) == np.nextafter(1.0, 2.0)


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
)
def test_no_threshold_is_better_than_the_best(genuine: list[float], impostor: list[float]) -> None:
    high, low = np.array(genuine), np.array(impostor)

    def right(threshold: float) -> int:
        return int((high >= threshold).sum() + (low < threshold).sum())

    best = right(lfw.best_threshold(high, low))
    assert best == max(right(threshold) for threshold in [*genuine, *impostor, 2.0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann\t1\t2\n", "the first line of LFW pairs is the number of folds"),
        ("0\t1\n", "the first line of LFW pairs"),
        ("", "the first line of LFW pairs"),
        ("2\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\n", "has 2 pairs, its heading announces 2 folds of 2 x 1 = 4"),
        (LFW + "Bob\t1\t2\n", "line 6: the heading announces 2 folds of 2 x 1 pairs, and there are more"),
        (LFW.replace("Ann\t1\tBob\t1", "Ann\t1\t3"), "line 3: 3 fields, here stands a pair of two people"),
        (LFW.replace("Ann\t1\t2\n", "Ann\t1\tBob\t2\n"), "line 2: 4 fields, here stands a pair of one person"),
        (LFW.replace("Ann\t1\t2\n", "Ann\t1\t1\n"), "line 2: compares an image with itself"),
        (LFW.replace("Ann\t1\t2\n", "Ann\t0\t2\n"), "line 2: images are numbered from 1 on, got 0 and 2"),
        (LFW.replace("Ann\t1\t2\n", "Ann\t1\tx\n"), "line 2: images are numbered from 1 on, got 1 and x"),
        (LFW.replace("Ann\t1\tBob\t1", "Ann\t1\tAnn\t2"), "line 3: one person twice where a pair of two"),
        (LFW.replace("Ann\t1\t2\n", "../Ann\t1\t2\n"), "line 2: a name is empty or holds a slash"),
    ],
)
def test_lfw_lines_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        lfw.read(listing(tmp_path, text))
    assert words in str(error.value)


def test_lfw_images_with_another_suffix_and_missing_ones(tmp_path: Path) -> None:
    lfw_images(tmp_path)
    (tmp_path / "Ann/Ann_0001.jpg").rename(tmp_path / "Ann/Ann_0001.png")
    (tmp_path / "Bob/Bob_0002.jpg").unlink()
    read = lfw.read(listing(tmp_path, LFW))
    outcome = pairs.score(read, lambda name: lfw.locate(tmp_path, name), embed_angle).outcome()
    assert (outcome.left_out, outcome.failures_by_reason) == (2, {"missing file": 1})
    # Only one fold is left, so no threshold can come from another one: no accuracy, the rest is measured.
    assert summarise(outcome, resamples=20).accuracy is None


def test_one_set_without_folds(tmp_path: Path) -> None:
    lfw_images(tmp_path)
    read = lfw.read(listing(tmp_path, "1\nAnn\t1\t2\nAnn\t1\tBob\t1\n"))
    assert read.folds is None
    outcome = pairs.score(read, lambda name: lfw.locate(tmp_path, name), embed_angle).outcome()
    assert summarise(outcome, resamples=20).accuracy is None


def test_lfw_itself() -> None:
    read = lfw.read(real_data.file("protocols/lfw_pairs.txt"))
    # View 2: 10 folds of 300 + 300; the pairs name 7,701 images of 4,281 people.
    assert (len(read.first), len(read.files), len(read.subjects)) == (6000, 7701, 4281)
    assert (read.subject[read.first] == read.subject[read.second]).sum() == 3000


def test_scores_do_not_depend_on_the_portion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for index in range(6):
        angle_file(tmp_path / f"p{index % 2}" / f"{index}.wav", 17 * index)
    files = tuple(f"p{index % 2}/{index}.wav" for index in range(6))
    first, second = np.triu_indices(6, 1)
    read = PairList(files, first, second, ("p0", "p1"), np.arange(6) % 2, "by hand")
    whole = pairs.score(read, lambda name: tmp_path / name, embed_angle).scores
    monkeypatch.setattr(pairs, "_SCORED_AT_ONCE", 4)
    assert np.array_equal(pairs.score(read, lambda name: tmp_path / name, embed_angle).scores, whole)
