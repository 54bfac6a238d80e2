"""How good the settings are that a study finds, beside other searches: `python -m tests.benchmarks.study_regret regret`.

Every search gets the same budget in whole fits; that of a study includes its learning-rate sweep. The settings that it
chooses are trained anew with three fresh seeds. Regret: their mean validation loss, divided by the lowest one that any search of the run found,
the best of 200 random settings among them, less 1; losses from 0 to 1% of that of the initial weights count as 1%. The table has the median and the
mean over tasks and repetitions, and the worst task (median over its repetitions).

`wrong`: studies whose prior of the rate is wrong by 100 times. `ablations`: studies without one of their parts.
`null`: how often a study says "adopt" where labels are random, and nothing can be gained. `verdict`: how often it is right with "adopt", by 20 seeds more.
`workers`: what four workers find with the same budget and with 1.15 times as much. `decision`: how long reading and planning take with 500 trials.

Several tables may be given at once; `null` and `verdict` stand alone. `--cache FOLDER` keeps the results of all fits, so that nothing is trained
twice. `--only "study 4*"` takes the searches of such names.
"""

from __future__ import annotations

import argparse
import fnmatch
import heapq
import math
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from workbench.bench.study_arguments import rungs_of
from workbench.runs.study.record import (
    PieceEnd,
    PieceRecord,
    StudyHead,
    StudyRecord,
    TrialProposal,
    TrialRecord,
)
from workbench.runs.study.write import add_trial, claim, new_study
from workbench.settings import Settings
from workbench.settings.space import Space
from workbench.tuners.study.brackets import piece_cost
from workbench.tuners.study.plan import Ended, NewTrial, Wait, plan
from workbench.tuners.study.verdict import Verdict, judge

from .study_tasks import COOLING, PROBLEMS, SHARES, Piece, Problem, Results, Values

SPACES = {
    2: ("lr", "weight_decay"),
    4: ("lr", "weight_decay", "width", "dropout"),
    6: ("lr", "weight_decay", "width", "dropout", "warmup", "gradient_clip_val"),
}
FRESH, JUDGES = (11, 12, 13), tuple(range(21, 41))
"""The seeds with which chosen settings are trained anew, and those that judge a verdict."""
SWEEP = 100
"""Updates of the learning-rate sweep."""
POOL = 200
WHOLE = len(SHARES) - 1
Search = Generator[list[Piece], list[dict[str, list[float]]], Values]


@dataclass(frozen=True)
class Case:
    """A task with the dimensions that are searched, and a repetition."""

    problem: Problem
    dimensions: int
    repetition: int
    found: dict[str, float]
    present: Values
    """The settings with which a study begins."""

    @property
    def space(self) -> dict[str, Any]:
        return {name: self.problem.space[name] for name in SPACES[self.dimensions]}

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{self.problem.name} {self.dimensions} {self.repetition}".encode())

    def all(self, values: Values) -> dict[str, Any]:
        return {**self.present, **values}

    def drawn(self, generator: random.Random) -> dict[str, Any]:
        values = {}
        for name, choice in self.space.items():
            if isinstance(choice, list):
                values[name] = generator.choice(choice)
            elif name in ("lr", "weight_decay"):
                values[name] = math.exp(generator.uniform(*map(math.log, choice)))
            else:
                values[name] = generator.uniform(*choice)
        return self.all(values)


def pool(case: Case) -> list[dict[str, Any]]:
    """The same random settings for all repetitions, which draw from them."""
    generator = random.Random(f"{case.problem.name} {case.dimensions}")
    return [case.drawn(generator) for _ in range(POOL)]


def random_search(case: Case, fits: int) -> Search:
    trials = random.Random(case.seed).sample(pool(case), fits)
    results = yield [(values, 0, WHOLE) for values in trials]
    return _best(trials, results)


def _best(trials: list[Any], results: list[dict[str, list[float]]]) -> Any:
    return min(zip(trials, results, strict=True), key=lambda pair: pair[1]["raw"][WHOLE])[0]


