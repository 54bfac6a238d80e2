import json
import math
import time
from collections import Counter
from dataclasses import replace

import pytest

from workbench.runs.study.record import PieceRecord, TrialRecord
from workbench.settings.space import Choice, Int, Space
from workbench.tuners.study.plan import Ended, NewTrial, Train, Wait, plan
from workbench.tuners.study.verdict import enough, judge, pairs_wanted, seed_noise

from .simulated import DECAY, LR, RUNGS, begun, bowl, changed, ended, finished, study, with_trial


def lengths(record):
    return Counter(piece.rung for trial in record.trials for piece in trial.pieces)


def test_first_the_bench_as_it_is_then_a_bracket_whose_best_train_on():
    record = finished(study(4))
    assert (record.trials[0].origin, record.trials[0].values) == (
        "baseline",
        {"lr": 1e-3, "weight_decay": 1e-2},
    )
    assert record.trials[1].values["lr"] == 0.05  # what the search found
    assert lengths(record) == {
        0: 10,
        1: 4,
        2: 3,
    }  # what is left of the budget trains the second best to the end
    promoted = [t for t in record.trials if t.origin != "baseline" and t.piece(1) is not None]
    dropped = [t for t in record.trials if t.origin != "baseline" and t.piece(1) is None]
    assert max(record.score_at(t, 0) for t in promoted) < min(
        record.score_at(t, 0) for t in dropped
    )
    assert record.spent <= 4.05
    assert record.whole(record.best) < record.whole(record.baseline) - 1


@pytest.mark.parametrize(("fits", "workers"), [(2, 1), (3.5, 4), (8, 1), (16.5, 4)])
def test_a_budget_is_used_and_not_exceeded(fits, workers):
    # where the searches have taken what a bracket needs, whole fits are trained
    record = finished(study(fits, seed=3, spent=0.3), workers=workers)
    assert record.spent <= fits + 0.05
    assert isinstance(end := plan(record), Ended)
    assert enough(record) or record.spent > fits - 1.1, end.why


def test_what_the_searches_found_is_trained_whole_where_a_bracket_is_left():
    record = finished(study(8), most=6)
    # both halt at each rung
    assert (record.trials[1].origin, lengths(record)) == ("found", {0: 2, 1: 2, 2: 2})
    assert finished(study(4), most=4).trials[1].origin == "prior"
    known = study(8, priors={"lr": {"center": 1e-3}})  # the bench's own values
    assert finished(known, most=4).trials[1].origin != "found"


def test_a_trial_that_trains_whole_goes_on_from_rung_to_rung_before_all_others():
    record = study(8)
    for rung in range(3):
        action = plan(record)
        run = record.trial(1).end(rung - 1).run if rung else None
        if rung:
            assert action == Train(1, action.values, 0, rung, run)
        record, _ = begun(record, action)
        assert plan(record).proposal.origin == "found"  # another worker does not wait for it
        record = ended(record, 1, 0, rung, 2.0)
    lost = study(8)
    lost, _ = begun(lost, plan(lost))
    lost = ended(lost, 1, 0, 0, math.nan)
    assert isinstance(plan(lost), NewTrial)


def test_whole_fits_where_there_is_one_rung():
    for seed in range(3):
        record = finished(study(8, rungs=(1.0,), seed=seed, priors={}))
        assert lengths(record) == {0: 8}
        assert record.whole(record.best) < record.whole(record.baseline) - 1
        # few trials are enough to learn from
        assert sum(trial.origin.startswith("near") for trial in record.trials) >= 4


@pytest.mark.parametrize("rungs", [RUNGS, (1.0,)])
def test_several_workers_need_hardly_more_fits_than_one(rungs):
    def needed(workers):
        values = []
        for seed in range(3):
            record = finished(study(8, rungs=rungs, seed=seed, seeds=0), workers=workers)
            values.append(record.whole(record.best))
        return sum(values) / len(values)

    assert needed(4) < needed(1) + 0.1


def test_the_same_record_gives_the_same_plan():
    for most in (0, 1, 5, 13, 20):
        record = finished(study(8, seed=5), most=most)
        assert plan(record) == plan(replace(record))
    other = finished(study(8, seed=6))
    assert [t.values for t in other.trials] != [t.values for t in finished(study(8, seed=5)).trials]


