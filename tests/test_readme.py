"""The README says what the code does."""

import re

from finetune.settings import markdown_table
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_the_table_of_flags_is_the_codes() -> None:
    """To update: python entrypoint.py flags, between the two comments."""
    found = re.search(r"<!-- flags -->\n(.*)<!-- /flags -->", README, re.DOTALL)
    assert found and found[1].strip() == markdown_table().strip()


def test_files_and_commands_that_it_names_exist() -> None:
    for path in re.findall(r"(?<![\w/])(?:finetune|tests|docs|accel_configs|manifests)/[\w/.-]*\w", README):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"make (\w+)", README)
    makefile = (ROOT / "Makefile").read_text()
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert f"\n{target}:" in makefile, target