def present(case: Case) -> Search:
    yield []
    return case.present


def finder(case: Case) -> Search:
    yield []
    return case.all({"lr": case.found["center"]})


def sobol(case: Case, fits: int) -> Search:
    from scipy.stats import qmc

    points = qmc.Sobol(case.dimensions, seed=case.seed).random(fits)
    trials = [case.all(parsed(case).values(list(point))) for point in points]
    results = yield [(values, 0, WHOLE) for values in trials]
    return _best(trials, results)


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
        (result,) = yield [(case.all(values), 0, WHOLE)]
        value = result["raw"][WHOLE]
        study.tell(trial, value if math.isfinite(value) else 1e6)
    return study.best_trial.user_attrs["values"]


def asha(case: Case, fits: int) -> Search:
    """Successive halving of random settings, in as many brackets of nine as the budget holds."""
    generator, spent, last = random.Random(case.seed), 0.0, []
    while spent + 7 / 3 <= fits + 0.05:
        trials = [case.drawn(generator) for _ in range(9)]
        for depth, kept in ((0, 3), (1, 1), (2, 1)):
            results = yield [(values, 0, depth) for values in trials]
            order = sorted(range(len(trials)), key=lambda k: results[k]["raw"][depth])
            best = results[order[0]]
            trials = [trials[k] for k in order[:kept]]
        spent += 7 / 3
        last.append((best["raw"][WHOLE], len(last), trials[0]))
    return min(last)[2]


def parsed(case: Case) -> Space:
    own = {name: case.present[name] for name in ("lr", "weight_decay", "warmup")}
    build = {name: case.present[name] for name in ("width", "dropout")}
    return Space.parse(case.space, Settings.make(**own), build)


@dataclass
class Ends:
    """How studies ended."""

    verdicts: list[tuple[Verdict, Values, Values]] = field(default_factory=list)
    """With the settings of the best trial and of the baseline."""
    spent: list[float] = field(default_factory=list)


def study(
    case: Case,
    fits: float,
    *,
    without: str = "",
    wrong: float = 1.0,
    cooled: bool = False,
    floor: int | None = None,
    workers: int = 1,
    seeds: int | None = None,
    ends: Ends | None = None,
) -> Search:
    """A study by `plan`.

    without: a part that is left out. wrong: a factor of the prior's rate. cooled: whether rungs compare values after the rate has fallen to 0.
    floor: the fewest updates of a rung; None: as the workbench has it. workers: how many work at the same time; a piece takes as long as it costs.
    """
    problem, space = case.problem, parsed(case)
    priors: dict[str, Any] = {"lr": {name: lr * wrong for name, lr in case.found.items()}}
    spent = SWEEP / problem.updates
    if without == "prior":
        space = Space(tuple(replace(d, has_present=False) for d in space.dimensions))
        priors, spent = {}, 0.0
    rungs = rungs_of(problem.updates, 1, {"fits": fits})
    if floor is not None:
        rungs = tuple(s for s in SHARES if s * problem.updates >= floor or s == 1)
    head = StudyHead(
        "study", "val_loss", "min", {"fits": float(fits)}, space.to_record(), {"updates": problem.updates}, rungs,
        priors=priors, spent=spent, seeds=seeds, seed=case.seed, fresh_weights=True,
    )  # fmt: skip
    record, now, running = StudyRecord(Path(), head), 0.0, []
    while True:
        action = plan(record)
        if not running and isinstance(action, Ended):
            break
        if isinstance(action, Ended | Wait) or len(running) == workers:
            now, _, number, rung, seed, value = heapq.heappop(running)
            record = _ended(record, number, seed, rung, value, cooled)
            continue
        if isinstance(action, NewTrial):
            new = action.proposal
            trial = TrialRecord(new.number, new.values, new.origin, new.why)
            if without == "found" and new.origin in ("found", "prior") and new.number == 2:
                trial = replace(trial, values=dict(space.present))
        else:
            known = record.trial(action.trial)
            assert known is not None
            trial = known
        depth = action.rung + len(SHARES) - len(rungs)
        values = case.present if trial.origin == "baseline" else case.all(trial.values)
        (result,) = yield [(values, action.seed, depth)]
        value = result["cooled" if cooled else "raw"][depth]
        piece = PieceRecord(action.seed, action.rung, 1, "claimed")
        record = _with(record, replace(trial, pieces=(*trial.pieces, piece)))
        until = now + piece_cost(rungs, action.rung, _begins_at(trial, action.seed, action.rung))
        heapq.heappush(
            running, (until, len(record.trials), trial.number, action.rung, action.seed, value)
        )
    best, baseline = record.best, record.baseline
    chosen = case.present
    if best is not None and best is not baseline:
        chosen = case.all(best.values)
    if ends is not None:
        ends.verdicts.append((judge(record), chosen, case.present))
        ends.spent.append(record.spent)
    return chosen


