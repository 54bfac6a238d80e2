"""The list of mutations fits the code; `make mutations` runs the suite against them."""

from pathlib import Path

import pytest

from tests.mutations.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


def test_there_are_forty():
    assert len({(m.file, m.old) for m in MUTATIONS}) == len(MUTATIONS) >= 40


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.file}: {m.old.strip()[:30]}")
def test_each_changes_one_place_and_names_tests(mutation):
    assert (ROOT / "workbench" / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert all((ROOT / path).exists() for path in mutation.tests.split())
