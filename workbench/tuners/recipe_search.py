"""Races recipes, each an optimizer with its rate and its schedule: they train for stretches from
the same state on the same batches, and losses on held-out batches are compared.

A stretch is shorter than the run, so it favours what is fast: high rates, and schedules that fall
early. Three things counter that. Each stretch is a whole run in small, with its warm-up and its
fall to 0, so that no recipe ends at its full rate while another has cooled down. The best one and
the present settings train again, longer. Then both are known at two lengths, and the present
settings stay unless the other is clearly better, and would be at the end of the run, too, if both
went on as from the first length to the second. And of two rates of one optimizer whose losses are
close, the lower one is taken: where both have learned what can be learned in a stretch, the higher
one overfits sooner in the whole run.

The rates of the recipes are those that suit most models, and for a long run the rate of a sweep for
the present optimizer. Muon's updates are scaled to AdamW's, so both have the same rates.
Sources: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification" (2016), for the rounds;
Defazio et al., "The Road Less Scheduled" (2024); Jordan et al., "Muon" (2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.commands import Mailbox
from workbench.engine.setup import open_session
from workbench.events import Emit, RecipeSearchEnded, RecipeTrial, last_of
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.names import recipe_name
from workbench.plots.searches.recipe import recipe
from workbench.runs.printable import printable
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.techniques.averaging import has_batch_norm
from workbench.tuners import stretch
from workbench.tuners.learning_rate import lr_finder
from workbench.units import number
from workbench.values import shown

RUNS = 1.5
"""The updates of a search, as a multiple of those of the run."""
MOST = 6000
"""The most updates of a search whose number is not given."""
FIRST = 0.5
"""The share of the updates in which all recipes train."""
FINALISTS = 2
"""How many train in the second round: the best recipe, and the present settings."""
SWEPT = 0.1
"""A sweep for the present optimizer may take at most this share of all updates."""
CLEARLY = 0.05
"""The present settings are replaced only if their loss is higher by this share
(`stretch.excess`)."""
LEARNED = 0.02
"""Losses below this share of the loss at the start are as good as equal."""
CLOSE = 1.75
"""Rates with a smaller ratio count as equal."""
OF_RECIPE = (
    "optimizer",
    "lr",
    "weight_decay",
    "lr_schedule",
    "warmup",
    "gradient_clip_val",
    "gradient_clip_algorithm",
)
"""The settings that a recipe may have."""
_FALLS: Mapping[str, Any] = {"lr_schedule": "cosine", "warmup": 0.05}
_STAYS: Mapping[str, Any] = {"lr_schedule": "constant", "warmup": 0.05}


@dataclass(frozen=True)
class RecipeSearch(Drawable):
    """The result of a race of recipes. `best`: the settings of the best one, for
    `bench.set(**found.best)`; empty: the present settings stay.

    `reason` says why, `doubt` what speaks against it ("": nothing known), `ended` how the search
    ended. `trials`: each stretch with the settings of its recipe, its updates and its loss on
    held-out batches, in order. `figure()` and `plot()` draw them.
    """

    best: Mapping[str, Any]
    reason: str
    doubt: str
    trials: tuple[RecipeTrial, ...]
    ended: str

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> RecipeSearch:
        """Make it from the events of a run or a record, complete or not."""
        recorded = list(events)
        trials = tuple(e for e in recorded if isinstance(e, RecipeTrial))
        end = last_of(recorded, RecipeSearchEnded({}, "", "", "not ended"))
        return cls(end.best, end.reason, end.doubt, trials, end.ended)

    def _charts(self) -> list[Chart]:
        return [recipe(self.trials, self.best)]

    def __repr__(self) -> str:
        answer = recipe_name(self.best) if self.best else "unchanged"
        longest = max((t.updates for t in self.trials), default=0)
        rows = [
            f"  {recipe_name(t.values):<44}  {t.updates:>7}  {t.loss:>13.4g}"
            + ("  best" if t.updates == longest and dict(t.values) == dict(self.best) else "")
            for t in self.trials
        ]
        columns = [f"  {'recipe':<44}  {'updates':>7}  {'held-out loss':>13}"] if rows else []
        texts = [text for text in (self.reason, self.doubt) if text]
        return "\n".join(
            map(
                printable,
                [
                    f"RecipeSearch: {answer} ({self.ended})",
                    *(f"  {text}" for text in texts),
                    *columns,
                    *rows,
                ],
            )
        )


@dataclass(frozen=True)
class RecipeRequest:
    """The arguments of a race of recipes. updates: in all; None: 1.5 runs, from 200 to `MOST`.
    recipes: settings by name, of each; None: the usual ones.
    """

    updates: int | None = None
    recipes: tuple[Mapping[str, Any], ...] | None = None

    def __post_init__(self) -> None:
        if self.updates is not None:
            stretch.check("updates", self.updates, 4, 1500)
        if self.recipes is None:
            return
        for values in self.recipes:
            if not isinstance(values, Mapping) or not values:
                raise SettingsError(
                    f"recipes=[{shown(values)}, …]: give the settings of each by their names,"
                    " {'optimizer': 'muon', 'lr': 1e-2}."
                )
        recipes = tuple(Settings.named(values, "find_recipe") for values in self.recipes)
        for values in recipes:
            if other := next((name for name in values if name not in OF_RECIPE), None):
                raise SettingsError(
                    f"recipes=[{{{other!r}: …}}]: a recipe has {', '.join(OF_RECIPE)}; {other} is"
                    f" the same for all, find_recipe({other}=…)."
                )
        object.__setattr__(self, "recipes", recipes)

    def run(
        self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]
    ) -> RecipeSearchEnded:
        """Train the recipes in rounds, until `stopped()`."""
        run = _look(task, settings, self.updates)
        if run.why_not:
            return RecipeSearchEnded(
                {}, f"no recipe was tried: {run.why_not}.", "", "nothing can judge"
            )
        recipes, left_out = self._recipes(task, settings, run)
        if len(recipes) == 1:
            why = f"no recipe could be tried: {'; '.join(left_out)}."
            return RecipeSearchEnded({}, why, "", "nothing to try")
        race = _Race(task, settings, run, emit, stopped)
        first, second = lengths(len(recipes), run.updates - run.swept, run.planned)
        try:
            recipes = race.train(recipes, first)
            if second:
                race.train(recipes[:FINALISTS], second)
        except _Stopped:
            return RecipeSearchEnded({}, "", "", "stopped")
        return race.conclusion(left_out)

    def _recipes(
        self, task: Task, settings: Settings, run: _Run
    ) -> tuple[list[Mapping[str, Any]], list[str]]:
        """The recipes, the present settings first, as many as have a stretch each; and the usual
        ones that these settings cannot have, each with the reason.
        """
        left_out: list[str] = []
        usual = usual_recipes(run) if self.recipes is None else self.recipes
        recipes: list[Mapping[str, Any]] = [{}]
        for values in usual:
            try:
                with open_session(task, settings.replace(**values)) as session:
                    session.task.refuse_optimizer(session.settings)
            except (SettingsError, TaskError) as error:
                if self.recipes is not None:
                    raise
                left_out.append(f"{recipe_name(values)} ({error})")
            else:
                recipes += [] if values in recipes else [values]
        most = most_recipes(run.updates - run.swept)
        if len(recipes) > most:
            names = "; ".join(map(recipe_name, recipes[most:]))
            left_out.append(f"{names} (more updates are needed)")
        return recipes[:most], left_out


class _Run(NamedTuple):
    """Facts of the run before the first stretch."""

    updates: int
    """Of the search."""
    planned: int | None
    """Of the run."""
    start: float | None
    """The val_loss at its start; None: training batches are used for the comparison."""
    present: float
    """Its learning rate."""
    swept_rate: float | None
    swept: int
    """The updates of the sweep."""
    normalizes: bool
    """Whether the model has batch norm."""
    schedules: bool
    """Whether the user gave a scheduler, which no setting may join."""
    why_not: str
    """Why no held-out data can compare recipes; "": they can."""


def _look(task: Task, settings: Settings, updates: int | None) -> _Run:
    """Read the facts of the run, and sweep its rate where the search has updates for it."""
    with open_session(task, settings) as session:
        stretch.refuse(session.task, session.settings, "find_recipe()")
        planned = session.updates
        if updates is None and planned is None:
            raise SettingsError(
                "find_recipe(): the number of updates of the run is not known: give"
                " find_recipe(updates=1500)."
            )
        if updates is None:
            updates = max(4 * stretch.FEWEST, min(round(RUNS * (planned or 0)), MOST))
        start, why_not = stretch.starting_loss(session, max(lengths(FINALISTS, updates, planned)))
        first, swept, suggestion = session.optimizers[0], 0, None
        request = lr_finder.LRRequest()
        alone = len(session.optimizers) == 1
        if not why_not and alone and request.num_training <= SWEPT * updates:
            swept = request.num_training
            suggestion = lr_finder.run(session, request, lambda event: None, Mailbox()).suggestion
        return _Run(
            updates,
            planned,
            start,
            first.base_lr,
            suggestion,
            swept,
            has_batch_norm([task.model]),
            bool(first.schedules) and settings.lr_schedule == "constant" and not settings.warmup,
            why_not,
        )


def usual_recipes(run: _Run) -> list[Mapping[str, Any]]:
    """The recipes that are tried besides the present settings, the most promising ones first."""
    falls = {} if run.schedules else _FALLS

    def free(lr: float) -> list[Mapping[str, Any]]:
        values = {"optimizer": "schedule_free_adamw", "lr": lr, "weight_decay": None, **_STAYS}
        return [] if run.schedules else [values]

    def falling(optimizer: Any, lr: float, decay: float | None = None) -> list[Mapping[str, Any]]:
        return [{"optimizer": optimizer, "lr": lr, "weight_decay": decay, **falls}]

    momentum = {"sgd": {"momentum": 0.9, "nesterov": True}}
    swept: list[Mapping[str, Any]] = []
    if run.swept_rate is not None and _ratio(run.swept_rate, run.present) >= CLOSE:
        swept = [{"lr": float(f"{run.swept_rate:.2g}")}]
    return [
        *swept,
        *free(1e-2),
        *falling("adamw", 1e-2),
        *free(3e-2),
        *falling("muon", 3e-2),
        *(falling(momentum, 0.1, 5e-4) if run.normalizes else []),
        *falling("adamw", 3e-2),
        *free(3e-3),
        *falling("adamw", 3e-3),
        *falling("muon", 1e-2),
    ]


def _ratio(value: float, other: float) -> float:
    return max(value / other, other / value) if value and other else math.inf


def most_recipes(updates: int) -> int:
    """How many recipes can have a stretch each in a search of so many updates."""
    return max(FINALISTS + 1, int(FIRST * updates / stretch.FEWEST))


def lengths(count: int, updates: int, planned: int | None) -> tuple[int, int]:
    """The updates of a stretch of so many recipes in the first round, and in the second one; 0:
    there is no second one, since its stretches would be no longer.
    """
    most = planned or updates
    first = max(stretch.FEWEST, round(FIRST * updates / count))
    second = min(most, round((updates - first * count) / FINALISTS))
    if count <= FINALISTS or second <= first:
        return min(most, updates // count), 0
    return min(most, first), second


class _Stopped(Exception):
    """Raised when a Stop has arrived."""


class _Race:
    """Trains recipes, and keeps their losses."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        run: _Run,
        emit: Emit,
        stopped: Callable[[], bool],
    ) -> None:
        self._task, self._settings, self._run = task, settings, run
        self._emit, self._stopped = emit, stopped
        self._losses: list[tuple[Mapping[str, Any], float]] = []
        """The recipes of the latest round, each with its loss."""
        self._before: list[tuple[Mapping[str, Any], float]] = []
        """Those of the round before."""
        self._length = self._length_before = 0

    def train(self, recipes: Sequence[Mapping[str, Any]], length: int) -> list[Mapping[str, Any]]:
        """Train each for a stretch of this length; returns them, the present settings first, and
        then the best one.
        """
        self._before, self._length_before = self._losses, self._length
        self._losses, self._length = [], length
        by_val = self._run.start is not None
        for values in recipes:
            if self._stopped():
                raise _Stopped
            chosen = self._settings.replace(**values)
            share = _warmup(chosen, self._run.planned)
            loss = stretch.loss_after(self._task, chosen, length, by_val=by_val, warmup=share)
            self._losses.append((values, loss))
            self._emit(RecipeTrial(dict(values), length, loss))
        losses = {number: loss for number, (_, loss) in enumerate(self._losses) if number}
        ranked = sorted(losses, key=losses.__getitem__)
        near = [number for number in ranked if losses[number] <= losses[ranked[0]] * (1 + CLEARLY)]
        gentlest = self._gentlest(ranked[0], near or ranked[:1])
        others = [recipes[number] for number in ranked if recipes[number] != gentlest]
        return [{}, gentlest, *others]

    def conclusion(self, left_out: Sequence[str]) -> RecipeSearchEnded:
        """The result, from the losses of the last round."""
        run, ended = self._run, "all recipes tried"
        listed = ", ".join(
            f"{recipe_name(values)}: {_loss(loss)}"
            for values, loss in sorted(self._losses, key=lambda pair: pair[1])
        )
        of = f" of {run.planned:,}" if run.planned is not None else ""
        why = f"held-out loss after {self._length:,}{of} updates: {listed}."
        if left_out:
            why += f" Not tried: {'; '.join(left_out)}."
        losses = {n: loss for n, (_, loss) in enumerate(self._losses) if math.isfinite(loss)}
        if not losses:
            return RecipeSearchEnded({}, f"{why} No recipe has a finite loss.", "", ended)
        start = max(losses.values()) if run.start is None else run.start
        by_number = {float(number): loss for number, loss in losses.items()}
        excess = stretch.excess(by_number, start, abs(start), LEARNED)
        best = min(losses, key=losses.__getitem__)
        if excess.get(0, math.inf) < 1 + CLEARLY:  # those of the present settings
            kept = "None is clearly better than the present settings, which stay."
            return RecipeSearchEnded({}, f"{why} {kept}", self._doubt(losses[best], {}), ended)
        near = [n for n in losses if n and excess[n] < 1 + CLEARLY]
        values = self._gentlest(best, near)
        if self._is_overtaken(values):
            kept = "The present settings fall faster from the shorter stretch to this, and stay."
            return RecipeSearchEnded({}, f"{why} {kept}", self._doubt(losses[best], {}), ended)
        why += f" {recipe_name(values)} is clearly better than the present settings."
        return RecipeSearchEnded(dict(values), why, self._doubt(losses[best], values), ended)

    def _is_overtaken(self, values: Mapping[str, Any]) -> bool:
        """Whether the present settings would end the run at a lower loss than this recipe, if both
        fell on as from the first round to the second.
        """
        before = [loss for settings, loss in self._before if settings in ({}, values)]
        after = [loss for settings, loss in self._losses if settings in ({}, values)]
        planned, losses = self._run.planned, [*before, *after]
        if len(losses) < 4 or planned is None or not all(map(math.isfinite, losses)):
            return False
        logs = math.log if min(losses) > 0 else float
        ahead = math.log(planned / self._length) / math.log(self._length / self._length_before)
        ends = [
            logs(second) + (logs(second) - logs(first)) * ahead
            for first, second in zip(before, after, strict=True)
        ]
        return ends[0] < ends[1]  # the present settings are the first ones

    def _gentlest(self, best: int, near: Sequence[int]) -> Mapping[str, Any]:
        """Of the recipes that are as good as the best one and have its optimizer, the one with the
        lowest rate.
        """
        optimizer = self._losses[best][0].get("optimizer")
        alike = [
            self._losses[n][0] for n in near if self._losses[n][0].get("optimizer") == optimizer
        ]
        return min(alike, key=lambda values: values.get("lr", math.inf))

    def _doubt(self, lowest: float, best: Mapping[str, Any]) -> str:
        """What speaks against the answer; "": nothing known."""
        run, doubts = self._run, list[str]()
        if run.start is not None and abs(run.start - lowest) < stretch.MOVED * abs(run.start):
            doubts.append(
                f"the held-out loss only came from {number(run.start)} to {number(lowest)}, so this"
                " is a guess: train until it falls, then search again from there,"
                " find_recipe(start='continue')"
            )
        before = next((loss for values, loss in self._before if values == best), math.inf)
        if best and before > next((loss for values, loss in self._before if not values), math.inf):
            doubts.append(
                f"after {self._length_before:,} updates the present settings had the lower loss"
            )
        if best and lowest > 0 and before < (1 + CLEARLY) * lowest:
            doubts.append(
                "its loss hardly falls in longer stretches, so a whole run may overfit: compare one"
                " with the best validation of the present settings, or train for fewer updates"
            )
        if run.planned is not None and self._length < 0.2 * run.planned:
            doubts.append(
                f"the longest stretches have {self._length:,} of {run.planned:,} updates, and what"
                " happens later in a run (overfitting, for one) does not show in them"
            )
        if best and run.normalizes and "schedule_free" in str(best.get("optimizer")):
            doubts.append(
                "the model has BatchNorm, whose statistics are those of other weights than the"
                " ones that a schedule-free optimizer evaluates"
            )
        return "; ".join(doubts)


def _warmup(settings: Settings, planned: int | None) -> float:
    """The share of the run in which the rate rises first."""
    if isinstance(settings.warmup, float):
        return settings.warmup
    return min(0.5, settings.warmup / planned) if planned else 0.0


def _loss(loss: float) -> str:
    return number(loss) if math.isfinite(loss) else "diverged"
