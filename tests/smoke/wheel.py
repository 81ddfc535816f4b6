"""Build the wheel, install it without extras into a bare environment, and verify somebody with it.

What is proven: the wheel holds what it needs, the base dependencies suffice, and no torch comes along.
Run by ``make smoke``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VERIFY = """
import sys, time
start = time.perf_counter()
import numpy as np
import uvsdk
from uvsdk.bundle import shipped
imported_s = time.perf_counter() - start
bundle = shipped()
pages = np.load(sys.argv[1])
store = uvsdk.MemoryStore()
enrolment = uvsdk.enroll("ada", list(pages["zero"][:5]), model=bundle, store=store, fmr=0.05)
genuine = uvsdk.verify(pages["zero"][5], enrolment.template, model=bundle)
cold_s = time.perf_counter() - start
impostor = uvsdk.verify(pages["one"][0], enrolment.template, model=bundle)
assert genuine.accepted and not impostor.accepted, (genuine, impostor)
assert "torch" not in sys.modules
import uvsdk_device
print(f"genuine {genuine.score:.3f} accepted, impostor {impostor.score:.3f} rejected at {genuine.threshold.score:.3f}; "
      f"import {imported_s:.2f} s, cold start to first decision {cold_s:.2f} s")
"""


def main() -> None:
    """Build, install, verify, and print the installed size."""
    import numpy as np
    from sklearn.datasets import load_digits

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)])
        wheel = next(folder.glob("*.whl"))
        digits = load_digits()
        pages = {
            name: (255 - digits.images[digits.target == label][-8:] / 16 * 255).astype(np.uint8)
            for name, label in (("zero", 0), ("one", 1))
        }
        np.savez(folder / "pages.npz", **pages)
        venv.create(folder / "bare", with_pip=True)
        python = folder / "bare" / "bin" / "python"
        _run([str(python), "-m", "pip", "install", "--quiet", str(wheel)])
        installed = _run([str(python), "-m", "pip", "list", "--format", "freeze"])
        print(installed)
        heavy = [line for line in installed.splitlines() if line.split("==")[0] in {"torch", "fastapi", "sqlalchemy"}]
        if heavy:
            sys.exit(f"the base installation drags in {heavy}")
        size = sum(path.stat().st_size for path in (folder / "bare" / "lib").rglob("*") if path.is_file())
        print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB; environment with pip {size / 1e6:.0f} MB")
        print(_run([str(python), "-c", VERIFY, str(folder / "pages.npz")], cwd=folder))
        print(_run([str(folder / "bare" / "bin" / "uvsdk"), "--help"], cwd=folder))


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
