"""Every declared Python, with the newest and with the oldest declared dependencies, without torch.

Run by ``make compatibility``. Each combination gets an environment of its own: first the base alone, in which the
README's first example runs, then the light extras, with which ``tests/unit`` runs and one enrolment, round of training
and verification. Interpreters are looked for on ``PATH`` and in pyenv; one that is not there is named and left out.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESOLUTIONS = {"newest": "highest", "oldest": "lowest-direct"}
EXTRAS = ("server", "agent", "evaluate")
# What the example and the tests use beside the packages that are tried: the newest that go with those.
EXAMPLE_NEEDS = ("scikit-learn",)
TESTS_NEED = ("pytest", "hypothesis", "onnx")

EXAMPLE = """
import re, sys
from pathlib import Path
code = re.search(r"```python\\n(.*?)```", Path(sys.argv[1]).read_text(encoding="utf-8"), re.DOTALL)[1]
printed = []
exec(compile(code, "README.md", "exec"), {"print": lambda *words: printed.append(" ".join(map(str, words)))})
assert [line.split()[0] for line in printed] == ["True", "False"], printed
heavy = sorted({"torch", "fastapi", "sqlalchemy", "starlette"} & set(sys.modules))
assert not heavy, f"the base also loads {heavy}"
"""


class StepFailed(Exception):
    """A command that did not end with status 0, and what it printed."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One interpreter and one choice among the versions that ``pyproject.toml`` allows.

    Args:
        python: path of the interpreter.
        version: ``major.minor`` of it.
        age: ``newest`` or ``oldest``.
        folder: of its environment, to be made.
    """

    python: str
    version: str
    age: str
    folder: Path

    def __str__(self) -> str:
        return f"Python {self.version}, {self.age} dependencies"

    def check(self) -> list[str]:
        """Make the environment and run everything in it; what the test runs said. Raises :class:`StepFailed`."""
        _run([self.python, "-m", "venv", str(self.folder)])
        self._install("-r", "pyproject.toml", "--resolution", RESOLUTIONS[self.age])
        self._install("--editable", ".", "--no-deps")
        self._install(*EXAMPLE_NEEDS, "--constraint", self._installed())
        self._python("-W", "error", "-c", EXAMPLE, "README.md")
        extras = [word for name in EXTRAS for word in ("--extra", name)]
        self._install("-r", "pyproject.toml", *extras, "--resolution", RESOLUTIONS[self.age])
        self._install(*TESTS_NEED, "--constraint", self._installed())
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        said = self._python(*pytest, "tests/integration/test_without_torch.py")
        said += self._python(*pytest, "tests/unit")
        return re.findall(r"^(?:SKIPPED.* needs .*|\d+ passed.*)$", said, re.MULTILINE)

    def _python(self, *arguments: str) -> str:
        return _run([str(self.folder / "bin" / "python"), *arguments])

    def _install(self, *what: str) -> None:
        # Built packages only (our own is built here): nobody compiles numpy to have an old one.
        binary = () if "--editable" in what else ("--only-binary", ":all:")
        place = ("--python", str(self.folder / "bin" / "python"))
        _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", *place, *binary, *what])

    def _installed(self) -> str:
        """A file that holds everything installed at its version."""
        place = ("--python", str(self.folder / "bin" / "python"))
        listed = _run([sys.executable, "-m", "uv", "pip", "freeze", "--quiet", "--exclude-editable", *place])
        file = self.folder / "installed.txt"
        file.write_text(listed)
        return str(file)


def interpreter(version: str) -> str | None:
    """A Python of that version, from ``PATH`` or from pyenv; ``None`` where there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    patches = {path: path.name.removeprefix(f"{version}.") for path in pyenv.glob(f"versions/{version}.*")}
    released = sorted((path for path in patches if patches[path].isdecimal()), key=lambda path: int(patches[path]))
    found = [shutil.which(f"python{version}"), *(str(path / "bin" / "python") for path in reversed(released))]
    return next((path for path in found if path and _is_of(path, version)), None)


def _is_of(python: str, version: str) -> bool:
    """Whether it runs and is what its name says: pyenv's shim of a version that is not chosen only complains."""
    question = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def declared() -> list[str]:
    """The Pythons that ``pyproject.toml`` has as classifiers."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'"Programming Language :: Python :: (\d+\.\d+)"', text)


@functools.cache
def _environment() -> dict[str, str]:
    """This environment without what would mix another Python's packages in, and with pip's index for uv as well."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    index = os.environ.get("PIP_INDEX_URL", asked.stdout.strip() if asked.returncode == 0 else "")
    return {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **({"UV_DEFAULT_INDEX": index} if index else {}),
        **kept,
    }


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StepFailed(f"$ {' '.join(command)[:300]}\n{(done.stdout + done.stderr)[-8000:]}")
    return done.stdout


def _outcome(combination: Combination) -> bool:
    start = time.monotonic()
    try:
        said, held = combination.check(), True
    except StepFailed as error:
        said, held = [str(error)], False
    word = "holds" if held else "DOES NOT HOLD"
    print(f"{combination}: {word}, {time.monotonic() - start:.0f} s", *said, sep="\n  ", flush=True)
    return held


def main() -> None:
    """Try what was asked for, or everything that is declared and found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=declared(), metavar="X.Y", help="default: every classifier's")
    parser.add_argument("--age", nargs="+", default=list(RESOLUTIONS), choices=list(RESOLUTIONS))
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="combinations at a time")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    # What `make test` runs in full, unless it is asked for here by name.
    parser.set_defaults(elsewhere=() if "--python" in sys.argv else ((own, "newest"),))
    arguments = parser.parse_args()
    found = {version: interpreter(version) for version in arguments.python}
    for version in (version for version, path in found.items() if path is None):
        print(f"Python {version} is neither on PATH nor in pyenv: not tried", flush=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(arguments.jobs) as threads:
        combinations = [
            Combination(path, version, age, Path(scratch) / f"{version}-{age}")
            for version, path in found.items()
            for age in arguments.age
            if path is not None and (version, age) not in arguments.elsewhere
        ]
        held = list(threads.map(_outcome, combinations))
    print(f"{sum(held)} of {len(held)} combinations hold")
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
