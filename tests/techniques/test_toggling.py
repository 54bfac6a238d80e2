"""Which parameters require gradients, and whose turn it is."""

import pytest
import torch

from workbench.task.errors import TaskError
from workbench.techniques.toggling import Toggle, optimizers_at, toggled, updates_of


def parameters():
    made = [torch.zeros(2, requires_grad=on) for on in (True, True, False, True)]
    made[3].grad = torch.ones(2)
    return made


def wanted(made):
    return [p.requires_grad for p in made]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_only_its_own_and_all_again_afterwards(error):
    made = parameters()
    try:
        with toggled(made, made[1:3]):
            # a frozen one of its own stays frozen
            assert wanted(made) == [False, True, False, False]
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert wanted(made) == [True, True, False, True]
    assert torch.equal(made[3].grad, torch.ones(2))


def test_a_second_toggle_replaces_the_first():
    made = parameters()
    toggle = Toggle()
    toggle.untoggle()
    assert wanted(made) == [True, True, False, True]
    toggle.toggle(made, {made[0]})
    toggle.toggle(made, made[1:])
    assert wanted(made) == [False, True, False, True]
    toggle.untoggle()
    assert wanted(made) == [True, True, False, True]


def test_all_step_where_no_frequency_is_given():
    assert optimizers_at((0, 0, 0), 7) == (0, 1, 2)
    assert optimizers_at((0,), 7) == (0,)


def test_turns_by_frequency():
    assert [optimizers_at((2, 1, 3), step)[0] for step in range(8)] == [0, 0, 1, 2, 2, 2, 0, 0]
    assert optimizers_at((1,), 5) == (0,)


@pytest.mark.parametrize("frequencies", [(1, 0), (0, 2), (2, -1), (-1, -1)])
def test_a_frequency_that_says_nothing(frequencies):
    with pytest.raises(TaskError, match="at least 1"):
        optimizers_at(frequencies, 0)


@pytest.mark.parametrize("frequencies", [(0, 0), (1, 1), (5, 1), (2, 3, 1)])
def test_turns_are_those_that_whose_turn_gives(frequencies):
    for updates in range(20):
        for index in range(len(frequencies)):
            counted = sum(index in optimizers_at(frequencies, step) for step in range(updates))
            assert updates_of(frequencies, index, updates) == counted
