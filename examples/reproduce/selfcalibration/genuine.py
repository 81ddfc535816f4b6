"""What a person's own samples say of how often they will be rejected.

``python -m examples.reproduce.selfcalibration.genuine`` takes the bundles and ``--cache`` as ``run`` beside it does.
People with eight recordings or photographs or more enrol with 2, 3 or 5 of them; the others are fresh probes. The
threshold lets 1 % of everybody else's samples in. Compared are the false rejections of the fresh probes with those that
the enrolment's own samples tell: as they score against the template of the others, and raised to what a fresh probe
would have (:func:`uvsdk.scoring.personal.genuine_scores`), which devices report. The last column is what probes that
were accepted, kept and told of would say.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from examples.reproduce import data
from examples.reproduce.selfcalibration import domains
from examples.reproduce.selfcalibration.domains import Embedded
from uvsdk.bundle import Bundle
from uvsdk.scoring.moments import unit
from uvsdk.scoring.personal import genuine_scores, leave_one_out

HERE = Path(__file__).parent
ENROLLED = (2, 3, 5)
LEAST, DRAWS, FMR = 8, 40, 0.01
COLUMNS = (
    "domain",
    "people",
    "samples",
    "fresh",
    "left_out",
    "corrected",
    "kept",
    "score_fresh",
    "score_left_out",
    "score_corrected",
)


def main() -> None:
    """Measure every domain of the modalities of the bundles that has such people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--cache", type=Path, default=data.cache() / "selfcalibration", help="folder for embeddings")
    parser.add_argument("--output", type=Path, default=HERE / "genuine.csv")
    chosen = parser.parse_args()
    with chosen.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for path in chosen.bundles:
            bundle = Bundle.open(path)
            for name in domains.VOICES if bundle.manifest.modality == "voice" else domains.FACES:
                seen = domains.embedded(name, bundle, chosen.cache)
                for samples in ENROLLED:
                    row = _measured(seen, samples)
                    if row is not None:
                        writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in row])


def _measured(seen: Embedded, samples: int) -> tuple[object, ...] | None:
    own = [np.flatnonzero(seen.person == index) for index in range(seen.people)]
    able = [index for index in range(seen.people) if len(np.unique(seen.recording[own[index]])) >= LEAST]
    if len(able) < LEAST:
        return None
    found = []
    for draw in range(DRAWS):
        rng = np.random.default_rng([draw, samples])
        fresh, left_out, corrected, impostor = [], [], [], []
        for index in able:
            order = rng.permutation(own[index])
            rows, probes = seen.rows[order[:samples]], seen.rows[order[samples:]].astype(np.float64)
            template = unit(rows.mean(axis=0, dtype=np.float64))
            fresh.append(probes @ template)
            left_out.append(leave_one_out(rows))
            corrected.append(genuine_scores(rows))
            impostor.append(seen.rows[seen.person != index].astype(np.float64) @ template)
        limit = float(np.quantile(np.concatenate(impostor), 1.0 - FMR))
        # Whoever was rejected is not kept, and of whom nothing was kept nothing is told.
        kept = [scores[scores >= limit] for scores in fresh]
        told = (fresh, left_out, corrected, [scores for scores in kept if len(scores)])
        rejected = [100 * float(np.mean([(scores < limit).mean() for scores in of])) for of in told]
        found.append((*rejected, *(float(np.mean([scores.mean() for scores in of])) for of in told[:3])))
    return seen.name, len(able), samples, *np.mean(found, axis=0).tolist()


if __name__ == "__main__":
    main()
