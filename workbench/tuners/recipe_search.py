"""Races recipes, each an optimizer with its rate and its schedule: they train for stretches from
the same state on the same batches, and losses on held-out batches are compared.

A stretch is shorter than the run, so it favours what is fast: high rates, no decay, and schedules
that fall early. Three things counter that. Each stretch is a whole run in small, with its warm-up
and its fall to 0, so that no recipe ends at its full rate while another has cooled down. The two
best ones and the present settings train again, longer. Then they are known at two lengths, and the
present settings stay unless another is clearly better, and would be at the end of the run, too, if
both went on falling, at half of the slope between the two lengths. And of two recipes of one
optimizer whose losses are close, the one with the lower rate or the higher decay is taken: where
both have learned what can be learned in a stretch, the other one overfits sooner in the whole run.

A stretch that is a whole run in small is an answer, too. Where the best recipe overfits from the
shorter stretch to the longer one, the run is to be as short as the longer one, whose loss is known,
and not as long as planned.

All stretches have the same number of samples: one with half of the present batch has twice as many
updates. The usual recipes halve the batch where the run has few updates.

The rates of the recipes are those that suit most models, and for a long run the rate of a sweep for
the present optimizer. Muon's updates are scaled to AdamW's, so both have the same rates. In a short
run the decay is higher than usual, since it has less time to act: weights are forgotten over
1 / (rate x decay) updates (Wang & Aitchison 2024).
Sources: Jamieson & Talwalkar, "Non-stochastic Best Arm Identification" (2016), for the rounds;
Defazio et al., "The Road Less Scheduled" (2024); Jordan et al., "Muon" (2024).
"""

from __future__ import annotations

import math
import statistics
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
from workbench.runs.printable import paragraph, printable
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.techniques.averaging import has_batch_norm
from workbench.techniques.schedules import is_built_in
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
FINALISTS = 3
"""How many train in the second round: the two best recipes, and the present settings; of three in
all only the best one.
"""
SWEPT = 0.1
"""A sweep for the present optimizer may take at most this share of all updates."""
CLEARLY = 0.05
"""The present settings are replaced only if their loss is higher by this share
(`stretch.excess`)."""
LEARNED = 0.02
"""Losses below this share of the loss at the start are as good as equal."""
SLOWS = 0.5
"""Beyond its longest stretch a loss is expected to fall at this share of its slope between the two
stretches, on a logarithmic scale: at the whole slope it would reach what few runs do.
"""
CLOSE = 1.75
"""Rates with a smaller ratio count as equal."""
SHORT, SMALLEST = 1000, 4
"""Runs of at most so many updates, with batches of at least so many samples, try half of them."""
DECAY, FORGETS = 0.3, 240
"""The decay of the usual recipes is `FORGETS` divided by the updates of the run, and at most this;
it is at least 0.01, AdamW's own.
"""
OF_RECIPE = (
    "optimizer",
    "lr",
    "weight_decay",
    "batch_size",
    "lr_schedule",
    "warmup",
    "gradient_clip_val",
    "gradient_clip_algorithm",
)
"""The settings that a recipe may have."""
_FALLS: Mapping[str, Any] = {"lr_schedule": "cosine", "warmup": 0.3}
_STAYS: Mapping[str, Any] = {"lr_schedule": "constant", "warmup": 0.05}


