"""What only shows on a GPU: half precision with its scaler, steps guarded on the device, no wait in the hot loop."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import workbench as wb
from tests.engine.problems import labelled, noisy_net, plain_net
from workbench.engine import loop
from workbench.events import Message, StepsDone
from workbench.instruments.finite import NonFiniteError

pytestmark = pytest.mark.gpu
fused = functools.partial(torch.optim.AdamW, fused=True)


def bench(tmp_path, samples=None, model=None, **settings):
    calm = {"accelerator": "cuda", "root": tmp_path, "batch_size": 10, "max_epochs": 4, "lr": 0.01}
    return wb.Workbench(
        model or plain_net(),
        train=samples or labelled(400),
        val=labelled(60, seed=2),
        loss=F.cross_entropy,
        **{**calm, **settings},
    )


def spoiled(rows=(205,)):
    x, y = labelled(400).tensors
    x = x.clone()
    x[list(rows)] = float("nan")
    return TensorDataset(x, y)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_mixed_precision_learns_what_full_precision_learns(tmp_path, precision):
    mixed = bench(tmp_path, precision=precision).fit().result()
    full = bench(tmp_path).fit().result()
    assert mixed.metrics["val_loss"] == pytest.approx(full.metrics["val_loss"], rel=0.1)
    assert not np.array_equal(mixed.history["loss"], full.history["loss"])


def test_a_step_that_the_scaler_leaves_out_moves_no_schedule(tmp_path):
    """The first scale (65536) is too high for a loss times 1000: steps are left out until it fits."""
    run = wb.Workbench(
        plain_net(), train=labelled(400), root=tmp_path, accelerator="cuda", precision="16-mixed", max_epochs=1,
        batch_size=10, lr=1e-4, lr_schedule="linear", loss=lambda output, y: 1000 * F.cross_entropy(output, y),
    ).fit().result()  # fmt: skip
    skipped = np.nan_to_num(run.history["skipped"]) == 1
    assert skipped[0]
    assert not skipped[-1]
    rates = run.history["lr"]
    for at in np.flatnonzero(skipped[:-1]):
        assert rates[at + 1] == rates[at]


def test_guarded_steps_leave_the_weights_whole(tmp_path):
    b = bench(tmp_path, spoiled(), on_nonfinite="skip", optimizer=fused, shuffle=False)
    run = b.fit().result()
    assert run.status == "finished"
    assert all(bool(torch.isfinite(p).all()) for p in b.model.parameters())
    assert np.flatnonzero(~np.isfinite(run.history["loss"])).tolist() == [
        20 + 40 * epoch for epoch in range(4)
    ]
    assert any("update 20" in event.text for event in run.events if isinstance(event, Message))


def test_the_weights_before_bad_numbers_are_kept_by_a_guard(tmp_path):
    b = bench(tmp_path, spoiled(), optimizer=fused, shuffle=False)
    with pytest.raises(NonFiniteError, match=r"update 20.*such updates were not taken"):
        b.fit().result()
    assert all(bool(torch.isfinite(p).all()) for p in b.model.parameters())


def test_skip_without_a_guard_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fused=True"):
        bench(tmp_path, on_nonfinite="skip", optimizer=torch.optim.SGD).fit().result()


@pytest.mark.parametrize("settings", [
    {}, {"gradient_clip_val": 0.5}, {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    {"accumulate_grad_batches": 4}, {"precision": "bf16-mixed"}, {"weight_averaging": "ema"}, {"lr_schedule": "cosine"},
    {"optimizer": fused, "on_nonfinite": "skip"},
])  # fmt: skip
def test_no_update_waits_for_the_device(tmp_path, monkeypatch, settings):
    """torch itself raises where an update would wait; flushes, which may, are left out."""
    plain = loop.train_step
    seen = []

    def watched(session, window):
        if session.state.step < 3:  # the first updates allocate
            return plain(session, window)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            seen.append(session.state.step)
            return plain(session, window)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(loop, "train_step", watched)
    bench(tmp_path, model=noisy_net(), pin_memory=True, **settings).fit().result()
    assert len(seen) > 20


def test_the_norms_of_clipped_updates_are_those_of_the_cpu(tmp_path):
    settings = {
        "gradient_clip_val": 0.3,
        "accumulate_grad_batches": 2,
        "shuffle": False,
        "max_epochs": 2,
    }
    device = bench(tmp_path, **settings).fit().result()
    cpu = bench(tmp_path, **{**settings, "accelerator": "cpu"}).fit().result()
    layers = [
        np.concatenate(
            [event.array("layer_norms") for event in run.events if isinstance(event, StepsDone)]
        )
        for run in (device, cpu)
    ]
    np.testing.assert_allclose(*layers, rtol=2e-3, atol=1e-5)
    for name in ("loss", "grad_norm", "grad_norm_clipped"):
        np.testing.assert_allclose(
            device.history[name], cpu.history[name], rtol=2e-3, atol=1e-5, err_msg=name
        )
    assert (cpu.history["grad_norm"] > 0.3).any()