def test_trials_that_cannot_be_trained_are_never_promoted_and_teach():
    record = finished(study(16, priors={"lr": {"center": 5.0, "factor": 3.0}}))
    infeasible = [t for t in record.trials if t.infeasible]
    assert infeasible
    assert all(t.piece(1) is None for t in infeasible)
    first, last = record.trials[1:10], record.trials[-9:]
    assert sum(t.infeasible for t in last) < sum(t.infeasible for t in first)


def test_a_bracket_without_a_trainable_trial_is_followed_by_another():
    record = finished(
        study(6), lambda values, seed, rung: math.inf if values["lr"] != 1e-3 else 1.0
    )
    assert record.best is record.baseline
    assert lengths(record)[1] == 1  # the bench as it is
    assert len(record.trials) == 19
    assert "the last 18 trials have no value" in plan(record).why
    assert judge(record).adopt is False


def test_trials_that_cannot_begin_end_a_study_although_they_cost_nothing():
    def tried(record):
        for _ in range(100):
            action = plan(record)
            if isinstance(action, Ended):
                break
            record, number = begun(record, action)
            end = {"status": "infeasible", "cause": "20 parameters are more than 10"}
            if number % 3 == 1:
                end = {"status": "failed", "cause": f"ValueError: {number}"}
            record = ended(record, number, action.seed, action.rung, math.nan, cost=0.0, **end)
        return record

    record = tried(study(2, rungs=(1.0,)))
    assert plan(record) == Ended(
        "the last 9 trials have no value, 6 of them: 20 parameters are more than 10"
    )
    space = Space((replace(LR, high=0.2),)).to_record()
    narrowed = changed(record, "space", space=space)
    assert isinstance(plan(narrowed), NewTrial)
    assert len(tried(narrowed).trials) == 18


@pytest.mark.parametrize("center", [1e-3, 5.0])
def test_a_prior_that_is_wrong_by_100_times_loses_its_weight(center):
    record = finished(study(16, priors={"lr": {"center": center}}, seeds=0))
    origins = [trial.origin.split()[0] for trial in record.trials]
    assert "prior" not in origins[-9:]
    assert record.whole(record.best) < 1.6  # the baseline has 5.3


def test_a_right_prior_is_kept_and_the_space_is_still_tried():
    record = finished(study(16, priors={"lr": {"center": 0.1}}, seeds=0))
    rates = [trial.values["lr"] for trial in record.trials]
    assert sum(0.03 < rate < 0.3 for rate in rates) > len(rates) / 2
    assert record.whole(record.best) < 1.12


def test_what_others_train_now_is_not_tried_next_to_it():
    record = finished(study(8, seeds=0), most=12)
    points = []
    for _ in range(4):
        action = plan(record)
        values = action.proposal.values
        points.append((math.log10(values["lr"]) / 6, math.log10(values["weight_decay"]) / 4))
        record, _ = begun(record, action)
    gaps = [math.dist(a, b) for k, a in enumerate(points) for b in points[:k]]
    assert min(gaps) > 0.03


def test_fresh_seeds_of_the_best_and_of_the_baseline_judge_it():
    record = finished(study(16))
    seeds = {t.number: {p.seed for p in t.pieces} for t in record.trials}
    assert seeds[record.best.number] == seeds[1] == {0, 1, 2, 3}
    verdict = judge(record)
    assert verdict.adopt
    assert len(verdict.differences) == 3
    assert "better than the baseline in 3 of 3 seeds" in verdict.text
    assert judge(finished(study(4))).adopt is None


def test_no_fresh_seed_is_trained_for_which_its_pair_has_no_budget():
    for fits in (4.4, 5.4):
        record = finished(study(fits, rungs=(1.0,), seeds=3))
        seeds = {t.number: {p.seed for p in t.pieces} for t in record.trials}
        assert seeds[record.best.number] == seeds[1]


def test_fits_that_no_verdict_needs_are_spent_on_trials():
    """Where the baseline is the best one, there are no fresh seeds to train."""
    best_is_first = lambda values, seed, rung: float(values["lr"] != 1e-3)  # noqa: E731
    record = finished(study(8, seeds=3), best_is_first)
    assert record.best is record.baseline
    assert record.spent > 7
    more = finished(changed(record, "more", fits=1.0), best_is_first)
    assert more.spent > record.spent + 0.5


