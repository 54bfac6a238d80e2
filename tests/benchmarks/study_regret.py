"""How good the settings are that a study finds, beside other searches: `python -m tests.benchmarks.study_regret`.

Every search gets the same budget in whole fits; that of a study includes its learning-rate sweep. The settings that it
chooses are trained anew with fresh seeds. Regret: their mean validation loss, divided by the lowest one that any search found, less 1;
losses from 0 to 1% of that of the initial weights count as 1%. The table has the median over tasks and repetitions, and the worst task
(median over its repetitions). `--cache FOLDER` keeps all results, `--only "study 4*"` takes the searches of such names.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workbench.runs.study.record import (
    PieceEnd,
    PieceRecord,
    StudyHead,
    StudyRecord,
    TrialRecord,
)
from workbench.settings import Settings
from workbench.settings.space import Space
from workbench.tuners.study.brackets import piece_cost
from workbench.tuners.study.plan import Ended, NewTrial, Train, plan
from workbench.tuners.study.verdict import judge

from .study_tasks import COOLING, PROBLEMS, Problem, Results, Values

RUNGS = (1 / 9, 1 / 3, 1.0)
SPACES = {2: ("lr", "weight_decay"), 4: ("lr", "weight_decay", "width", "dropout")}
FRESH = (1, 2)
"""The seeds with which chosen settings are trained anew."""
SWEEP = 100
"""Updates of the learning-rate sweep."""
POOL = 128
Piece = tuple[Values, int, int]
Search = Generator[list[Piece], list[dict[str, list[float]]], Values]


@dataclass(frozen=True)
class Case:
    """A task with the dimensions that are searched, and a repetition."""

    problem: Problem
    dimensions: int
    repetition: int
    found_lr: float

    @property
    def names(self) -> tuple[str, ...]:
        return SPACES[self.dimensions]

    @property
    def space(self) -> dict[str, Any]:
        return {name: self.problem.space[name] for name in self.names}

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{self.problem.name} {self.dimensions} {self.repetition}".encode())

    def all(self, values: Values) -> dict[str, float]:
        return {**self.problem.present, **values}

    def drawn(self, generator: random.Random) -> dict[str, float]:
        values = {}
        for name, choice in self.space.items():
            if isinstance(choice, list):
                values[name] = generator.choice(choice)
            elif name in ("lr", "weight_decay"):
                values[name] = math.exp(generator.uniform(*map(math.log, choice)))
            else:
                values[name] = generator.uniform(*choice)
        return self.all(values)


def pool(case: Case) -> list[dict[str, float]]:
    """The same random settings for all repetitions, which draw from them."""
    generator = random.Random(f"{case.problem.name} {case.dimensions}")
    return [case.drawn(generator) for _ in range(POOL)]


def random_search(case: Case, fits: int) -> Search:
    trials = random.Random(case.seed).sample(pool(case), fits)
    results = yield [(values, 0, 2) for values in trials]
    return min(zip(trials, results, strict=True), key=lambda pair: pair[1]["raw"][-1])[0]


def present(case: Case, fits: int) -> Search:
    yield []
    return case.problem.present


def finder(case: Case, fits: int) -> Search:
    yield []
    return case.all({"lr": case.found_lr})


def sobol(case: Case, fits: int) -> Search:
    from scipy.stats import qmc

    points = qmc.Sobol(case.dimensions, seed=case.seed).random(fits)
    trials = [case.all(parsed(case).values(list(point))) for point in points]
    results = yield [(values, 0, 2) for values in trials]
    return min(zip(trials, results, strict=True), key=lambda pair: pair[1]["raw"][-1])[0]


def tpe(case: Case, fits: int) -> Search:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=case.seed % 2**31))
    for _ in range(fits):
        trial = study.ask()
        values = {}
        for name, choice in case.space.items():
            if isinstance(choice, list):
                values[name] = trial.suggest_categorical(name, choice)
            else:
                values[name] = trial.suggest_float(
                    name, *choice, log=name in ("lr", "weight_decay")
                )
        trial.set_user_attr("values", case.all(values))
        (result,) = yield [(case.all(values), 0, 2)]
        value = result["raw"][-1]
        study.tell(trial, value if math.isfinite(value) else 1e6)
    return study.best_trial.user_attrs["values"]


def asha(case: Case, fits: int) -> Search:
    """Successive halving of random settings by their raw values, in as many brackets of 9 as the budget holds."""
    generator, spent, whole = random.Random(case.seed), 0.0, []
    while spent + 7 / 3 <= fits + 0.05:
        trials = [case.drawn(generator) for _ in range(9)]
        for rung, kept in ((0, 3), (1, 1), (2, 1)):
            results = yield [(values, 0, rung) for values in trials]
            ranked = sorted(
                zip(trials, results, strict=True), key=lambda pair: pair[1]["raw"][rung]
            )
            trials = [values for values, _ in ranked[:kept]]
        spent += 7 / 3
        whole.append((ranked[0][1]["raw"][2], ranked[0][0]))
    return min(whole, key=lambda pair: pair[0])[1]


def parsed(case: Case) -> Space:
    settings = Settings.make(
        lr=case.problem.present["lr"], weight_decay=case.problem.present["weight_decay"]
    )
    return Space.parse(case.space, settings, {"width": 32, "dropout": 0.0})


def study(
    case: Case,
    fits: int,
    without: str = "",
    wrong: float = 1.0,
    cooled: bool = False,
    data: dict[str, Any] | None = None,
) -> Search:
    """A study by `plan`, with one worker.

    without, cooled: for the ablations, what is left out, and whether rungs compare values after the rate has fallen to 0. wrong: a factor
    of the prior's rate.
    """
    space = parsed(case)
    priors: dict[str, Any] = {"lr": {"center": case.found_lr * wrong, "factor": 3.0}}
    spent = SWEEP / case.problem.updates
    if without == "prior":
        space = Space(tuple(replace(d, has_present=False) for d in space.dimensions))
        priors, spent = {}, 0.0
    rungs = {"rungs": RUNGS[2:], "first rung": RUNGS[1:]}.get(without, RUNGS)
    head = StudyHead(
        "study", "val_loss", "min", {"fits": float(fits)}, space.to_record(), {"updates": case.problem.updates}, rungs,
        priors=priors, spent=spent, seed=case.seed, fresh_weights=True,
    )  # fmt: skip
    record = StudyRecord(Path(), head)
    while not isinstance(action := plan(record), Ended):
        assert isinstance(action, NewTrial | Train), action
        if isinstance(action, NewTrial):
            number, seed, rung = action.proposal.number, action.seed, action.rung
            trial = TrialRecord(
                number, action.proposal.values, action.proposal.origin, action.proposal.why
            )
        else:
            number, seed, rung = action.trial, action.seed, action.rung
            trial = record.trial(number)
            assert trial is not None
        depth = rung + (len(RUNGS) - len(rungs))
        values = case.problem.present if trial.origin == "baseline" else case.all(trial.values)
        (result,) = yield [(values, seed, depth)]
        value = result["cooled" if cooled else "raw"][depth]
        below = [r for r in range(rung) if trial.end(r, seed) is not None]
        cost = piece_cost(rungs, rung, max(below, default=None))
        cost += COOLING * rungs[rung] if cooled and rung < len(rungs) - 1 else 0.0
        status = "completed" if math.isfinite(value) else "infeasible"
        end = PieceEnd(status, cost, value, result["raw"][depth])
        trial = replace(trial, pieces=(*trial.pieces, PieceRecord(seed, rung, 1, "ended", end=end)))
        others = tuple(t for t in record.trials if t.number != number)
        record = replace(record, trials=tuple(sorted((*others, trial), key=lambda t: t.number)))
    if data is not None:
        data.setdefault("verdicts", []).append(judge(record))
        data.setdefault("spent", []).append(record.spent)
    best = record.best
    assert best is not None
    return case.problem.present if best.origin == "baseline" else case.all(best.values)


def run(searches: list[Search], results: Results) -> list[Values]:
    """Run searches of one problem at once, since many fits together are faster; returns what each chose."""
    asked: dict[int, list[Piece]] = {k: next(search) for k, search in enumerate(searches)}
    chosen: dict[int, Values] = {}
    while asked:
        results.train([piece for pieces in asked.values() for piece in pieces], list(RUNGS))
        answers = {
            k: [results.at(*piece, list(RUNGS)) for piece in pieces] for k, pieces in asked.items()
        }
        for k, answer in answers.items():
            try:
                asked[k] = searches[k].send(answer)
            except StopIteration as end:
                del asked[k]
                chosen[k] = end.value
    return [chosen[k] for k in range(len(searches))]


def searches_of(case: Case, data: dict[str, Any]) -> dict[str, Search]:
    table: dict[str, Search] = {"present": present(case, 0), "finder": finder(case, 0)}
    for fits in (4, 16, 64):
        table[f"random {fits}"] = random_search(case, fits)
    for fits in (4, 8, 16):
        table[f"study {fits}"] = study(case, fits, data=data.setdefault(f"study {fits}", {}))
        for part in ("prior", "rungs", "first rung"):
            table[f"study {fits} without {part}"] = study(case, fits, part)
        table[f"study {fits} cooled"] = study(case, fits, cooled=True)
        for wrong in (0.01, 100.0):
            table[f"study {fits} wrong {wrong:g}"] = study(case, fits, wrong=wrong)
    for fits in (4, 8, 16):
        table[f"sobol {fits}"] = sobol(case, fits)
        table[f"tpe {fits}"] = tpe(case, fits)
        table[f"asha {fits}"] = asha(case, fits)
    return table


def fresh(case: Case, results: Results, values: Values) -> float:
    return statistics.fmean(results.at(values, seed, 2, list(RUNGS))["raw"][-1] for seed in FRESH)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cache", type=Path, help="a folder in which results are kept")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="searches whose name matches one of these patterns"
    )
    parser.add_argument(
        "--tasks", nargs="*", default=[""], help="tasks with one of these words in their name"
    )
    parser.add_argument("--dimensions", nargs="*", type=int, default=[2, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.cache or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    regrets: dict[str, dict[str, list[float]]] = {}
    data: dict[str, Any] = {}
    for problem in PROBLEMS:
        if not any(word in problem.name for word in options.tasks):
            continue
        for dimensions in options.dimensions:
            began = time.perf_counter()
            regrets_of(problem, dimensions, options, Results(problem, folder), regrets, data)
            print(
                f"{problem.name}, {dimensions} dimensions: {time.perf_counter() - began:.0f} s",
                flush=True,
            )
    print(f"{'':28} {'median':>8} {'mean':>8} {'worst task':>10}")
    for name, by_task in regrets.items():
        tasks = {task: values for task, values in by_task.items() if "nothing" not in task}
        if tasks:
            medians = {task: statistics.median(values) for task, values in tasks.items()}
            worst = max(medians, key=lambda task: medians[task])
            every = [min(value, 100.0) for values in tasks.values() for value in values]
            print(
                f"{name:28} {statistics.median(every):8.1%} {statistics.fmean(every):8.1%} {medians[worst]:10.1%}  {worst}"
            )
    for name, seen in data.items():
        if seen:
            print(name, {key: summary(values) for key, values in seen.items()})


def summary(values: Mapping[str, Any] | list[Any]) -> str:
    if all(isinstance(value, float) for value in values):
        return f"{min(values):.2f} to {max(values):.2f}"
    return f"adopted {sum(verdict.adopt is True for verdict in values)} of {len(values)}"


def regrets_of(
    problem: Problem,
    dimensions: int,
    options: argparse.Namespace,
    results: Results,
    regrets: dict[str, dict[str, list[float]]],
    data: dict[str, Any],
) -> None:
    lr = results.found_lr() or problem.present["lr"]
    cases = [Case(problem, dimensions, repetition, lr) for repetition in range(options.repetitions)]
    notes = (
        data
        if "nothing" not in problem.name
        else data.setdefault("on labels of which nothing can be learned", {})
    )
    if notes is not data:
        notes = {}
    names: list[str] = []
    searches: list[Search] = []
    owners: list[Case] = []
    for case in cases:
        for name, search in searches_of(case, notes).items():
            if any(fnmatch.fnmatch(name, pattern) for pattern in options.only):
                names.append(name)
                searches.append(search)
                owners.append(case)
    chosen = run(searches, results)
    whole = sorted(
        pool(cases[0]), key=lambda values: results.at(values, 0, 2, list(RUNGS))["raw"][-1]
    )[:5]
    results.train(
        [(values, seed, 2) for values in [*chosen, *whole] for seed in FRESH], list(RUNGS)
    )
    best = min(fresh(cases[0], results, values) for values in [*chosen, *whole])
    for name, values in zip(names, chosen, strict=True):
        regret = fresh(cases[0], results, values) / best - 1
        regrets.setdefault(name, {}).setdefault(f"{problem.name} {dimensions}", []).append(regret)
    if notes is not data:
        adopted = [v for seen in notes.values() for v in seen.get("verdicts", [])]
        print("verdicts:", summary(adopted) if adopted else "none")


if __name__ == "__main__":
    main()
