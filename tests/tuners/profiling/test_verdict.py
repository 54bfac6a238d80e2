"""The sentence of a profile: the largest part that is too large, and what helps against it."""

import pytest
import torch

from workbench.events import OperatorTime
from workbench.tuners.profiling.recording import PYTHON, READ, _covered
from workbench.tuners.profiling.verdict import Setup, _unfused, verdict

LONG = (
    OperatorTime("aten::mm", 4, 0.6),
    OperatorTime("aten::add", 4, 0.2),
    OperatorTime(PYTHON, 1, 9.0),
)
SHORT = (OperatorTime(READ, 1, 9.0), OperatorTime("aten::add", 100_000, 0.5))
MODEL = {"forward": 4.0, "backward": 5.0, "optimizer": 1.0}
GPU = Setup(on_cpu=False)


@pytest.mark.parametrize(
    ("parts", "busy", "operators", "setup", "said"),
    [
        ({**MODEL, "data": 16.3}, None, LONG, Setup(), ["62% of an update is waiting for data", "num_workers (now 0)"]),
        ({**MODEL, "data": 16.3}, 0.3, LONG, Setup(on_cpu=False, workers=4), ["62%", "now 4"]),
        ({**MODEL, "data": 16.3}, None, LONG, Setup(own_batches=True), ["your DataLoader"]),
        ({**MODEL, "data": 1.0, "first batch": 9.0}, None, LONG, Setup(workers=2), ["persistent_workers=True"]),
        ({**MODEL, "data": 1.0, "first batch": 9.0}, None, LONG, Setup(workers=2, persistent=True), ["now 2"]),
        ({**MODEL, "optimizer": 6.0}, None, LONG, Setup(unfused="AdamW"), ["The optimizer takes 40%", "AdamW(…, fused=True)"]),
        ({**MODEL, "optimizer": 6.0}, None, LONG, Setup(), ["The optimizer takes 40%", "larger batches"]),
        ({**MODEL, "optimizer": 6.0, "data": 20.0}, None, LONG, Setup(unfused="SGD"), ["57%", "waiting for data"]),
        ({**MODEL, "compile": 3.0}, None, LONG, Setup(), ["compiles again for 23%", "drop_last=True"]),
        ({**MODEL, "sync": 8.0}, None, LONG, Setup(), ["Rank 0 waits", "44%"]),
        ({**MODEL, "hooks": 5.0}, None, LONG, Setup(), ["Hooks and callbacks take 33%"]),
        ({**MODEL, "transfer": 5.0}, 0.8, LONG, GPU, ["to the device takes 33%", "pin_memory=True"]),
        ({**MODEL, "workbench": 5.0}, None, LONG, Setup(), ["track_grad_norm=None"]),
        (MODEL, 0.97, LONG, GPU, ["busy 97% of the time", "75% of it in gemm", "compute bound", "bf16-mixed"]),
        (MODEL, 0.97, LONG, Setup(on_cpu=False, precision="bf16-mixed"), ["compute bound"]),
        (MODEL, 0.75, LONG, GPU, ["busy 75% of the time", "mostly compute bound"]),
        (MODEL, 0.2, LONG, GPU, ["busy 20% of the time, and waits for the Python", "compile=True"]),
        (MODEL, 0.2, LONG, Setup(on_cpu=False, compiles=True), ["a larger batch_size makes them longer."]),
        (MODEL, None, LONG, Setup(), ["Forward and backward take 90%", "aten::mm 75%", "compute bound"]),
        (MODEL, None, SHORT, Setup(), ["in 100000 operators of 5 µs", "larger batch_size"]),
        (MODEL, None, (OperatorTime("gloo:all_reduce", 4, 0.6),), Setup(), ["100% of the time in operators", "waits for them"]),
        (MODEL, None, (), Setup(), ["compute bound"]),
        ({"other": 9.0}, None, LONG, Setup(on_cpu=False), ["cannot be timed in parts"]),
        ({}, None, (), Setup(), ["no time that could be measured"]),
    ],
)  # fmt: skip
def test_the_largest_part_is_named_with_its_remedy(parts, busy, operators, setup, said):
    kernels = () if busy is None else (OperatorTime("void gemm<float>(int)", 2, 0.3), OperatorTime("copy", 1, 0.1))  # fmt: skip
    text = verdict(parts, busy, operators, kernels, setup)
    for part in said:
        assert part in text
    assert text.endswith(".")
    assert ("bf16-mixed" in text) == ("bf16-mixed" in said)


def test_an_optimizer_that_can_be_fused_and_is_not():
    weights = [torch.zeros(2, requires_grad=True)]
    assert _unfused(torch.optim.AdamW(weights))
    assert not _unfused(torch.optim.AdamW(weights, fused=True))
    assert not _unfused(torch.optim.RMSprop(weights))


def test_kernels_that_run_at_once_count_once():
    assert _covered([(0, 10), (5, 12), (20, 21), (6, 7)]) == 13
    assert _covered([]) == 0