def _begins_at(trial: TrialRecord, seed: int, rung: int) -> int | None:
    return max((r for r in range(rung) if trial.end(r, seed) is not None), default=None)


def _ended(
    record: StudyRecord, number: int, seed: int, rung: int, value: float, cooled: bool
) -> StudyRecord:
    trial, rungs = record.trial(number), record.head.rungs
    assert trial is not None
    cost = piece_cost(rungs, rung, _begins_at(trial, seed, rung))
    cost += COOLING * rungs[rung] if cooled and rung < len(rungs) - 1 else 0.0
    status = "completed" if math.isfinite(value) else "infeasible"
    end = PieceEnd(status, cost, value)
    pieces = tuple(
        replace(p, state="ended", end=end) if (p.seed, p.rung) == (seed, rung) else p
        for p in trial.pieces
    )
    return _with(record, replace(trial, pieces=pieces))


def _with(record: StudyRecord, trial: TrialRecord) -> StudyRecord:
    others = [t for t in record.trials if t.number != trial.number]
    return replace(record, trials=tuple(sorted([*others, trial], key=lambda t: t.number)))


def run(searches: list[Search], results: Results) -> list[Values]:
    """Run searches of one problem at once, since many fits together are faster: the shorter ones first; returns what each chose."""
    asked: dict[int, list[Piece]] = {k: next(search) for k, search in enumerate(searches)}
    chosen: dict[int, Values] = {}
    while asked:
        pieces = [p for many in asked.values() for p in many if not results.knows(*p)]
        least = min((depth for _, _, depth in pieces), default=0)
        results.train([piece for piece in pieces if piece[2] == least])
        for k, many in [*asked.items()]:
            if not all(results.knows(*piece) for piece in many):
                continue
            try:
                asked[k] = searches[k].send([results.at(*piece) for piece in many])
            except StopIteration as end:
                del asked[k]
                chosen[k] = end.value
    return [chosen[k] for k in range(len(searches))]


Named = dict[str, Callable[[Case], Search]]
BUDGETS = (4, 8, 16)