@dataclass(frozen=True)
class RecipeSearch(Drawable):
    """The result of a race of recipes. `best`: the settings of the best one, for
    `bench.set(**found.best)`; empty: the present settings stay.

    `reason` says why, `doubt` what speaks against it ("": nothing known), `ended` how the search
    ended. `trials`: each stretch with the settings of its recipe, its updates (counted in batches
    of the present size) and its loss on held-out batches, in order. A recipe with another batch
    size has its own `max_steps`, so that a fit has as many samples; one that overfits has fewer.
    `figure()` and `plot()` draw the trials.
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
        width = max((len(recipe_name(t.values)) for t in self.trials), default=0)
        rows = [
            f"  {recipe_name(t.values):<{width}}  {t.updates:>7}  {t.loss:>13.4g}"
            + (
                "  best"
                if self.best and t.updates == longest and recipe_name(t.values) == answer
                else ""
            )
            for t in self.trials
        ]
        columns = [f"  {'recipe':<{width}}  {'updates':>7}  {'held-out loss':>13}"] if rows else []
        return "\n".join(
            map(
                printable,
                [
                    f"RecipeSearch: {answer} ({self.ended})",
                    *paragraph(self.reason),
                    *paragraph(self.doubt),
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
        smallest = min(run.share_of(values) for values in recipes)
        first, second = lengths(len(recipes), run.updates - run.swept, run.planned, smallest)
        try:
            recipes = race.train(recipes, first)
            if second:
                race.train(recipes[: finalists(len(recipes))], second)
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
            recipe = _as_long(values, settings)
            try:
                with open_session(task, settings.replace(**recipe)) as session:
                    session.task.refuse_optimizer(session.settings)
                    session.task.refuse_unused(recipe)
            except (SettingsError, TaskError) as error:
                if self.recipes is not None:
                    raise
                left_out.append(f"{recipe_name(recipe)} ({error})")
            else:
                recipes += [] if recipe in recipes else [recipe]
        smallest = min(run.share_of(values) for values in recipes)
        most = most_recipes(run.updates - run.swept, smallest)
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
    batch_size: int
    """The present one."""
    halves: bool
    """Whether recipes may have half of it."""
    held: int
    """How many batches of the present size judge."""
    follows: bool
    """Whether the batches that judge have the batch size of the recipe."""
    normalizes: bool
    """Whether the model has batch norm."""
    schedules: bool
    """Whether the user gave a scheduler, which no setting may join."""
    why_not: str
    """Why no held-out data can compare recipes; "": they can."""

    def share_of(self, values: Mapping[str, Any]) -> float:
        """The batch size of a recipe as a share of the present one."""
        return float(values.get("batch_size", self.batch_size) / self.batch_size)

    def updates_of(self, values: Mapping[str, Any], length: int) -> int:
        """The updates of a recipe for as many samples as `length` updates have now."""
        return max(1, round(length / self.share_of(values)))


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
        start, why_not = stretch.starting_loss(session, max(lengths(2, updates, planned)))
        first, swept, suggestion = session.optimizers[0], 0, None
        request = lr_finder.LRRequest()
        alone = len(session.optimizers) == 1
        if not why_not and alone and request.num_training <= SWEPT * updates:
            swept = request.num_training
            suggestion = lr_finder.run(session, request, lambda event: None, Mailbox()).suggestion
        size, by_val = settings.batch_size, start is not None
        return _Run(
            updates,
            planned,
            start,
            first.base_lr,
            suggestion,
            swept,
            size,
            size % 2 == 0
            and size >= SMALLEST
            and planned is not None
            and planned <= SHORT
            and session.data.batch_size("train") is not None,
            stretch.HELD_OUT if by_val else stretch.held_out(session),
            not by_val or session.data.batch_size("val") is not None,
            has_batch_norm([task.model]),
            any(not is_built_in(own.scheduler, settings) for own in first.schedules),
            why_not,
        )


def _as_long(values: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """A recipe whose fit has as many samples as that of the present settings."""
    if "batch_size" not in values or settings.max_steps is None:
        return values
    times = settings.batch_size / values["batch_size"]
    return {**values, "max_steps": max(1, round(settings.max_steps * times))}


def usual_recipes(run: _Run) -> list[Mapping[str, Any]]:
    """The recipes that are tried besides the present settings, the most promising ones first."""
    sizes = {"batch_size": run.batch_size // 2} if run.halves else {}
    falls = {} if run.schedules else _FALLS
    # a schedule-free optimizer evaluates weights that the statistics of BatchNorm do not belong to
    has_free = not run.schedules and not run.normalizes
    decay = None  # the optimizer's own
    if run.planned is not None:
        updates = run.planned * (2 if run.halves else 1)
        decay = float(f"{max(0.01, min(DECAY, FORGETS / updates)):.2g}")

    def free(
        lr: float, decay: float | None, schedule: Mapping[str, Any] = _STAYS
    ) -> list[Mapping[str, Any]]:
        values = {"optimizer": "schedule_free_adamw", "lr": lr, "weight_decay": decay}
        return [{**values, **schedule, **sizes}] if has_free else []

    def falling(optimizer: Any, lr: float, decay: float | None) -> list[Mapping[str, Any]]:
        return [{"optimizer": optimizer, "lr": lr, "weight_decay": decay, **falls, **sizes}]

    momentum = {"sgd": {"momentum": 0.9, "nesterov": True}}
    swept: list[Mapping[str, Any]] = []
    if run.swept_rate is not None and _ratio(run.swept_rate, run.present) >= CLOSE:
        swept = [{"lr": float(f"{run.swept_rate:.2g}")}]
    return [
        *swept,
        *free(3e-2, decay),
        *falling("adamw", 1e-2, decay),
        *free(1e-2, decay),
        *free(3e-2, None, _FALLS),
        *(falling(momentum, 0.1, 5e-4) if run.normalizes else []),
        *falling("adamw", 3e-3, decay),
        *falling("muon", 3e-2, decay),
        *([] if has_free else falling("adamw", 3e-2, None)),
    ]


def _ratio(value: float, other: float) -> float:
    return max(value / other, other / value) if value and other else math.inf


def most_recipes(updates: int, smallest: float = 1.0) -> int:
    """How many recipes can have a stretch each in a search of so many updates. smallest: the batch
    size of some of them, as a share of the present one; those have more updates in a stretch.
    """
    return max(3, int(FIRST * updates / (stretch.FEWEST * min(1.0, smallest))))


def finalists(count: int) -> int:
    """How many of so many recipes train in the second round."""
    return min(FINALISTS, max(2, count - 1))


def lengths(
    count: int, updates: int, planned: int | None, smallest: float = 1.0
) -> tuple[int, int]:
    """The updates of a stretch of so many recipes in the first round, and in the second one, both
    with batches of the present size; 0: there is no second one, since its stretches would be no
    longer. smallest: as in `most_recipes`.
    """
    most = planned or updates
    fewest = math.ceil(stretch.FEWEST * min(1.0, smallest))
    first = max(fewest, round(FIRST * updates / count))
    second = min(most, round((updates - first * count) / finalists(count)))
    if count <= 2 or second <= first:
        return min(most, updates // count), 0
    return min(most, first), second


class _Stopped(Exception):
    """Raised when a Stop has arrived."""


class _Stretch(NamedTuple):
    """What a stretch of a recipe has shown."""

    values: Mapping[str, Any]
    """The settings of the recipe."""
    loss: float
    """The held-out loss at its end."""
    training: float
    """The mean training loss of its last quarter."""


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
        self._stretches: list[_Stretch] = []
        """Those of the latest round."""
        self._before: list[_Stretch] = []
        """Those of the round before."""
        self._length = self._length_before = 0

    def train(self, recipes: Sequence[Mapping[str, Any]], length: int) -> list[Mapping[str, Any]]:
        """Train each for a stretch of this length; returns them, the present settings first, and
        then the best one.
        """
        self._before, self._length_before = self._stretches, self._length
        self._stretches, self._length = [], length
        for values in recipes:
            if self._stopped():
                raise _Stopped
            self._stretches.append(self._stretch(values, length))
            self._emit(RecipeTrial(dict(values), length, self._stretches[-1].loss))
        losses = {n: stretched.loss for n, stretched in enumerate(self._stretches) if n}
        ranked = sorted(losses, key=losses.__getitem__)
        finite = {n: loss for n, loss in losses.items() if math.isfinite(loss)}
        excess = self._excess(finite) if finite else {}
        near = [number for number in ranked if excess.get(number, math.inf) < 1 + CLEARLY]
        gentlest = self._gentlest(ranked[0], near or ranked[:1])
        others = [recipes[number] for number in ranked if recipes[number] != gentlest]
        return [{}, gentlest, *others]

    def _stretch(self, values: Mapping[str, Any], length: int) -> _Stretch:
        """Train a recipe for so many samples as `length` updates have now; all recipes are judged
        by the same held-out samples.
        """
        run, chosen = self._run, self._settings.replace(**values)
        share, training = run.share_of(values), list[float]()

        def keep(loss: float) -> bool:
            training.append(loss)
            return False

        loss = stretch.loss_after(
            self._task,
            chosen,
            run.updates_of(values, length),
            by_val=run.start is not None,
            broken=keep,
            held=max(1, round(run.held / share)) if run.follows else run.held,
            warmup=_warmup(chosen, run.planned, share),
        )
        last = training[-math.ceil(len(training) / 4) :]
        return _Stretch(values, loss, statistics.fmean(last) if last else math.inf)

    def _excess(self, losses: Mapping[int, float]) -> dict[int, float]:
        """How many times the lowest loss each of these finite ones is (`stretch.excess`)."""
        start = self._start(losses)
        by_number = {float(number): loss for number, loss in losses.items()}
        excess = stretch.excess(by_number, start, abs(start), LEARNED)
        return {int(number): times for number, times in excess.items()}

    def _start(self, losses: Mapping[int, float]) -> float:
        """The loss before the stretches; the highest of these where it is not known."""
        return max(losses.values()) if self._run.start is None else self._run.start

    def conclusion(self, left_out: Sequence[str]) -> RecipeSearchEnded:
        """The result, from the losses of the last round."""
        run, ended = self._run, "some recipes tried" if left_out else "all recipes tried"
        listed = ", ".join(
            f"{recipe_name(stretched.values)}: {_loss(stretched.loss)}"
            for stretched in sorted(self._stretches, key=lambda stretched: stretched.loss)
        )
        of = f" of {run.planned:,}" if run.planned is not None else ""
        why = f"held-out loss after {self._length:,}{of} updates: {listed}."
        if left_out:
            why += f" Not tried: {'; '.join(left_out)}."
        losses = {n: s.loss for n, s in enumerate(self._stretches) if math.isfinite(s.loss)}
        if not losses:
            return RecipeSearchEnded({}, f"{why} No recipe has a finite loss.", "", ended)
        excess = self._excess(losses)
        best = min(losses, key=losses.__getitem__)
        if excess.get(0, math.inf) < 1 + CLEARLY:  # those of the present settings
            kept = "No recipe is clearly better than the present settings, so these stay."
            doubt = self._doubt(losses[best], {})
            if 0 < (1 + CLEARLY) * losses[best] < losses[0]:
                start = "the highest one" if run.start is None else "the loss at the start"
                kept = (
                    f"Beside {start}, {number(self._start(losses))}, the lowest loss and that of"
                    " the present settings count as equal, so these stay."
                )
                large = (
                    f"{recipe_name(self._stretches[best].values)} has a clearly lower loss than the"
                    " present settings: compare a fit of each. If the inputs or the targets are"
                    " large numbers, scale them to a mean of 0 and a standard deviation of 1, then"
                    " search again."
                )
                doubt = f"{large} {doubt}".rstrip()
            return RecipeSearchEnded({}, f"{why} {kept}", doubt, ended)
        near = [n for n in losses if n and excess[n] < 1 + CLEARLY]
        values = self._gentlest(best, near)
        if self._is_overtaken(values):
            kept = "In the last round the loss falls faster with the present settings. They stay."
            return RecipeSearchEnded({}, f"{why} {kept}", self._doubt(losses[best], {}), ended)
        why += f" {recipe_name(values)} is clearly better than the present settings."
        if run.share_of(values) < 1:
            why += (
                f" With batches of {values['batch_size']} in place of {run.batch_size}, a fit of as"
                f" many samples has {1 / run.share_of(values):.3g} times as many updates. It may"
                " take so many times as long."
            )
        doubt = self._doubt(losses[best], values)
        if self._overfits(values):
            values = {**values, "max_steps": run.updates_of(values, self._length)}
            why += (
                f" It overfits: from {self._length_before:,} to {self._length:,} updates its"
                " held-out loss moves away from its training loss, and hardly falls. So its run is"
                f" as short as this stretch, max_steps={values['max_steps']}."
            )
        return RecipeSearchEnded(dict(values), why, doubt, ended)

    def _overfits(self, values: Mapping[str, Any]) -> bool:
        """Whether the held-out loss of this recipe did not fall clearly from the first round to the
        second, and moved away from its training loss.
        """
        pair = [s for s in (*self._before, *self._stretches) if s.values == values]
        if len(pair) < 2 or self._run.planned is None or self._length >= self._run.planned:
            return False
        before, after = pair
        size = CLEARLY * abs(after.loss)
        fall = before.loss - after.loss
        return fall < size and before.training - after.training > fall + size

    def _is_overtaken(self, values: Mapping[str, Any]) -> bool:
        """Whether the present settings would end the run at a lower loss than this recipe, if both
        fell on at `SLOWS` of their slope from the first round to the second.
        """
        before = [s.loss for s in self._before if s.values in ({}, values)]
        after = [s.loss for s in self._stretches if s.values in ({}, values)]
        planned, losses = self._run.planned, [*before, *after]
        if len(losses) < 4 or planned is None or not all(map(math.isfinite, losses)):
            return False
        logs = math.log if min(losses) > 0 else float
        ahead = math.log(planned / self._length) / math.log(self._length / self._length_before)
        ends = [
            logs(second) + SLOWS * (logs(second) - logs(first)) * ahead
            for first, second in zip(before, after, strict=True)
        ]
        return ends[0] < ends[1]  # the present settings are the first ones

    def _gentlest(self, best: int, near: Sequence[int]) -> Mapping[str, Any]:
        """Of the recipes that are as good as the best one and have its optimizer, the one with the
        lowest rate and, of those, the highest decay.
        """
        optimizer = self._stretches[best].values.get("optimizer")
        recipes = [self._stretches[n].values for n in near]
        return min(
            (values for values in recipes if values.get("optimizer") == optimizer),
            key=lambda values: (values.get("lr", math.inf), -(values.get("weight_decay") or 0.0)),
        )

    def _doubt(self, lowest: float, best: Mapping[str, Any]) -> str:
        """What speaks against the answer; "": nothing known."""
        run, doubts = self._run, list[str]()
        if run.start is not None and abs(run.start - lowest) < stretch.MOVED * abs(run.start):
            doubts.append(
                f"The held-out loss only went from {number(run.start)} to {number(lowest)}, so this"
                " is a guess. Train until it falls, then search again from there:"
                " find_recipe(start='continue')."
            )
        before = next((s.loss for s in self._before if s.values == best), math.inf)
        if best and before > next((s.loss for s in self._before if not s.values), math.inf):
            doubts.append(
                f"After {self._length_before:,} updates the present settings had the lower loss."
            )
        if best and lowest > 0 and before < (1 + CLEARLY) * lowest:
            doubts.append(
                "Its loss hardly falls in longer stretches. Compare its fit with the best"
                " validation of the present settings. A metric may improve where the loss does not."
            )
        if run.planned is not None and self._length < 0.2 * run.planned:
            doubts.append(
                f"The longest stretches have {self._length:,} of {run.planned:,} updates. They do"
                " not show what happens later in a run, such as overfitting."
            )
        if best and run.normalizes and "schedule_free" in str(best.get("optimizer")):
            doubts.append(
                "The model has BatchNorm. Its statistics belong to other weights than those that a"
                " schedule-free optimizer evaluates."
            )
        return " ".join(doubts)


def _warmup(settings: Settings, planned: int | None, share: float) -> float:
    """The share of the run in which the rate rises first; share: that of the present batch size."""
    if isinstance(settings.warmup, float):
        return settings.warmup
    return min(0.5, settings.warmup * share / planned) if planned else 0.0


def _loss(loss: float) -> str:
    return number(loss) if math.isfinite(loss) else "diverged"
