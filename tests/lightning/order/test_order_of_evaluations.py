"""Validation, test and prediction by themselves: hooks in Lightning's order, with the same results."""

import pytest
import torch

from tests.lightning import modules
from tests.lightning.both import boring, by_workbench, loader, same_order
from tests.lightning.recorder import ALL, STEPS

pytestmark = pytest.mark.usefixtures("one_thread")


class Scored(boring.BoringModel):
    """Logs in every stage."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch))

    def test_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log_dict({"test_loss": loss, "test_double": 2 * loss})
        return loss

    def predict_step(self, batch, batch_idx):
        return self(batch) + batch_idx

    def on_test_epoch_end(self):
        self.log("test_end", 3.0)


@pytest.mark.parametrize("hooks", [ALL, STEPS], ids=["all", "steps alone"])
@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
@pytest.mark.parametrize("limit", [1.0, 2])
def test_evaluations(verb, limit, hooks, tmp_path):
    sides = {"validate": "val", "test": "test", "predict": "predict"}
    how = {
        "train": loader(),
        "val": loader(12, 4, 3),
        f"limit_{sides[verb]}_batches": limit,
        "hooks": hooks,
    }
    ours, theirs = same_order(Scored, tmp_path, verb, **how)
    if verb == "predict":
        assert len(ours.extra["result"]) == (3 if limit == 1.0 else 2)
        for mine, other in zip(ours.extra["result"], theirs.extra["result"], strict=True):
            assert torch.equal(mine, other)
    else:
        (expected,) = theirs.extra["result"]
        assert ours.extra["result"] == pytest.approx(expected, rel=1e-6)
        assert expected


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_modules_that_say_what_evaluation_mode_is(verb, tmp_path):
    ours, _ = same_order(modules.Frozen, tmp_path, verb, train=loader(), val=loader(12, 4, 3))
    assert ours.module.training


def test_an_evaluation_between_fits_leaves_no_trace(tmp_path):
    heard = by_workbench(Scored, tmp_path, train=loader(), val=loader(12, 4, 3), max_epochs=2)
    bench, lines = heard.extra["bench"], list(heard.tape.lines)
    bench.validate().result()
    heard.tape.lines.clear()
    bench.fit().result()
    assert heard.lines() == [
        line for line in lines if line.split()[0] in {x.split()[0] for x in heard.lines()}
    ]