def test_random_values_are_seldom_adopted():
    def luck(values, seed, rung):
        return 1 + 0.1 * math.sin(
            1e6 * values["lr"] + 1e4 * values["weight_decay"] + 1000.1 * seed + 31 * rung
        )

    verdicts = [judge(finished(study(16, seed=seed), luck)) for seed in range(8)]
    assert sum(verdict.adopt is True for verdict in verdicts) <= 1


def test_it_ends_by_itself_when_another_bracket_would_gain_less_than_noise():
    record = finished(study(60, seed=1))
    assert record.spent < 40
    assert len(judge(record).differences) == 3
    assert "less than one seed differs from another" in plan(record).why
    assert seed_noise(record) == pytest.approx(0.007, abs=0.005)


def test_it_goes_on_while_the_best_values_lie_at_a_boundary():
    space = Space((replace(LR, high=0.02),))
    flat = study(20, space=space, priors={"lr": {"center": 0.01}})
    record = finished(
        flat, lambda values, seed, rung: bowl({"weight_decay": 0.1, **values}, seed, rung)
    )
    assert enough(record) is None
    assert record.spent > 18


def test_what_a_user_asks_for_comes_first():
    record = finished(study(8), most=9)
    asked = changed(record, "add", values={"lr": 0.2, "weight_decay": 0.3})
    action = plan(asked)
    assert isinstance(action, NewTrial)
    assert (action.proposal.origin, action.rung, dict(action.proposal.values)) == (
        "by hand",
        0,
        {"lr": 0.2, "weight_decay": 0.3},
    )
    asked = changed(finished(asked, most=3), "repeat", trial=2)
    action = plan(asked)
    assert isinstance(action, NewTrial)
    assert (action.proposal.origin, action.proposal.values) == ("repeat 2", record.trial(2).values)
    asked = changed(finished(asked, most=3), "seeds", trial=1, n=2)
    assert [(a.trial, a.seed, a.rung) for a in (plan(asked), plan(finished(asked, most=1)))] == [
        (1, 1, 2),
        (1, 2, 2),
    ]
    done = finished(asked, most=2)
    assert plan(done).proposal.origin != "by hand"  # each is done once


def test_pause_resume_end_and_more():
    record = changed(finished(study(4), most=4), "pause")
    assert isinstance(plan(record), Wait)
    record = changed(record, "resume")
    assert isinstance(plan(record), NewTrial)
    record = changed(record, "end")
    assert plan(record) == Ended("it was ended by hand")
    record = finished(changed(record, "more", fits=4))
    assert 7 < record.spent <= 8.05
    assert isinstance(plan(record), Ended)


def test_a_stopped_trial_is_trained_no_further():
    record = finished(study(4), most=10)
    best = min(record.trials[1:], key=lambda t: record.score_at(t, 0))
    record = finished(changed(record, "stop", trial=best.number))
    assert record.trial(best.number).piece(1) is None
    assert lengths(record)[1] >= 3


def test_a_piece_that_was_given_back_or_never_begun_is_continued_first():
    record = finished(study(8), most=14)
    trial = next(t for t in record.trials if t.piece(1) is not None)
    back = replace(
        trial,
        pieces=tuple(
            replace(p, state="open", end=None) if p.rung == 1 else p for p in trial.pieces
        ),
    )
    action = plan(with_trial(record, back))
    assert action == Train(trial.number, trial.values, 0, 1, trial.end(0).run)
    orphan = TrialRecord(len(record.trials) + 1, {"lr": 0.1, "weight_decay": 0.1}, "prior")
    assert plan(with_trial(record, orphan)) == Train(orphan.number, orphan.values, 0, 0)


def test_a_piece_continues_the_run_of_the_rung_below():
    record = finished(study(4), most=12)
    action = plan(record)
    assert isinstance(action, Train)
    assert action.continues == record.trial(action.trial).end(0).run


def test_two_equal_errors_end_a_study_and_others_do_not():
    record = study(8)
    for cause in ("KeyError: 'x'", "ValueError: y"):
        record, number = begun(record, plan(record))
        rung = record.trial(number).pieces[0].rung
        record = ended(record, number, 0, rung, math.nan, status="failed", cause=cause)
    assert isinstance(plan(record), NewTrial)
    record, number = begun(record, plan(record))
    record = ended(record, number, 0, 0, math.nan, status="failed", cause="KeyError: 'x'")
    assert "KeyError: 'x'" in plan(record).why


