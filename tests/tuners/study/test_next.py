import math
from dataclasses import replace

import pytest

from workbench.runs.study.record import PieceEnd, PieceRecord, TrialRecord
from workbench.settings.space import Choice, Int, Space
from workbench.tuners.study.boundary import at_boundary
from workbench.tuners.study.importance import importance
from workbench.tuners.study.next import advice
from workbench.tuners.study.verdict import judge, seed_noise

from .simulated import DECAY, LR, study


def filled(values_and_losses, space=None, **head):
    """A study of whole fits with these values and losses; the first is the baseline."""
    record = study(40, rungs=(1.0,), **({} if space is None else {"space": space}), **head)
    trials = []
    for number, (values, losses, *more) in enumerate(values_and_losses, 1):
        pieces = []
        for seed, loss in enumerate(losses if isinstance(losses, tuple) else (losses,)):
            end = PieceEnd(
                "completed" if math.isfinite(loss) else "infeasible",
                1.0,
                loss,
                step=100,
                **(more[0] if more else {}),
            )
            pieces.append(PieceRecord(seed, 0, 1, "ended", end=end))
        trials.append(
            TrialRecord(
                number, values, "baseline" if number == 1 else "prior", pieces=tuple(pieces)
            )
        )
    return replace(record, trials=tuple(trials))


def texts(record):
    return [(item.text, item.code) for item in advice(record)]


def rates(*rates, loss=lambda lr: abs(math.log10(lr / 0.01)), more=None):
    return [({"lr": lr, "weight_decay": 0.01}, loss(lr), more or {}) for lr in rates]


SPREAD = [10 ** (-5 + 0.6 * k) for k in range(11)]


def test_a_rate_that_the_search_found_outside_of_the_range_is_told():
    narrow = Space((replace(LR, low=1e-5, high=3e-4), DECAY))
    record = filled(rates(1e-5, 1e-4), narrow, priors={"lr": {"center": 9.9e-3}})
    assert texts(record)[0] == (
        "The search found lr=9.9e-3, outside of the range.",
        "study.space(lr=(1e-5, 0.03))",
    )


def test_the_best_at_a_boundary_is_extended():
    record = filled(rates(*SPREAD, loss=lambda lr: -math.log10(lr)))
    (boundary,) = [b for b in at_boundary(record) if b.dimension.name == "lr"]
    assert boundary.upper
    assert ("The best values lie at the upper end of lr.", "study.space(lr=(1e-5, 1e2))") in texts(
        record
    )
    inner = filled(rates(*SPREAD))
    assert not [b for b in at_boundary(inner) if b.dimension.name == "lr"]
    assert not at_boundary(
        filled(rates(*SPREAD[:8], loss=lambda lr: -math.log10(lr)))
    )  # too few trials


def test_zero_is_no_boundary():
    dropout = replace(DECAY, name="weight_decay", low=0.0, high=0.5, log=False)
    trials = [({"lr": 0.01, "weight_decay": 0.05 * k}, 1 + 0.1 * k) for k in range(10)]
    assert not [
        b
        for b in at_boundary(filled(trials, Space((LR, dropout))))
        if b.dimension.name == "weight_decay"
    ]


@pytest.mark.parametrize(
    ("dimension", "values", "code"),
    [
        (
            Int("width", low=16, high=256, log=True),
            [16 + 24 * k for k in range(11)],
            "study.space(width=(16, 2560))",
        ),
        (
            Choice("width", choices=(1, 2, 4, 8)),
            [1, 2, 4, 8] * 3,
            "study.space(width=[1, 2, 4, 8, 16])",
        ),
        (Choice("width", choices=("a", "b", "c")), ["a", "b", "c"] * 4, None),
    ],
)
def test_boundaries_of_other_dimensions(dimension, values, code):
    trials = [({"width": value}, -values.index(value)) for value in values]
    codes = [
        code for text, code in texts(filled(trials, Space((dimension,)))) if "end of width" in text
    ]
    assert codes == ([] if code is None else [code])


def test_many_trials_that_cannot_be_trained():
    cause = {"cause": "the loss was not finite at update 7"}
    record = filled([entry for lr in SPREAD for entry in rates(lr, loss=lambda lr: 1.0 if lr < 0.1 else math.inf, more=cause if lr >= 0.1 else {})])  # fmt: skip
    (text, code), *_ = [item for item in texts(record) if "could not be trained" in item[0]]
    assert "4 of 11 trials" in text
    assert "not finite" in text
    assert code == "study.space(lr=(1e-5, 0.04))"


@pytest.mark.parametrize(
    ("best_step", "words"),
    [(100, "longer fits"), (30, "best after 30% of their updates"), (80, None)],
)
def test_the_update_with_the_best_validation(best_step, words):
    found = [
        text
        for text, _ in texts(filled(rates(*SPREAD, more={"best_step": best_step})))
        if "The best trials were" in text
    ]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_noise_above_the_gaps():
    noisy = filled(
        [
            ({"lr": lr, "weight_decay": 0.1}, (1.0 + 0.001 * k, 1.2, 0.9))
            for k, lr in enumerate(SPREAD)
        ]
    )
    assert seed_noise(noisy) == pytest.approx(0.15, abs=0.02)
    assert any("less than one seed differs" in text for text, _ in texts(noisy))
    assert not any("one seed differs" in text for text, _ in texts(filled(rates(*SPREAD))))


def test_a_pair_of_seeds_is_offered_once():
    trials = [({}, 2.0), ({"lr": 0.1, "weight_decay": 0.1}, 1.0)]
    assert "study.seeds(2, 3)" in [code for _, code in texts(filled(trials))]
    trials = [({}, (2.0,) * 4), ({"lr": 0.1, "weight_decay": 0.1}, (1.0,) * 4)]
    assert not [code for _, code in texts(filled(trials)) if "seeds" in code]


