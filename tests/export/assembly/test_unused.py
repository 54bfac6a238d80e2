"""Functions and classes that nothing needs are left out, with their decorators."""

from __future__ import annotations

from workbench.export.assembly.unused import without_unread, without_unused

FUNCTIONS = """\
import a

TABLE = {}


@a.decorated
def used(x):
    return Kept(x)


@a.decorated
def unused():
    return used(unused)


class Kept:
    def method(self):
        return late()


def late():
    # of a method alone
    return 1"""


def test_what_is_named_anywhere_stays() -> None:
    found = without_unused(FUNCTIONS, "def main():\n    for x in used(TABLE):\n        x.unused()")
    assert found == FUNCTIONS.replace(
        "@a.decorated\ndef unused():\n    return used(unused)\n\n\n", ""
    )


def test_all_of_them_may_be_unused() -> None:
    assert without_unused(FUNCTIONS, "def main():\n    pass") == "import a\n\nTABLE = {}"


def test_settings_that_are_not_read_are_left_out() -> None:
    config = "@dataclasses.dataclass\nclass Config:\n    lr: float = 0.1\n    max_steps: int = 3  # updates\n    seed: int = 0"
    assert (
        without_unread(config, "lr = config.lr\nconfig.seeds = seed")
        == "@dataclasses.dataclass\nclass Config:\n    lr: float = 0.1"
    )
