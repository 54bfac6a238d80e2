"""After a change of the batch size or the optimizer, the rate that a search found is offered anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.events import CurveEnded, Message, RunStarted
from workbench.settings import Settings
from workbench.tuners.learning_rate.rate_change import rate_change
from workbench.ui.panel import Panel

FOUND = Settings(lr=0.01, batch_size=32, optimizer="adamw")


def sweep(suggestion=0.0100249, settings=FOUND, **request):
    start = RunStarted("0001-find_lr", "find_lr", {}, "cpu", request=request)
    return SimpleNamespace(
        kind="find_lr", settings=settings, events=[start, CurveEnded("", (), suggestion)]
    )


def change(*sweeps, ranks=lambda settings: 1, own="", **values):
    return rate_change(sweeps or [sweep()], FOUND.replace(**values), ranks, own)


def test_more_samples_in_an_update():
    assert change(batch_size=128).rates == {"sqrt": 0.02, "linear": 0.04}
    assert change(batch_size=8).rates == {"sqrt": 0.005, "linear": 0.0025}
    assert change(accumulate_grad_batches=4).rates == change(batch_size=128).rates
    two = change(devices=2, ranks=lambda settings: 2 if settings.devices == 2 else 1)
    assert two.rates == {"sqrt": 0.0141, "linear": 0.02}
    assert change(batch_size=128).text == (
        "lr=0.01 was found for 32 samples in an update, and now there are 128. By the square root it becomes 0.02,"
        " and in proportion 0.04: bench.find_lr() measures it."
    )


def test_a_rate_that_was_taken_is_offered_anew():
    assert change(batch_size=128).offers(0.02)
    taken = FOUND.replace(lr=0.02, batch_size=128)

    def changed(**values):
        return rate_change([sweep()], taken.replace(**values), lambda settings: 1, "", [taken])

    assert changed(batch_size=512).rates == {"sqrt": 0.04, "linear": 0.08}
    assert changed(batch_size=512).text.startswith("lr=0.02 was offered for 128 samples")
    assert changed(optimizer="sgd").text.startswith("lr=0.02 was offered for adamw, and now sgd")
    assert changed() is None
    assert changed(lr=0.01, batch_size=32) is None, "it was found for these"


def test_a_rate_that_is_right_for_one_of_several():
    """The same rate was found for 32 samples, and later taken for 128 and for another optimizer."""
    taken = [FOUND.replace(batch_size=128), FOUND.replace(optimizer="sgd", batch_size=8)]

    def changed(**values):
        return rate_change([sweep()], FOUND.replace(**values), lambda settings: 1, "", taken)

    for values in ({}, {"batch_size": 128}, {"optimizer": "sgd", "batch_size": 8}):
        assert changed(**values) is None
    assert changed(batch_size=64).text.startswith("lr=0.01 was found for 32 samples")
    sgd = changed(batch_size=64, optimizer="sgd")
    assert sgd.text.startswith("lr=0.01 was offered for 8 samples")


def test_another_optimizer_has_no_rule():
    told = change(optimizer="sgd", batch_size=128)
    assert told.rates == {}
    assert told.text.startswith("lr=0.01 was found for adamw, and now sgd trains.")
    assert change(optimizer=None, own="RMSprop").text.startswith(
        "lr=0.01 was found for adamw, and now RMSprop trains."
    )
    assert change(optimizer=None, own="adamw") is None


@pytest.mark.parametrize(
    ("sweeps", "values"),
    [
        ([sweep()], {}),
        ([sweep()], {"batch_size": 16, "accumulate_grad_batches": 2}),
        ([sweep()], {"batch_size": 64, "lr": 0.02}),  # another rate than the one found
        ([sweep(None)], {"batch_size": 64}),
        ([sweep(optimizer=1)], {"batch_size": 64}),
        ([sweep(group="head")], {"batch_size": 64}),
        ([sweep(), sweep(settings=FOUND.replace(batch_size=64))], {"batch_size": 64}),
        ([sweep()], {"batch_size": 64, "accumulate_grad_batches": {0: 1, 4: 2}}),
    ],
)
def test_nothing_to_say(sweeps, values):
    assert change(*sweeps, **values) is None


def test_a_person_is_told_and_chooses(tmp_path):
    """The panel offers it at once, with buttons; a fit says it once."""
    with wb.Workbench(plain_net(), train=labelled(64), loss=F.cross_entropy, optimizer="adamw", root=tmp_path,
                      accelerator="cpu", batch_size=8, max_steps=1) as bench:  # fmt: skip
        found = bench.find_lr(num_training=30).result().suggestion
        panel = Panel(bench)

        def told():
            assert panel.dispatcher.drain(60)
            return [text for _, text in panel.notice.lines if "was found for" in text]

        bench.set(lr=found)
        assert told() == []
        bench.set(batch_size=32)
        assert len(told()) == 1
        runs = [bench.fit().result() for _ in range(2)]
        said = [[e.text for e in run.events if isinstance(e, Message)] for run in runs]
        assert [sum("was found for" in text for text in texts) for texts in said] == [1, 0]
        [(number, offers)] = panel.notice.offers.items()
        assert [offer.partition(" (")[2] for offer in offers] == [
            "square root)",
            "in proportion)",
            "",
        ]
        ask = {"type": "ask", "what": "answer_notice", "number": number, "offer": offers[0]}
        panel.canvas._heard(panel.canvas, ask, [])
        assert bench.settings.lr == pytest.approx(2 * found, rel=1e-2)
        assert told() == []
        bench.set(batch_size=64)
        assert panel.dispatcher.drain(60)
        again = "was offered for 32 samples in an update, and now there are 64."
        assert sum(again in text for _, text in panel.notice.lines) == 1
        texts = [e.text for e in bench.fit().result().events if isinstance(e, Message)]
        assert sum(again in text for text in texts) == 1


def test_an_offered_rate_counts_only_where_it_was_taken(tmp_path):
    with wb.Workbench(plain_net(), train=labelled(64), loss=F.cross_entropy, root=tmp_path,
                      accelerator="cpu", batch_size=8, max_steps=1) as bench:  # fmt: skip
        found = bench.find_lr(num_training=30).result().suggestion

        def told(**settings):
            bench.set(**settings)
            return [
                event.text
                for event in bench.fit().result().events
                if isinstance(event, Message) and "samples in an update" in event.text
            ]

        assert len(told(lr=found, batch_size=32)) == 1
        bench.set(batch_size=8)
        assert told(lr=2 * found) == [], "it was offered for 32 samples, and nobody took it"
        bench.set(lr=found, batch_size=32)
        assert told(lr=2 * found) == []
        assert "was offered for 32" in told(batch_size=8)[0]
