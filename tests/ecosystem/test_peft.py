"""peft: adapters on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import workbench as wb
from tests.ecosystem.test_transformers import gpt, own_loss
from tests.ecosystem.twins import fit, losses, plain

peft = pytest.importorskip("peft")


def adapted(**more: Any) -> Any:
    given = {
        "r": 2,
        "target_modules": ["c_attn"],
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
        **more,
    }
    return peft.get_peft_model(gpt(), peft.LoraConfig(**given))


def batches() -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 40, (3, 8, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": own, "labels": own} for own in ids]


def test_only_the_adapter_trains(tmp_path: Path) -> None:
    model = adapted()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = plain(model, batches(), own_loss)
    bench = wb.Workbench(model, train=torch.utils.data.DataLoader(batches(), batch_size=None), root=tmp_path, lr=1e-2, max_epochs=2,
                         accelerator="cpu")  # fmt: skip
    assert losses(bench.fit().result()) == expected
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora" in name for name in moved)


def test_a_run_is_resumed_and_saved(tmp_path: Path) -> None:
    model = adapted(lora_dropout=0.0)
    expected = plain(model, batches(), own_loss, epochs=3)
    bench = wb.Workbench(model, train=torch.utils.data.DataLoader(batches(), batch_size=None), root=tmp_path, lr=1e-2, max_epochs=1,
                         accelerator="cpu")  # fmt: skip
    run = bench.fit().result()
    assert losses(bench.fit(start=run.id, max_epochs=3).result()) == expected
    model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_the_finder_leaves_no_trace(tmp_path: Path) -> None:
    model = adapted()
    expected = plain(model, batches(), own_loss)
    bench = wb.Workbench(model, train=torch.utils.data.DataLoader(batches(), batch_size=None), root=tmp_path, lr=1e-2, max_epochs=2,
                         accelerator="cpu")  # fmt: skip
    bench.find_lr(num_training=10).result()
    assert losses(bench.fit().result()) == expected


def test_health_finds_nothing(tmp_path: Path) -> None:
    run = fit(
        tmp_path,
        adapted(),
        train=torch.utils.data.DataLoader(batches(), batch_size=None),
        max_epochs=5,
    )
    assert run.health == ()
