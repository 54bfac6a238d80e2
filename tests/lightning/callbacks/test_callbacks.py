"""Lightning's callbacks, given to its Trainer and to the bench: the same losses, the same end, the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import workbench as wb
from tests.lightning.both import Losses, boring, loader, pl, same_state, trainer

pytestmark = pytest.mark.usefixtures("one_thread")
callbacks = pl.callbacks


class Rising(boring.BoringModel):
    """Its validation loss falls for two epochs and rises then."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", float(abs(self.current_epoch - 1)))
        self.log("val_accuracy", float(-abs(self.current_epoch - 1)))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


CASES = {
    "early stopping": lambda: callbacks.EarlyStopping("val_loss", patience=2),
    "a metric that is to rise": lambda: callbacks.EarlyStopping(
        "val_accuracy", mode="max", patience=1
    ),
    "a threshold": lambda: callbacks.EarlyStopping("val_loss", stopping_threshold=0.5, patience=9),
    "a change that is too small": lambda: callbacks.EarlyStopping(
        "val_accuracy", mode="max", min_delta=3.0, patience=1
    ),
    "windows by epoch": lambda: callbacks.GradientAccumulationScheduler({1: 2, 3: 4}),
    "EMA": lambda: callbacks.EMAWeightAveraging(decay=0.8, update_starting_at_step=4),
    "EMA without buffers": lambda: callbacks.EMAWeightAveraging(decay=0.9, use_buffers=False),
    "SWA's rates": lambda: callbacks.StochasticWeightAveraging(
        0.5, swa_epoch_start=3, annealing_epochs=2
    ),
    "two": lambda: [
        callbacks.EarlyStopping("val_loss", patience=9),
        callbacks.EarlyStopping("val_accuracy", mode="max", patience=1),
    ],
}


def both(make: Any, root: Any, *, own: bool) -> tuple[wb.Workbench, Any, Any, list[float]]:
    """own: the module brings the callbacks itself."""

    class Own(Rising):
        def configure_callbacks(self) -> Any:
            return make()

    torch.manual_seed(0)
    theirs = Own() if own else Rising()
    seen = Losses()
    listed = make() if isinstance(make(), list) else [make()]
    host = trainer(max_epochs=5, num_sanity_val_steps=0, callbacks=[seen, *([] if own else listed)])
    host.fit(theirs, loader(32), loader(8, seed=2))
    torch.manual_seed(0)
    module = Own() if own else Rising()
    given = {} if own else {"callbacks": listed}
    with pytest.warns(UserWarning, match="became"):
        bench = wb.Workbench(
            module,
            train=loader(32),
            val=loader(8, seed=2),
            root=root,
            accelerator="cpu",
            max_epochs=5,
            **given,
        )
    return bench, host, theirs, seen.values


@pytest.mark.parametrize("own", [False, True], ids=["given", "the module's own"])
@pytest.mark.parametrize("case", CASES)
def test_a_fit_is_lightnings(case: str, own: bool, tmp_path: Any) -> None:
    bench, host, theirs, losses = both(CASES[case], tmp_path, own=own)
    with bench:
        run = bench.fit().result()
        assert run.epochs == host.current_epoch
        assert run.step == host.global_step
        if case == "windows by epoch":
            same_state(bench.model, theirs, exact=False)
            return
        assert run.history["loss"].tolist() == torch.tensor(losses).numpy().tolist()
        if "SWA" not in case:
            same_state(bench.model, theirs, exact="EMA" not in case)


def test_the_best_checkpoints_are_those_that_it_asks_for(tmp_path: Any) -> None:
    asked = callbacks.ModelCheckpoint(
        tmp_path / "theirs", monitor="val_accuracy", mode="max", save_top_k=2
    )
    host = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[asked],
    )
    host.fit(Rising(), loader(32), loader(8, seed=2))
    with (
        pytest.warns(UserWarning, match=r"ModelCheckpoint became monitor='val_accuracy', save_top_k=2 .*dirpath and filename are not used"),
        wb.Workbench(
            Rising(), train=loader(32), val=loader(8, seed=2), root=tmp_path, accelerator="cpu", max_epochs=5,
            callbacks=[callbacks.ModelCheckpoint(tmp_path / "theirs", monitor="val_accuracy", mode="max", save_top_k=2)],
        ) as bench,
    ):  # fmt: skip
        run = bench.fit().result()
    best = sorted({one.value for one in run.checkpoints if one.value is not None}, reverse=True)[:2]
    assert best == sorted((float(value) for value in asked.best_k_models.values()), reverse=True)
