"""Records how this version behaves, for the tests beside it: ``python -m tests.behaviour.record [--add]``.

What is recorded, and from where, is in ``simulations.py``, ``federations.py`` and ``probes.py``. Everything is seeded,
so on one processor with one set of libraries every number comes out the same to the last bit, and the tests ask for
that wherever ``arithmetic.fingerprint()`` is one of those recorded. Another processor, or another version of torch,
rounds otherwise; there the tests compare what does not depend on the last bits (see ``comparison.py``).

A change that is meant to keep behaviour never touches ``recorded.json``. One that is meant to change it records anew
and says why in its commit. ``--add`` keeps what was recorded elsewhere and adds this processor.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.behaviour import arithmetic, federations, probes, simulations
from tests.behaviour.comparison import FILE, recordings
from tests.integration.forked import Crew
from uvsdk.federation import algorithms


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument("--add", action="store_true", help="keep what other processors recorded")
    arguments = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1, as the tests are run")
    found: dict[str, dict[str, object]] = {"simulations": {}, "federations": {}, "probes": {}}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        crew = Crew(root / "log")
        for method in algorithms.names():
            (root / method).mkdir()
            found["federations"][method] = federations.federated(method, root / method, crew)
        crew.dismiss()
        for case in (*algorithms.names(), *simulations.VARIANTS):
            found["simulations"][case] = simulations.simulated(case)
        for case in probes.CASES:
            (root / case).mkdir()
            try:
                found["probes"][case] = probes.decided(case, root / case)
            except pytest.skip.Exception as reason:
                raise SystemExit(f"{case} cannot be recorded: {reason}") from None
    others = recordings() if arguments.add else {}
    text = json.dumps(others | {arithmetic.fingerprint(): found}, indent=1, sort_keys=True, allow_nan=False)
    FILE.write_text(text + "\n")
    print(f"wrote {FILE.name}")


if __name__ == "__main__":
    main()