def named(what: str, ends: dict[str, Ends]) -> Named:
    """The searches of a table, by their names."""
    table: Named = {}

    def add(name: str, search: Callable[..., Search], *arguments: Any, **options: Any) -> None:
        if search is study:
            options["ends"] = ends.setdefault(name, Ends())
        table[name] = lambda case: search(case, *arguments, **options)

    if what in ("regret", "wrong", "ablations"):
        for fits in (4, 8, 16, 64):
            add(f"random {fits}", random_search, fits)
        for fits in BUDGETS:
            add(f"study {fits}", study, fits)
    if what == "regret":
        add("present", present)
        add("finder", finder)
        for fits in BUDGETS:
            add(f"sobol {fits}", sobol, fits)
            add(f"tpe {fits}", tpe, fits)
            add(f"asha {fits}", asha, fits)
    if what == "wrong":
        for fits in BUDGETS:
            for wrong in (0.01, 100.0):
                add(f"study {fits} wrong {wrong:g}", study, fits, wrong=wrong)
    if what == "ablations":
        for fits in BUDGETS:
            add(f"study {fits} without prior", study, fits, without="prior")
            add(f"study {fits} without found", study, fits, without="found")
            add(f"study {fits} cooled", study, fits, cooled=True)
            for floor in (40, 100, 200, 10_000):
                add(f"study {fits} floor {floor}", study, fits, floor=floor)
    if what in ("null", "verdict"):
        add("study 16", study, 16)
    if what == "workers":
        for fits in (4, 8):
            add(f"study {fits}, 1 worker", study, fits, seeds=0)
            add(f"study {fits}, 4 workers", study, fits, seeds=0, workers=4)
            add(f"study {fits * 1.15:.1f}, 4 workers", study, fits * 1.15, seeds=0, workers=4)
    return table


def fresh(results: Results, values: Values, seeds: tuple[int, ...] = FRESH) -> float:
    return statistics.fmean(results.at(values, seed)["raw"][WHOLE] for seed in seeds)


Regrets = dict[str, dict[str, list[float]]]


def add_regrets(cases: list[Case], results: Results, searches: Named, regrets: Regrets) -> None:
    """Run the searches for all repetitions of a task, and train anew what each has chosen."""
    jobs = [(name, search(case)) for case in cases for name, search in searches.items()]
    chosen = run([search for _, search in jobs], results)
    reference = pool(cases[0])
    results.train([(values, 0, WHOLE) for values in reference])
    reference.sort(key=lambda values: results.at(values, 0)["raw"][WHOLE])
    results.train([(v, seed, WHOLE) for seed in FRESH for v in [*chosen, *reference[:5]]])
    best = min(fresh(results, values) for values in [*chosen, *reference[:5]])
    task = f"{cases[0].problem.name} {cases[0].dimensions}"
    for (name, _), values in zip(jobs, chosen, strict=True):
        regret = fresh(results, values) / best - 1
        regrets.setdefault(name, {}).setdefault(task, []).append(regret)


def print_regrets(regrets: Regrets) -> None:
    print(f"{'':28} {'median':>8} {'mean':>8} {'worst task':>10}")
    for name, tasks in regrets.items():
        medians = {task: statistics.median(values) for task, values in tasks.items()}
        worst = max(medians, key=lambda task: medians[task])
        every = [min(value, 100.0) for values in tasks.values() for value in values]
        print(
            f"{name:28} {statistics.median(medians.values()):8.1%} {statistics.fmean(every):8.1%}"
            f" {medians[worst]:10.1%}  {worst}"
        )
    print("by task: " + ", ".join(next(iter(regrets.values()))))
    for name, tasks in regrets.items():
        print(f"{name:28}", *(f"{statistics.median(v):5.0%}" for v in tasks.values()))


def print_verdicts(verdicts: list[tuple[Verdict, Values, Values]], results: Results) -> None:
    """How many say "adopt", and how many of these are right by 20 seeds more."""
    adopted = [(best, before) for verdict, best, before in verdicts if verdict.adopt]
    results.train([(v, seed, WHOLE) for seed in JUDGES for pair in adopted for v in pair])
    right = sum(fresh(results, b, JUDGES) < fresh(results, a, JUDGES) for b, a in adopted)
    print(
        f"{results.problem.name}: {len(adopted)} of {len(verdicts)} adopted, {right} of these right",
        flush=True,
    )


