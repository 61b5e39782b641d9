"""Programs that some tests need. Without one, a test is skipped with its name; in CI it fails."""

import os
import shutil

import pytest


def need(*names: str) -> None:
    """Skip the test, or fail it in CI, unless these programs are here."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
