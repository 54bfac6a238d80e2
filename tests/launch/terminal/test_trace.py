"""A history in bounded memory, and the blocks that it is drawn with."""

from __future__ import annotations

import math

import numpy as np

from workbench.launch.terminal.trace import Trace, blocks
from workbench.runs.tables.render import BLOCKS


def test_a_long_history_keeps_its_course_in_bounded_memory() -> None:
    trace, single = Trace(), Trace()
    for chunk in np.split(np.arange(100_000.0), [1, 3, 700, 1213, 1213, 50_000, 99_999]):
        trace.add(chunk)
    for value in range(100_000):
        single.add([value])
    points = trace.points
    np.testing.assert_allclose(points, single.points)
    assert len(points) <= 512
    assert trace.last == 99_999
    assert points == sorted(points)
    # Each point is the mean of equally many values; the last one of those that are left.
    assert points[0] == (points[1] - points[0] - 1) / 2
    assert abs(sum(points[:-1]) / len(points[:-1]) - 50_000) < 1_000


def test_values_that_are_not_finite_have_no_points_but_are_the_last_value() -> None:
    trace = Trace()
    trace.add([1.0, math.nan, math.inf, 3.0])
    assert (trace.points, trace.last) == ([1.0, 3.0], 3.0)
    trace.add([math.nan])
    trace.add([])
    assert trace.points == [1.0, 3.0]
    assert math.isnan(trace.last)
    assert Trace().points == []


def test_the_blocks_rise_from_the_least_to_the_largest_value() -> None:
    assert blocks([float(n) for n in range(8)], 8) == BLOCKS


def test_many_values_share_a_block_as_their_mean() -> None:
    assert blocks([0.0, 2.0, 7.0, 7.0], 2) == "▁█"
    assert len(blocks([1.0, 2.0, 3.0] * 100, 40)) == 40


def test_values_over_many_decades_are_drawn_by_their_logarithm() -> None:
    assert blocks([10.0**n for n in range(8)], 8) == BLOCKS
    assert blocks([0.0, 1.0, 1000.0], 3) == "▁▁█"  # zero has none


def test_a_constant_is_drawn_in_the_middle_and_a_gap_stays_empty() -> None:
    assert set(blocks([5.0] * 4, 4)) == {BLOCKS[3]}
    assert blocks([1.0, math.nan, 2.0], 3) == "▁ █"
    assert blocks([math.nan], 3) == " "
    assert blocks([], 3) == ""


def test_there_is_always_room_for_one_block() -> None:
    assert blocks([1.0, 2.0], 0) == blocks([1.0, 2.0], 1) == BLOCKS[3]