def print_times(trials: int = 500) -> None:
    """The processor time to read a study of so many trials, to read it once more, and to plan."""
    space = {"lr": (1e-5, 1.0), "weight_decay": (1e-4, 1.0), "dropout": (0.0, 0.5)}
    parsed_space = Space.parse(space, Settings.make(lr=1e-3), {"dropout": 0.0})
    rungs, generator = (1 / 9, 1 / 3, 1.0), random.Random(0)
    head = StudyHead(
        "study", "val_loss", "min", {"fits": 1e4}, parsed_space.to_record(), {"updates": 900}, rungs,
        seeds=0,
    )  # fmt: skip
    times: dict[str, list[float]] = {"read": [], "read again": [], "plan": []}
    with tempfile.TemporaryDirectory() as folder:
        path = new_study(Path(folder), head)
        for number in range(1, trials + 1):
            values = parsed_space.values([generator.random() for _ in space])
            origin = {1: "baseline", 2: "found"}.get(number, "even")
            add_trial(path, TrialProposal(number, values, origin))
            last = 2 if number <= 2 or number % 9 == 0 else number % 3 == 0
            for rung in range(2 if number <= 2 else 0, last + 1):
                piece = claim(path, number, 0, rung, "worker")
                assert piece is not None
                loss = 1 + math.log10(values["lr"] / 0.01) ** 2 + generator.random() / (rung + 1)
                piece.beat("0001-fit")
                piece.end(PieceEnd("completed", piece_cost(rungs, rung, None), loss))
        before = StudyRecord.read(path)
        # a worker reads each second, and what has not changed for two seconds is not listed again
        time.sleep(2.1)
        before = StudyRecord.read(path, before)
        action = plan(before)
        assert isinstance(action, NewTrial), action
        for _ in range(10):
            for name, call in (
                ("read", lambda: StudyRecord.read(path)),
                ("read again", lambda: StudyRecord.read(path, before)),
                ("plan", lambda: plan(before)),
            ):
                began = time.process_time()
                call()
                times[name].append(1e3 * (time.process_time() - began))
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values):.0f} ms, fastest {min(values):.0f} ms")


def cases_of(problem: Problem, dimensions: int, options: Any, results: Results) -> list[Case]:
    found = results.found() or {"center": problem.present["lr"]}
    start = problem.present
    if options.start == "finder":
        start = {**start, "lr": found["center"]}
    return [Case(problem, dimensions, k, found, start) for k in range(options.repetitions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    whats = ("regret", "wrong", "ablations", "null", "verdict", "workers", "decision")
    parser.add_argument("what", choices=whats, nargs="+")
    parser.add_argument("--cache", type=Path, help="a folder in which results are kept")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="searches whose name matches one of these patterns"
    )
    parser.add_argument(
        "--tasks", nargs="*", default=[""], help="tasks with one of these words in their name"
    )
    parser.add_argument("--dimensions", nargs="*", type=int, default=[2, 4])
    parser.add_argument(
        "--start", choices=("usual", "finder"), default="usual", help="the baseline's rate"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "decision" in options.what:
        print_times()
    judges = {"null", "verdict"} & {*options.what}
    tables = [what for what in whats[:-1] if what in options.what]
    folder = options.cache or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    regrets: Regrets = {}
    for problem in PROBLEMS:
        if not tables or ("nothing" in problem.name) != (tables == ["null"]):
            continue
        if not any(word in problem.name for word in options.tasks):
            continue
        results = Results(problem, folder)
        for dimensions in options.dimensions:
            began, ends = time.perf_counter(), dict[str, Ends]()
            table = {n: search for what in tables for n, search in named(what, ends).items()}
            chosen = {
                name: search
                for name, search in table.items()
                if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)
            }
            cases = cases_of(problem, dimensions, options, results)
            if judges:
                run([search(case) for case in cases for search in chosen.values()], results)
                print_verdicts(ends["study 16"].verdicts, results)
            else:
                add_regrets(cases, results, chosen, regrets)
            took = time.perf_counter() - began
            print(f"{problem.name}, {dimensions} dimensions: {took:.0f} s", flush=True)
    if regrets:
        print_regrets(regrets)


if __name__ == "__main__":
    main()
