"""strategy='launch' under an accelerate config that asks for DeepSpeed: what is planned, and a whole job on two CPU processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

import workbench as wb
from tests.engine.problems import labelled, plain_net, sgd
from tests.launch.launched import ended
from workbench.launch.accelerate.command import LaunchPlan, plan
from workbench.settings import Settings, SettingsError

CONFIG = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 2, "num_machines": 1, "use_cpu": True,
    "mixed_precision": "no",
    "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "zero3_init_flag": True},
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def planned(config: Path, own: dict[str, Any] | None = None, **settings: Any) -> LaunchPlan:
    return plan(Settings.make(strategy="launch", launch={"config_file": str(config), **(own or {})}, **settings), "cpu")


def own_file(folder: Path, **parts: Any) -> dict[str, str]:
    file = folder / "zero.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, **parts}))
    return {"deepspeed_config_file": str(file)}


def test_without_deepspeed_it_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.launch.zeroing.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="pip install deepspeed"):
        planned(config)
    found = planned(config, devices=1)
    assert found.shards is None
    assert any("one process has nobody to share with" in note for note in found.notes)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were: the plan asks for no more."""
    monkeypatch.setattr("workbench.launch.zeroing.find_spec", lambda name: name)


@pytest.mark.usefixtures("installed")
def test_what_does_not_hold_is_noted(config: Path) -> None:
    found = planned(config)
    assert found.shards == "DeepSpeed"
    assert found.environment()["WORKBENCH_SHARDS"] == "DeepSpeed"
    assert "--use_deepspeed" in found.options
    assert "--multi_gpu" not in found.options
    said = " ".join(found.notes)
    assert "gradient_accumulation_steps=4; the bench's own accumulate_grad_batches= holds" in said
    assert "gradient_clipping=1.0; the bench's own gradient_clip_val= holds" in said
    assert "zero3_init_flag=True has no effect" in said
    assert "gradient" not in " ".join(planned(config, accumulate_grad_batches=4, gradient_clip_val=1.0).notes)
    plain = planned(config, {"zero_stage": 0})
    assert plain.shards is None
    assert "--multi_gpu" in plain.options
    assert any("stage 0 is plain" in note for note in plain.notes)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"bf16": {"enabled": True}}, "precision='bf16-mixed'"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param.device='nvme'"),
        ({"zero_optimization": {"stage": 2, "zero_quantized_gradients": True}}, "zero_quantized_gradients=True"),
        ({"zero_optimization": 2}, "has no 'zero_optimization'"),
        ({"curriculum_learning": {"enabled": True}}, "'curriculum_learning', which the bench's loop does not know of"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(config: Path, tmp_path: Path, parts: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(config, own_file(tmp_path, **parts))
    assert words in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_a_file_of_deepspeeds_own(config: Path, tmp_path: Path) -> None:
    parts = {"optimizer": {"type": "AdamW"}, "train_batch_size": "auto", "bf16": {"enabled": "auto"}}
    found = planned(config, own_file(tmp_path, **parts))
    assert found.shards == "DeepSpeed"
    assert [note for note in found.notes if "optimizer" in note] == [
        "the DeepSpeed config has optimizer={'type': 'AdamW'}; the bench's own optimizer= holds."
    ]
    with pytest.raises(SettingsError, match=r"nowhere\.json"):
        planned(config, {"deepspeed_config_file": "nowhere.json"})


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with ended(tmp_path / "wb"):
        yield tmp_path / "wb"


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_thread")
def test_two_ranks_train_as_one_process_and_the_model_comes_home(root: Path, config: Path) -> None:
    pytest.importorskip("deepspeed")
    data, model, twin = labelled(96), plain_net(), plain_net()
    settings = {"max_epochs": 2, "lr": 0.05, "accelerator": "cpu", "gradient_clip_val": 0.1, "accumulate_grad_batches": 2}
    made = wb.Workbench(model, train=data, val=data, loss=F.cross_entropy, optimizer=sgd, root=root, **settings)
    run = made.fit(strategy="launch", launch={"config_file": str(config)}, batch_size=8).result()
    one = wb.Workbench(twin, train=data, val=data, loss=F.cross_entropy, optimizer=sgd, root=root, **settings)
    expected = one.fit(strategy="thread", batch_size=16).result()
    assert (run.status, run.step) == ("finished", 6)
    for name in ("loss", "grad_norm", "grad_norm_clipped"):
        np.testing.assert_allclose(run.history[name], expected.history[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(run.validation["val_loss"], expected.validation["val_loss"], rtol=1e-5)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    assert run.folder is not None
    assert "DeepSpeed, ZeRO stage 3" in (run.folder / "metrics.jsonl").read_text()

    made.set(strategy="launch", launch={"config_file": str(config)}, batch_size=8)
    assert made.validate().result()["val_loss"] == pytest.approx(expected.validation["val_loss"][-1], rel=1e-4)