def test_a_budget_in_time():
    record = study(budget={"seconds": 800.0})
    assert isinstance(plan(record, elapsed=801.0), Ended)
    record = finished(record, most=3)  # 100 seconds a fit
    assert isinstance(plan(record, elapsed=100.0), NewTrial)
    whole = plan(record, elapsed=600.0)  # no bracket fits into 200 seconds
    assert isinstance(whole, NewTrial)
    assert (whole.proposal.origin, whole.rung) == ("whole", 0)
    assert isinstance(plan(record, elapsed=710.0), Ended)


def test_several_workers_train_while_nobody_knows_how_long_a_fit_takes():
    record = study(budget={"seconds": 800.0})
    record, _ = begun(record, plan(record))
    assert plan(record).rung == 0


def test_a_budget_in_time_of_few_fits_has_no_seeds_for_a_verdict():
    record = finished(study(budget={"seconds": 800.0}), most=15)
    assert record.best is not record.baseline
    assert plan(record, elapsed=600.0).seed == 0  # the next best candidate trains on
    assert [pairs_wanted(record, fits_left) for fits_left in (2.0, 20.0)] == [0, 3]


def test_time_that_is_added_after_the_end_counts_from_then_on():
    record = finished(study(budget={"seconds": 800.0}, created=5.0), most=6)  # 100 seconds a fit
    assert isinstance(plan(record, elapsed=900.0), Ended)
    more = changed(record, "more", created=10_005.0, seconds=500.0)
    assert isinstance(plan(more, elapsed=10_100.0), NewTrial)
    assert isinstance(plan(more, elapsed=10_501.0), Ended)
    early = changed(record, "more", created=105.0, seconds=500.0)
    assert isinstance(plan(early, elapsed=1000.0), NewTrial)
    assert isinstance(plan(early, elapsed=1301.0), Ended)


@pytest.mark.parametrize(("stop", "go"), [("pause", "resume"), ("end", "more")])
def test_no_time_passes_while_a_study_is_paused_or_ended_by_hand(stop, go):
    stopped = changed(finished(study(budget={"seconds": 800.0}), most=6), stop, created=200.0)
    assert stopped.seconds_left(5000.0) == 600
    assert isinstance(plan(stopped, elapsed=5000.0), Wait if stop == "pause" else Ended)
    again = changed(stopped, go, created=10_000.0)
    assert isinstance(plan(again, elapsed=10_100.0), NewTrial)
    assert isinstance(plan(again, elapsed=10_601.0), Ended)


def test_a_piece_that_the_end_of_a_study_has_cut_is_trained_on():
    record = finished(study(4), most=12)
    trial = next(t for t in record.trials if t.piece(1) is not None)
    piece = replace(trial.piece(1), state="open", end=None, run="0009-fit")
    others = tuple(p for p in trial.pieces if p.rung != 1)
    record = with_trial(record, replace(trial, pieces=(*others, piece)))
    assert isinstance(plan(changed(record, "end")), Ended)
    record = changed(changed(record, "end"), "more", fits=1.0)
    assert plan(record) == Train(trial.number, trial.values, 0, 1, trial.end(0).run)
    assert finished(record).trial(trial.number).end(1).status == "completed"


def test_a_trial_that_cannot_be_read_is_not_made_again():
    record = finished(study(8), most=8)
    record = replace(record, trials=record.trials[:3], unread=4)
    assert plan(record).proposal.number == 5
    assert plan(changed(record, "add", values={"lr": 0.3})).proposal.number == 5


def test_other_workers_begin_the_next_bracket_while_one_is_trained():
    record = study(8)
    pieces = []
    for _ in range(14):
        action = plan(record)
        record, number = begun(record, action)
        pieces.append((number, action.rung))
    assert pieces == [(number, 0) for number in range(1, 15)]
    assert len({json.dumps(t.values) for t in record.trials}) == 14


def test_wait_where_only_others_can_tell_what_is_next():
    record = study(3.4)
    for _ in range(10):
        record, _ = begun(record, plan(record))
    assert isinstance(plan(record), Wait)