def test_a_batch_size_without_its_rate():
    space = Space((Choice("batch_size", choices=(16, 32)),))
    assert any(
        '{"lr": "relative"}' in text
        for text, _ in texts(filled([({"batch_size": 16}, 1.0)], space))
    )
    assert not any("relative" in text for text, _ in texts(filled(rates(*SPREAD))))


def test_importance_tells_what_matters():
    trials = [
        ({"lr": 10 ** (-5 + 6 * (k * 0.618 % 1)), "weight_decay": 10 ** (-4 + 4 * (k * 0.755 % 1))}, 0.0) for k in range(40)
    ]  # fmt: skip
    trials = [(values, abs(math.log10(values["lr"] / 0.01))) for values, _ in trials]
    record = filled(trials)
    shares = importance(record)
    assert shares["lr"].low > 0.5
    assert shares["weight_decay"].share < 0.1
    assert all(0 <= s.low <= s.share <= s.high <= 1 for s in shares.values())
    assert importance(filled(trials[:8])) == {}


@pytest.mark.parametrize(
    ("baseline", "best", "adopt", "words"),
    [
        ((2.0, 2.0, 2.1, 1.9), (1.0, 1.1, 1.2, 0.9), True, "adopt trial 2: it is better than the baseline in 3 of 3 seeds, by 0.9333"),
        ((2.0, 2.0, 2.0, 2.0), (1.0, 1.9, 2.1, 1.9), False, "no evidence: with 3 fresh seeds trial 2 is 0.03333 better than the baseline on average, and one seed differs"),
        ((2.0, 2.0, 2.0, 2.0), (1.0, 1.99, 1.99, 0.5), False, "no evidence"),
        ((2.0, 2.0, 2.0), (1.0, 1.5, 1.0), None, "too few seeds: with 2 fresh seeds trial 2 is 0.75 better than the baseline on average, and one seed differs"),
        ((2.0, 2.0), (1.0, 1.5), None, "trial 2 is 0.5 better than the baseline with one fresh seed, which may be luck; study.seeds(2, 3) gives a verdict"),
        ((2.0,), (1.0,), None, "trial 2 was 1 better than the baseline when it was chosen, which may be luck; study.seeds(2, 3) gives a verdict"),
        ((1.0,), (2.0,), False, "keep the present settings: none of 1 other trial was better"),
        ((2.0, 2.0, 2.0, math.inf), (1.0, 1.1, 1.1, 1.1), True, "adopt trial 2: it is better than the baseline in 3 of 3 seeds, by 0.9"),
        ((2.0, *[math.inf] * 3), (1.0, 1.1, 1.1, 1.1), True, "adopt trial 2: with 3 of 3 fresh seeds only trial 2 could be trained"),
        ((2.0, 2.0, 2.0, 2.0), (1.0, *[math.inf] * 3), False, "no evidence: with 3 of 3 fresh seeds only the baseline could be trained"),
        ((2.0, math.inf), (1.0, 1.1), None, "too few seeds: with 1 of 1 fresh seed only trial 2 could be trained; study.seeds(2, 3)"),
        ((2.0, *[math.inf] * 3), (1.0, *[math.inf] * 3), None, "trial 2 was 1 better than the baseline when it was chosen, which may be luck; study.seeds(2, 6)"),
    ],
)  # fmt: skip
def test_verdicts(baseline, best, adopt, words):
    verdict = judge(filled([({}, baseline), ({"lr": 0.1, "weight_decay": 0.1}, best)]))
    assert verdict.adopt is adopt
    assert verdict.text.startswith(words)


def test_the_present_settings_are_kept_against_trials_that_have_ended():
    present = filled([({}, 2.0), ({"lr": 0.1, "weight_decay": 0.1}, 3.0)])
    baseline, other = present.trials
    running = replace(other, pieces=tuple(replace(p, end=None) for p in other.pieces))
    for trials in ((baseline,), (baseline, running)):
        verdict = judge(replace(present, trials=trials))
        assert verdict.adopt is None
        assert verdict.text.startswith("no other trial has ended yet")
    lost = replace(
        other, pieces=tuple(replace(p, end=replace(p.end, status="failed")) for p in other.pieces)
    )
    verdict = judge(replace(present, trials=(baseline, lost)))
    assert verdict.text.endswith("was better, 1 of which could not be trained")


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_fit_that_failed_or_was_stopped_is_no_win(status):
    def lost(trial, seed):
        return replace(
            trial,
            pieces=tuple(
                replace(p, end=replace(p.end, status=status)) if p.seed == seed else p
                for p in trial.pieces
            ),
        )

    good = {"lr": 0.1, "weight_decay": 0.1}
    record = filled([({}, (2.0,) * 4), (good, (1.0, 1.1, 1.2, 1.1))])
    assert judge(record).adopt
    record = replace(record, trials=(lost(record.trials[0], 3), record.trials[1]))
    verdict = judge(record)
    assert (verdict.adopt, len(verdict.differences)) == (None, 2)
    assert verdict.text.endswith("study.seeds(2, 4) gives a verdict")


def test_a_verdict_where_higher_is_better():
    record = filled(
        [({}, (0.5, 0.5, 0.51, 0.5)), ({"lr": 0.1, "weight_decay": 0.1}, (0.9, 0.8, 0.81, 0.8))],
        mode="max",
    )
    verdict = judge(record)
    assert verdict.adopt
    assert verdict.differences == pytest.approx((0.3, 0.3, 0.3))


def test_no_verdict_without_values():
    assert judge(study(4)).adopt is None
    assert (
        "no value" in judge(filled([({}, math.inf), ({"lr": 0.1, "weight_decay": 0.1}, 1.0)])).text
    )
