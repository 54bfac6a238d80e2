"""What the parts of a data set hold is kept while another loader reads it; long data in them are neither copied nor compared."""

from typing import Any

import pytest
from torch.utils.data import Sampler

from workbench.task.data.rng_state import DataRngState
from workbench.task.state.contents import MOST_PARTS


class Group(list[int]):
    """Indices that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Group":
        raise AssertionError("a copy of the data was made")


class Groups(Sampler[list[int]]):
    """Has batches in a list or a dict, whose order each pass changes."""

    def __init__(self, groups: Any) -> None:
        self.groups, self.passes = groups, 0


def of(kind: type[Any], size: int) -> Groups:
    groups = [Group(range(size)) for _ in range(70)]
    return Groups(groups if kind is list else dict(enumerate(groups)))


@pytest.mark.parametrize("kind", [list, dict])
def test_long_lists_within_a_container_are_not_copied(kind: type[Any]) -> None:
    """The container's own order is kept."""
    sampler = of(kind, MOST_PARTS // 70 + 1)
    before = list(sampler.groups) if kind is list else list(sampler.groups.items())
    with DataRngState(sampler=sampler).attributes_kept():
        sampler.passes += 1
        if kind is list:
            sampler.groups.reverse()
        else:
            sampler.groups[0] = sampler.groups.pop(0)
    after = list(sampler.groups) if kind is list else list(sampler.groups.items())
    assert all(
        one is other or (one[0] == other[0] and one[1] is other[1])
        for one, other in zip(after, before, strict=True)
    )
    assert sampler.passes == 0


def test_short_lists_within_a_container_have_their_contents_again() -> None:
    sampler = Groups([[number, number] for number in range(70)])
    with DataRngState(sampler=sampler).attributes_kept():
        for group in sampler.groups:
            group.append(1)
        sampler.groups.pop()
    assert sampler.groups == [[number, number] for number in range(70)]
