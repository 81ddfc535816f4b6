"""Who is compared with whom in ``examples/reproduce/speakers``, and that its page says what its rows say."""

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from examples.reproduce import record
from examples.reproduce.speakers import figure, protocol


def test_impostors_who_did_not_train_are_all_that_the_templates_of_who_did_meet() -> None:
    rng = np.random.default_rng(0)
    seen, unseen = rng.standard_normal((3, 7, 4)), rng.standard_normal((2, 4, 4))
    found = protocol.stranger_trials(seen.astype(np.float32), unseen.astype(np.float32))
    # Two utterances beside the five that enrol; three templates against two strangers' four utterances.
    assert (len(found.genuine), len(found.impostor)) == (3 * 2, 3 * 2 * 4)
    assert set(found.probe_subject[~found.is_genuine].tolist()) == {3, 4}
    assert set(found.template_subject.tolist()) == {0, 1, 2}
    template = seen[1, :5].mean(axis=0)
    expected = template @ unseen[0, 2] / np.linalg.norm(template)
    assert np.abs(found.impostor - expected).min() < 1e-5


def test_the_page_shows_its_rows() -> None:
    page = (figure.HERE / "README.md").read_text(encoding="utf-8")
    rows = record.read(figure.HERE / "results.csv")
    assert figure.table(rows) in page
    assert figure.impostors(rows) in page
