import json
import math
import os
import random
import threading
import time
from dataclasses import replace

import pytest

from workbench.runs.folder.alive import liveness
from workbench.runs.study.record import (
    MOST_LIVES,
    Change,
    PieceEnd,
    StudyHead,
    StudyRecord,
    TrialProposal,
)
from workbench.runs.study.write import (
    add_trial,
    change,
    claim,
    new_study,
    take_over,
)

HEAD = StudyHead(
    "my study", "val_loss", "min", {"fits": 8.0}, {"lr": {"kind": "float"}}, {"epochs": 3}, (1 / 9, 1 / 3, 1.0), {"lr": 1e-3},
    seeds=3, limits={"parameters": 1000.0}, seed=7, code="abc", versions={"torch": "2.9"}, created=1.5, fresh_weights=True,
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return new_study(tmp_path, HEAD)


def test_what_is_written_is_read(path):
    assert path.name == "0001-my-study"
    assert StudyRecord.read(path).head == HEAD
    assert (
        add_trial(path, TrialProposal(1, {"lr": 0.1, "betas": (0.9, 0.99)}, "prior", "because"))
        == 1
    )
    piece = claim(path, 1, 0, 2, "worker-1")
    piece.beat("0003-fit")
    piece.beat("0003-fit")
    (trial,) = StudyRecord.read(path).trials
    assert (trial.values, trial.origin, trial.why) == (
        {"lr": 0.1, "betas": [0.9, 0.99]},
        "prior",
        "because",
    )
    claimed = trial.piece(2)
    assert (claimed.state, claimed.generation, claimed.worker, claimed.beats, claimed.run) == (
        "claimed",
        1,
        "worker-1",
        2,
        "0003-fit",
    )
    assert liveness(claimed.claim) == "alive"
    end = PieceEnd("completed", 1.0, 0.5, run="0003-fit", seconds=3.0, step=90, best_step=80, parameters=12, values={"lr": 0.2}, metrics={"val_loss": 0.5})  # fmt: skip
    assert piece.end(end)
    record = StudyRecord.read(path)
    assert record.trials[0].end(2) == end
    assert record.trials[0].piece(2).state == "ended"
    assert (record.best.number, record.whole(record.best), record.spent) == (1, 0.5, 1.0)
    assert record.problems == ()


def test_tuples_of_the_space_are_tuples_in_trials(tmp_path):
    layers = {"kind": "choice", "choices": ((32,), (64, 64)), "tuples": True}
    path = new_study(tmp_path, replace(HEAD, space={"layers": layers}))
    add_trial(path, TrialProposal(1, {"layers": (64, 64), "other": [1]}, "prior"))
    (trial,) = StudyRecord.read(path).trials
    assert trial.values == {"layers": (64, 64), "other": [1]}


def test_numbers_of_studies_are_given_once(tmp_path):
    names = [new_study(tmp_path, replace(HEAD, name=name)).name for name in ("a", "b/../c", "")]
    assert names == ["0001-a", "0002-b-c", "0003-study"]


def test_one_of_many_gets_a_trial_and_a_piece(path):
    got = []
    start = threading.Barrier(8)

    def work(name):
        start.wait()
        made = add_trial(path, TrialProposal(1, {"by": name}, "prior"))
        got.append((made, claim(path, 1, 0, 0, name)))

    threads = [threading.Thread(target=work, args=(f"w{k}",)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(str(made) for made, _ in got) == ["1"] + ["None"] * 7
    claims = [piece for _, piece in got if piece is not None]
    assert len(claims) == 1
    (trial,) = StudyRecord.read(path).trials
    assert trial.piece(0).worker == claims[0].worker
    assert not [name for name in os.listdir(path / "trials/0001") if name.startswith(".")]


def test_a_piece_is_given_back_and_taken_over(path):
    add_trial(path, TrialProposal(1, {}, "prior"))
    first = claim(path, 1, 3, 1, "w1")
    first.beat("0001-fit")
    first.give_back()
    piece = StudyRecord.read(path).trials[0].piece(1, seed=3)
    assert (piece.state, piece.run) == ("open", "0001-fit")
    second = take_over(path, 1, piece, "w2")
    assert (second.generation, second.continues) == (2, "0001-fit")
    assert take_over(path, 1, piece, "w3") is None
    assert second.is_current()
    assert not first.is_current()
    # the second has no run yet: a third worker would continue the first one's
    piece = StudyRecord.read(path).trials[0].piece(1, seed=3)
    assert (piece.state, piece.worker, piece.run, piece.beats) == ("claimed", "w2", "0001-fit", 0)
    assert second.end(PieceEnd("completed", 0.3, 1.0))
    assert not first.end(PieceEnd("failed", 0.3))
    assert StudyRecord.read(path).trials[0].end(1, seed=3).status == "completed"
    assert claim(path, 1, 3, 1, "w4") is None
    assert take_over(path, 1, piece, "w4") is None


def test_changes_are_numbered_and_applied(path):
    space = {"lr": {"kind": "float", "low": 0.5}}
    for k, (kind, values) in enumerate(
        [("more", {"fits": 4}), ("pause", {}), ("space", {"space": space}), ("stop", {"trial": 7}), ("end", {}),
         ("priors", {"priors": {"lr": {"center": 1e-2}}, "spent": 0.3}), ("priors", {"priors": {"lr": {"center": 2e-2}}, "spent": 0.4})],
        1,
    ):  # fmt: skip
        assert change(path, Change(kind, values, after=2)) == k
    record = StudyRecord.read(path)
    assert [c.kind for c in record.changes][:3] == ["more", "pause", "space"]
    assert record.changes[0].created > 0
    assert (record.budget, record.paused, record.ended, record.stopped) == (
        {"fits": 12.0},
        True,
        True,
        {7},
    )
    assert (record.space, record.priors, record.spent) == (space, {"lr": {"center": 1e-2}}, 0.3)
    change(path, Change("resume"))
    change(path, Change("more", {"fits": 1}))
    record = StudyRecord.read(path)
    assert (record.paused, record.ended, record.budget) == (False, False, {"fits": 13.0})


def test_a_later_reading_has_what_is_new(path):
    add_trial(path, TrialProposal(1, {}, "baseline"))
    piece = claim(path, 1, 0, 2, "w")
    before = StudyRecord.read(path)
    piece.end(PieceEnd("completed", 1.0, 0.5))
    add_trial(path, TrialProposal(2, {}, "prior"))
    claim(path, 2, 0, 0, "w")
    again = StudyRecord.read(path, before)
    assert again == StudyRecord.read(path)
    assert again.trials[0].end(2).value == 0.5


def test_a_trial_is_listed_again_where_its_folder_has_changed(path):
    for number in (1, 2, 3):
        add_trial(path, TrialProposal(number, {}, "prior"))
        claim(path, number, 0, 0, "w").end(PieceEnd("completed", 0.1, 0.5))
    (path / "trials" / "0003" / "foreign").touch()
    long_ago = {}
    before = StudyRecord.read(path)
    for number, listed in before.listed.items():
        long_ago[number] = replace(listed, since=listed.since - 10)
    before = replace(before, listed=long_ago)
    assert StudyRecord.read(path, before) == StudyRecord.read(path)
    assert StudyRecord.read(path, before).problems == ("trials/0003/foreign: no file of a study",)
    claim(path, 1, 0, 1, "w")
    claim(path, 2, 1, 2, "w").end(PieceEnd("completed", 1.0, 0.4))
    again = StudyRecord.read(path, before)
    assert again == StudyRecord.read(path)
    assert (again.trials[0].piece(1).state, again.trials[1].end(2, 1).value) == ("claimed", 0.4)


def test_a_value_that_is_not_finite_is_none(path):
    add_trial(path, TrialProposal(1, {}, "prior"))
    claim(path, 1, 0, 2, "w").end(
        PieceEnd("infeasible", 1.0, math.inf, cause="the loss is not finite")
    )
    (trial,) = StudyRecord.read(path).trials
    assert (trial.end(2).value, trial.infeasible) == (None, True)
    assert StudyRecord.read(path).score_at(trial, 2) == math.inf


def test_what_is_not_plain_is_refused_by_name(path):
    with pytest.raises(ValueError, match="act=<built-in"):
        add_trial(path, TrialProposal(1, {"act": print}, "prior"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trials/0001/trial.json", "{"),
        ("trials/0001/trial.json", '{"values": [], "origin": "prior"}'),
        ("trials/0001/trial.json", '{"values": {"lr": NaN}, "origin": "prior"}'),
        ("trials/0001/trial.json", '{"values": {}, "origin": "' + "x" * 300_000 + '"}'),
        ("trials/0001/s0r0.end.json", '{"status": "won", "cost": 1}'),
        ("trials/0001/s0r0.end.json", '{"status": "completed", "cost": 1, "run": "../../etc"}'),
        ("trials/0001/s0r0.end.json", '{"status": "completed", "cost": "1"}'),
        ("trials/0001/s0r0.end.json", '{"status": "completed", "cost": true}'),
        ("trials/0001/notes.txt", "x"),
        ("trials/first/trial.json", "{}"),
        ("changes/0001.json", '{"kind": "delete"}'),
        ("changes/0001.json", '{"kind": "stop", "values": {"trial": "all"}}'),
        ("changes/0001.json", '{"kind": "more", "values": {"fits": null}}'),
        ("changes/0001.json", '{"kind": "more", "values": {}}'),
        ("changes/0001.json", '{"kind": "priors", "values": {"priors": {}, "spent": null}}'),
        ("changes/0001.json", '{"kind": "priors", "values": {"priors": {"lr": 3}, "spent": 1}}'),
        ("changes/0001.json", '{"kind": "space", "values": {"space": {}}}'),
        ("changes/0001.json", '{"kind": "seeds", "values": {"trial": 1, "n": 1000000000}}'),
        ("changes/x.json", "{}"),
        ("changes/00001.json", '{"kind": "pause"}'),
        ("changes/٠٠٠١.json", '{"kind": "pause"}'),
        ("changes/99999.json", '{"kind": "pause"}'),
        ("trials/00001/trial.json", '{"values": {}, "origin": "prior"}'),
        ("trials/٠٠٠١/trial.json", '{"values": {}, "origin": "prior"}'),
        ("trials/0001/s0r3.end.json", '{"status": "completed", "cost": 1}'),
        ("trials/0001/s00r0.end.json", '{"status": "completed", "cost": 1}'),
        ("trials/0001/s0r0g10000.claim", "{}"),
        ("workers/a b.json", "{}"),
    ],
)
def test_a_file_that_is_no_record_is_left_out_and_named(path, name, text):
    add_trial(path, TrialProposal(2, {"lr": 1.0}, "prior"))
    add_trial(path, TrialProposal(1, {"lr": 1.0}, "prior"))
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(text)
    record = StudyRecord.read(path)
    assert record.trial(2).values == {"lr": 1.0}
    assert record.changes == ()
    (problem,) = record.problems
    assert name.startswith(problem.partition(":")[0])


def test_a_trial_that_cannot_be_read_keeps_its_number(path):
    for number in (1, 2, 3):
        add_trial(path, TrialProposal(number, {}, "prior"))
    (path / "trials/0003/trial.json").write_text("{")
    record = StudyRecord.read(path)
    assert len(record.trials) == 2
    (path / "trials/0004").mkdir()  # its maker is about to write it
    assert record.next_number == StudyRecord.read(path, record).next_number == 4
    assert add_trial(path, TrialProposal(record.next_number, {}, "prior")) == 4
    assert StudyRecord.read(path).next_number == 5


def test_an_end_that_cannot_be_read_is_a_failure_until_it_can(path):
    add_trial(path, TrialProposal(1, {}, "prior"))
    claim(path, 1, 0, 0, "w")
    end = path / "trials/0001/s0r0.end.json"
    end.write_text('{"status": "won", "cost": 1}')
    record = StudyRecord.read(path)
    piece = record.trials[0].piece(0)
    assert (piece.state, piece.end.status) == ("ended", "failed")
    assert "trials/0001/s0r0.end.json: status='won' is none" in piece.end.cause
    end.write_text('{"status": "completed", "cost": 1, "value": 0.5}')
    assert StudyRecord.read(path, record).trials[0].end(0).value == 0.5


def test_what_a_reader_would_leave_out_for_its_size_is_not_written(path):
    with pytest.raises(ValueError, match="at most 262,144"):
        add_trial(path, TrialProposal(1, {"name": "x" * 300_000}, "by hand"))
    with pytest.raises(ValueError, match="at most 262,144"):
        change(path, Change("add", {"values": {"name": "x" * 300_000}}))
    with pytest.raises(ValueError, match="at most 20,000 trials"):
        add_trial(path, TrialProposal(20_001, {}, "prior"))
    add_trial(path, TrialProposal(1, {}, "prior"))
    claim(path, 1, 0, 0, "w").end(PieceEnd("failed", 0.1, cause="ü" * 300_000))
    record = StudyRecord.read(path)
    assert record.trials[0].end(0).cause == "ü" * 10_000
    assert (record.problems, record.changes) == ((), ())


def test_links_and_pipes_are_not_followed(path, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"values": {"secret": 1}, "origin": "prior"}')
    (path / "trials/0001").mkdir()
    (path / "trials/0001/trial.json").symlink_to(secret)
    (path / "trials/0002").symlink_to(tmp_path)
    os.mkfifo(path / "changes/0001.json")
    record = StudyRecord.read(path)
    assert record.trials == ()
    assert record.changes == ()
    assert len(record.problems) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format=2"),
        ({"mode": "up"}, "mode='up'"),
        ({"budget": {"fits": 0}}, "budget="),
        ({"budget": {"fits": 1, "seconds": 1}}, "budget="),
        ({"rungs": [1.0, 0.5]}, "rungs="),
        ({"rungs": ["a"]}, "rungs="),
        ({"rungs": [k / 2000 for k in range(1, 2001)]}, "at most 9"),
        ({"space": None}, "space="),
        ({"space": {}}, "the space is empty"),
        ({"space": {"lr": {"kind": "float", "low": 1.0}}}, "its ends make no range"),
        ({"space": {"lr": {"kind": "float", "around": "x"}}}, "around is no number"),
        ({"space": {"a.b.c": {"kind": "float"}}}, "other parts"),
        ({"seeds": 10**9}, "at most 100"),
        ({"compare": "lr"}, "compare='lr' is no choice of the space"),
        ({"compare": "depth"}, "compare='depth' is no choice of the space"),
        ({"compare": 3}, "compare="),
        ({"method": ["GPSampler"]}, "method="),
        ({"limits": {"parameters": None}}, "limits="),
        ({"length": {}}, "length="),
        ({"priors": {"lr": {"center": 10**400}}}, "prior of lr"),
    ],
)
def test_a_head_that_is_none_is_an_error(path, change, words):
    head = json.loads((path / "study.json").read_text())
    (path / "study.json").write_text(json.dumps({**head, **change}))
    with pytest.raises(ValueError, match=words):
        StudyRecord.read(path)


def test_what_no_reader_takes_is_not_written(tmp_path, path):
    with pytest.raises(ValueError, match="at most 100 fresh seeds"):
        new_study(tmp_path, replace(HEAD, seeds=101))
    with pytest.raises(ValueError, match="the space is empty"):
        change(path, Change("space", {"space": {}}))
    assert StudyRecord.read(path).changes == ()


@pytest.mark.slow
def test_a_folder_with_more_files_than_a_study_has_is_refused(path):
    for number in range(50_001):
        os.mknod(path / f"changes/{number}.txt")
    with pytest.raises(ValueError, match="changes has more than 50,000 files"):
        StudyRecord.read(path)


def test_a_trial_that_is_being_made_is_none_yet(path):
    (path / "trials/0001").mkdir()
    record = StudyRecord.read(path)
    assert (record.trials, record.problems) == ((), ())


def test_time_in_which_no_worker_lives_does_not_count(path):
    head = replace(HEAD, budget={"seconds": 1000.0}, created=1000.0)
    record = StudyRecord(path, head, workers={
        "a": {"lives": [[1100.0, 1200.0], [1300.0, 1400.0]], "ended": "SIGTERM has come"},
        "b": {"lives": [[1150.0, 1310.0]], "ended": "SIGTERM has come"},
        "killed": {"lives": [[5000.0, 5100.0]], "ended": ""},
        "foreign": {"lives": [["x", 2.0], [1.0], 7, [0.0, 9e9, 1.0]]},
        "older": {"started": 1000.0},
    })  # fmt: skip
    assert record.seconds_left(1000.0) == 1000
    assert record.seconds_left(1250.0) == 850
    assert record.seconds_left(4000.0) == 700  # the night
    assert record.seconds_left(5110.0) == 590
    assert record.seconds_left(9000.0) == 570  # a killed worker counts until it is missed
    changes = tuple(Change(kind, {}, 0, at) for kind, at in (("pause", 1350.0), ("resume", 5050.0)))
    assert replace(record, changes=changes).seconds_left(9000.0) == 670


def test_each_second_of_many_lives_between_many_changes_counts_once(path):
    rest = random.Random(1)
    starts = sorted(round(rest.uniform(0, 1e5)) for _ in range(4000))
    notes = {
        f"w{k}": {
            "lives": [[float(s), s + float(rest.randrange(9))] for s in starts[k::8]],
            "ended": "SIGTERM",
        }
        for k in range(8)
    }
    kinds = ("pause", "resume", "end", "more")
    moments = sorted(round(rest.uniform(0, 1e5)) for _ in range(300))
    changes = [Change(kinds[k % 4], {}, 0, float(at)) for k, at in enumerate(moments)]
    head = replace(HEAD, budget={"seconds": 1e6}, created=0.0)
    lived = {
        second for n in notes.values() for b, e in n["lives"] for second in range(int(b), int(e))
    }
    paused = ended = False
    counted, since = set(), 0
    for leaving in [*changes, Change("resume", {}, 0, 1e5)]:
        if not (paused or ended):
            counted |= {*range(since, int(leaving.created))}
        since = int(leaving.created)
        paused = leaving.kind == "pause" or (paused and leaving.kind != "resume")
        ended = leaving.kind == "end" or (ended and leaving.kind != "more")
    record = StudyRecord(path, head, changes=tuple(changes), workers=notes)
    assert record.seconds_left(1e5) == 1e6 - len(lived & counted)


def test_of_a_note_the_last_lives_are_read(path):
    head = replace(HEAD, budget={"seconds": 1e6}, created=0.0)
    lives = [[float(k), k + 0.5] for k in range(60_000)]
    record = StudyRecord(path, head, workers={"a": {"lives": lives, "ended": "SIGTERM"}})
    assert record.seconds_left(1e6) == 1e6 - MOST_LIVES / 2


def test_a_piece_that_is_taken_over_is_asked_for_only_if_it_was_before(path):
    add_trial(path, TrialProposal(1, {}, "prior"))
    claim(path, 1, 1, 0, "a").give_back()
    asked = time.time()
    change(path, Change("seeds", {"trial": 1, "n": 2}, created=asked))
    take_over(path, 1, StudyRecord.read(path).trials[0].pieces[0], "b").give_back()
    claim(path, 1, 2, 0, "b")
    record = StudyRecord.read(path)
    (trial,) = record.trials
    planned, by_hand = trial.pieces
    assert (planned.generation, planned.claim["worker"]) == (2, "b")
    assert not record.is_by_hand(trial, planned)
    assert record.is_by_hand(trial, by_hand)


def test_what_was_trained_of_a_piece_that_is_given_back_is_spent(path):
    add_trial(path, TrialProposal(1, {}, "prior"))
    mine = claim(path, 1, 0, 0, "a")
    mine.give_back(0.25)
    record = StudyRecord.read(path)
    assert (record.trials[0].pieces[0].state, record.spent) == ("open", 0.25)
    back = path / "trials/0001/s0r0g1.back"
    back.write_text('{"cost": "all"}')
    foreign = StudyRecord.read(path)
    assert (foreign.trials[0].pieces[0].state, foreign.spent) == ("open", 0)
    assert "s0r0g1.back" in foreign.problems[0]
    # whoever goes on with it counts all of it
    again = take_over(path, 1, record.trials[0].pieces[0], "b")
    assert StudyRecord.read(path).spent == 0
    again.end(PieceEnd("completed", 1.0, 0.5))
    assert StudyRecord.read(path).spent == 1
