"""How long the command line takes: `python -m tests.bench.startup`. Prints ratios to a bare interpreter."""

import subprocess
import sys
import time

from tests.conftest import ROOT


def seconds(*words: str) -> float:
    """Best of five."""
    best = float("inf")
    for _ in range(5):
        since = time.monotonic()
        subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
        best = min(best, time.monotonic() - since)
    return best


def main() -> None:
    bare = seconds("-c", "pass")
    for name, words in {"--help": ["--help"], "run --help": ["run", "--help"], "plan": ["plan"]}.items():
        taken = seconds("entrypoint.py", *words)
        print(f"{name}: {taken:.2f} s, {taken / bare:.1f} x a bare interpreter")


if __name__ == "__main__":
    main()