def test_a_changed_space_holds_for_the_next_trials():
    record = finished(study(8), most=10)
    space = Space((replace(LR, low=0.1, high=0.2),)).to_record()
    record = finished(changed(record, "space", space=space), lambda values, seed, rung: 1.0, most=4)
    assert [set(t.values) for t in record.trials[6:]] == [{"lr"}] * 4
    assert all(0.1 <= t.values["lr"] <= 0.2 for t in record.trials[6:])


def test_what_earlier_trials_have_taught_holds_in_a_wider_range():
    def between(low, high):
        return Space((replace(LR, low=low, high=high), DECAY))

    record = finished(study(30, space=between(1e-4, 0.03), priors={}, seeds=0), most=20)
    known = len(record.trials)
    record = changed(record, "space", space=between(1e-6, 100.0).to_record())
    new = finished(record, most=9).trials[known:]
    assert all({"lr", "weight_decay"} <= {*trial.values} for trial in new)
    # the best rate, 0.1, lies beyond the former range
    assert sum(0.01 < trial.values["lr"] < 1 for trial in new) > len(new) / 2


def test_higher_is_better():
    record = finished(study(8, mode="max"), lambda *piece: -bowl(*piece))
    assert record.whole(record.best) > record.whole(record.baseline) + 1


def test_choices_and_dimensions_of_a_choice():
    space = Space((Choice("optimizer", choices=("adamw", "sgd")), replace(LR, name="optimizer.adamw.lr"), replace(LR, name="optimizer.sgd.lr")))  # fmt: skip
    good = {"adamw": 1e-3, "sgd": 0.3}

    def loss(values, seed, rung):
        if not values:
            return 5.0
        name = values["optimizer"]
        return abs(math.log10(values["lr"] / good[name])) + (0.5 if name == "adamw" else 0.0)

    record = finished(study(16, space=space, seeds=0, priors={}), loss)
    assert record.best.values["optimizer"] == "sgd"
    assert record.whole(record.best) < 0.5


@pytest.mark.parametrize("rungs", [RUNGS, (1.0,)])
@pytest.mark.parametrize(("fits", "workers"), [(11.0, 1), (30.0, 4)])
def test_settings_are_tried_once_and_the_rest_is_spent_on_seeds(rungs, fits, workers):
    space = Space(
        (
            Choice("optimizer", present="sgd", has_present=True, choices=("adamw", "sgd")),
            Choice("optimizer.adamw.lr", choices=(0.1, 0.2)),
            Int("width", low=1, high=2),
        )
    )

    def loss(values, seed, rung):
        return 2.0 - 0.5 * values.get("width", 0) - values.get("lr", 0) + 0.01 * seed

    record = finished(
        study(fits, space=space, rungs=rungs, priors={}), loss, workers=workers, most=200
    )
    tried = [json.dumps(trial.values, sort_keys=True) for trial in record.trials]
    assert len(set(tried)) == len(tried) == 7  # the bench as it is, and (adamw × 2 lr + sgd) × 2
    assert record.best.values == {"optimizer": "adamw", "lr": 0.2, "width": 2}
    # whole fits of several settings, or of all, and then three pairs
    assert {p.seed for p in record.best.pieces} == {0, 1, 2, 3} or fits < 12
    assert len(judge(record).differences) == (3 if fits > 12 else 2)
    assert "all settings" in plan(record).why or fits < 12


def test_a_decision_at_500_trials_takes_milliseconds():
    record = study(2000, seeds=0, priors={"lr": {"center": 1e-3}})
    trials = []
    for number in range(1, 501):
        values = {
            "lr": 10 ** (-5 + 5 * (number * 0.618 % 1)),
            "weight_decay": 10 ** (-4 + 4 * (number * 0.755 % 1)),
        }
        pieces = tuple(PieceRecord(0, rung, 1, "ended") for rung in range(3 if number == 1 else 1))
        trials.append(
            TrialRecord(number, values, "baseline" if number == 1 else "prior", pieces=pieces)
        )
    record = replace(record, trials=tuple(trials))
    for trial in trials:
        for piece in trial.pieces:
            record = ended(record, trial.number, 0, piece.rung, bowl(trial.values, 0, piece.rung))
    times = []
    for _ in range(5):
        start = time.process_time()
        assert isinstance(plan(record), NewTrial | Train)
        times.append(time.process_time() - start)
    print(f"{min(times) * 1e3:.1f} ms")
