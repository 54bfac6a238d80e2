"""Defines Transfer: the methods of a bench that compare models of several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

from tqdm.std import tqdm

from workbench.bench.arguments import settings_named
from workbench.bench.base import BenchBase
from workbench.settings import Settings, SettingsError, lists_keywords
from workbench.settings.kwargs import SettingsKwargs
from workbench.task import rng
from workbench.task.protocol import Task
from workbench.tuners import stretch
from workbench.tuners.transfer import coordinates
from workbench.tuners.transfer import scaling as laws
from workbench.tuners.transfer.coordinates import CoordinateCheck
from workbench.tuners.transfer.scaling import Scaling
from workbench.values import shown

WIDTH = "width"


class Transfer(BenchBase):
    """What a bench whose model is made by a function can say about other sizes of it."""

    @lists_keywords(SettingsKwargs)
    def coordinate_check(
        self,
        widths: Sequence[int],
        *,
        updates: int = 5,
        seeds: int = 3,
        tolerance: float = 0.25,
        **settings: Unpack[SettingsKwargs],
    ) -> CoordinateCheck:
        """Say which layers change more, or less, in a wide model than in a narrow one: at one
        learning rate, which transfers only where all of them change as much.

        widths: values of the parameter `width` of the function that makes the model, [64, 128,
        256]. updates: how many are taken at the present settings. The outputs of layers for the
        first batch are measured before and after them. seeds: so many models of each width are
        averaged. tolerance: a layer follows if its output and its change grow with at most this
        power of the width, and if its change falls with at most twice that. Source: Yang et al.,
        "Tensor Programs V" (2022), appendix D.1.

        The call returns when all is measured, after seconds. It trains models of its own in this
        process: the bench's model and settings stay as they are, and nothing is recorded.
        """
        overrides = settings_named(settings, self.coordinate_check, others=self._parameters)
        self._check_width("coordinate_check")
        listed = [widths] if isinstance(widths, int) else sorted({*widths})
        if len(listed) < 2 or not all(type(width) is int and width > 0 for width in listed):
            raise SettingsError(
                f"widths={shown(widths)}: give at least two different whole numbers above 0,"
                " widths=[64, 128, 256]."
            )
        check_count("updates", updates)
        check_count("seeds", seeds)
        if type(tolerance) not in (int, float) or not tolerance > 0:
            raise SettingsError(f"tolerance={shown(tolerance)}: give a number above 0, as 0.25.")
        self._check_idle("coordinate_check")
        by_width = []
        for width in listed:
            with self._models({WIDTH: width}, range(seeds), overrides) as models:
                by_width.append([coordinates.measure(*model, updates) for model in models])
        return coordinates.check_of(listed, by_width, float(tolerance))

    @lists_keywords(SettingsKwargs)
    def scaling(
        self,
        *,
        widths: Sequence[int] | None = None,
        batches: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        seeds: int = 2,
        **settings: Unpack[SettingsKwargs],
    ) -> Scaling:
        """Find the best learning rate at several sizes, and the power law that they follow: tune
        small, and `.predict(width=1024)` the rate of a large model.

        widths: values of the parameter `width` of the function that makes the model. batches: batch
        sizes. lengths: numbers of updates; 300 if they are not varied. Give three or more of one
        kind at least. Each kind is varied alone, with the others at their middle size, or as the
        bench has them. seeds: at each size so many models train at rates that differ by factors of
        2, from the setting lr on, until the best one is between two others. It is judged by the
        loss of held-out batches, as in `find_lr(race=True)`; the schedule is compressed to the
        length.

        The call returns when all is measured. It trains models of its own in this process: the
        bench's model and settings stay as they are, and nothing is recorded.
        """
        overrides = settings_named(settings, self.scaling, others=self._parameters)
        sizes = laws.checked_sizes({"widths": widths, "batches": batches, "lengths": lengths})
        if WIDTH in sizes:
            self._check_width("scaling")
        check_count("seeds", seeds)
        self._check_idle("scaling")
        sizes.setdefault("length", [300])
        measured: list[laws.SizeRates] = []
        points = laws.star(sizes)
        with tqdm(total=len(points), desc="scaling", unit="size") as progress:
            for size in points:
                first = measured[0].lr if measured else None
                measured.append(self._rates_at(size, seeds, overrides, first))
                progress.set_postfix_str(f"lr={measured[-1].lr:.2g}", refresh=False)
                progress.update()
        return Scaling(tuple(measured))

    def _rates_at(
        self,
        size: Mapping[str, int],
        seeds: int,
        overrides: Mapping[str, Any],
        first: float | None,
    ) -> laws.SizeRates:
        """The losses and the best rates at one size. first: the rate to begin with; None: the
        present one.
        """
        length = size["length"]
        batch = {"batch_size": size["batch_size"]} if "batch_size" in size else {}
        width = {WIDTH: size[WIDTH]} if WIDTH in size else {}
        with self._models(width, range(seeds), {**overrides, **batch}) as models:

            def losses_at(lr: float) -> list[float]:
                return [_loss(task, chosen.replace(lr=lr), length) for task, chosen in models]

            rates = laws.search(losses_at, models[0][1].lr if first is None else first)
        return replace(rates, size=dict(size))

    @contextmanager
    def _models(
        self, values: Mapping[str, Any], seeds: Sequence[int], overrides: Mapping[str, Any]
    ) -> Iterator[list[tuple[Task, Settings]]]:
        """Context manager with tasks of their own, one for each seed, and their settings."""
        split, rest = self._split(overrides)
        chosen = {**self._recipe.values, **split, **values}
        with rng.preserved():
            models = []
            for offset in seeds:
                seed = self._settings.seed + offset
                prepared = self._recipe.prepare(chosen, seed, self._all_sets())
                alone = prepared.settings.replace(**rest, seed=seed, strategy="thread", devices=1)
                stretch.refuse(prepared.task, alone, "this comparison")
                models.append((prepared.task, alone))
            yield models

    def _check_width(self, method: str) -> None:
        """Raise SettingsError where no function makes the model of a width."""
        if WIDTH not in self._parameters:
            parameters = ", ".join(self._parameters) or "none"
            reason = (
                f"{self._recipe.name} has no such parameter ({parameters})"
                if self._recipe.build is not None
                else "the bench was given a model that is already made"
            )
            raise SettingsError(
                f"{method}(widths=…) needs a function that makes the model of a width, and"
                f" {reason}: wb.Workbench(lambda width=64: …, …)."
            )


def check_count(name: str, value: object) -> None:
    """Raise SettingsError for an argument that is no number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"{name}={shown(value)}: give a whole number above 0.")


def _loss(task: Task, settings: Settings, length: int) -> float:
    """The held-out loss after a stretch at the setting lr."""
    by_val = task.val is not None and settings.limit_val_batches != 0
    warmup = (
        float(settings.warmup) if isinstance(settings.warmup, float) else settings.warmup / length
    )
    return stretch.loss_after(
        task, settings, length, by_val=by_val, held=64 if by_val else None, warmup=min(0.5, warmup)
    )
