"""Which updates were cut, in what share of the last ones, and which clip value the norms suggest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.plots.clip_statistics import (
    RunNorms,
    clip_share,
    moving_share,
    suggest_clip,
    was_cut,
)


def test_what_rounding_does_is_no_clipping() -> None:
    before = np.array([1.0, 1.0, 2.0, np.nan, np.inf, 3.0], np.float32)
    after = np.array([1.0, 1.0 - 1e-6, 1.0, 1.0, 1.0, np.nan], np.float32)
    np.testing.assert_array_equal(was_cut(before, after), [0, 0, 1, np.nan, np.nan, np.nan])


@given(st.lists(st.sampled_from([0.0, 1.0, math.nan]), max_size=60), st.integers(1, 20))
def test_the_moving_share_is_the_mean_of_the_known(values: list[float], window: int) -> None:
    got = moving_share(np.array(values), window)
    for i, share in enumerate(got.tolist()):
        seen = [v for v in values[max(0, i + 1 - window) : i + 1] if v == v]
        assert (
            math.isnan(share)
            if math.isnan(values[i])
            else share == pytest.approx(sum(seen) / len(seen))
        )


def test_the_suggested_clip_value_has_nine_of_ten_below_it() -> None:
    norms = np.random.default_rng(0).lognormal(size=1000)
    found = suggest_clip(norms)
    assert found is not None
    assert (norms <= found).mean() == pytest.approx(0.9, abs=0.02)
    assert suggest_clip(norms[::-1]) == found, "the whole run, and not its end"
    norms[-3:] = 1e6, np.inf, np.nan
    assert suggest_clip(norms) == pytest.approx(found, rel=0.1), "spikes do not move it"
    assert suggest_clip(norms[:10], 4 * norms[:500]) == suggest_clip(4 * norms[:500])
    assert suggest_clip(norms[:19]) is suggest_clip(np.zeros(50)) is suggest_clip() is None


@given(st.lists(st.floats(1e-6, 1e6), min_size=20, max_size=60))
def test_the_suggested_clip_value_cuts_at_most_a_tenth_of_the_norms_that_it_comes_from(
    values: list[float],
) -> None:
    norms = np.array(values)
    found = suggest_clip(norms)
    assert found is not None
    assert clip_share([norms], found) <= 0.1
    assert found == float(f"{found:.3g}")


def test_norms_that_hardly_differ_are_not_all_cut_by_the_rounded_value() -> None:
    assert suggest_clip(np.linspace(1.041, 1.049, 100)) == 1.05
    assert suggest_clip(np.full(50, np.float32(2.4))) == 2.4


def test_the_norms_of_a_long_run_are_thinned_out_evenly() -> None:
    norms, kept = np.geomspace(100.0, 0.1, 100_001), RunNorms()
    for part in np.array_split(norms, 333):
        kept.add({"grad_norm": np.append(part, np.nan)})
    assert kept.updates == len(norms)
    (sample,) = kept.clipped
    assert RunNorms.MOST / 2 <= len(sample) <= RunNorms.MOST
    assert set(np.diff(np.searchsorted(-norms, -sample)).tolist()) == {16}
    assert suggest_clip(sample) == suggest_clip(norms)
    kept.add({"grad_norm.0": norms[:50], "grad_norm.1": norms[:60]})
    assert [len(one) for one in kept.clipped] == [50, 60], (
        "each optimizer is clipped by its own norm"
    )
