"""What `workbench train` reads: `key=value`, and a YAML file with the function that makes the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import workbench as wb
from tests import warm
from workbench.bench.config import Config, Target, overrides_from, settings_from
from workbench.settings import SettingsError

FILE = """\
build:
  _target_: model.py:make
  width: 8
  layers: {depth: 2, drop: 0.5}
lr: 1e-2
early_stopping: {monitor: val_loss, patience: 2}
start: auto
root: runs-of-mine
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


# -- key=value


def test_values_are_written_as_in_yaml() -> None:
    texts = [
        "lr=1e-3",
        "devices=[0, 1]",
        "max_time=00:01:00:00",
        "shuffle=false",
        "monitor=val_loss",
        "warmup=.5",
        "a.b=x=y",
    ]
    assert overrides_from([*texts, "weight_decay=None", "min_steps=null"]) == {
        "lr": 1e-3, "devices": [0, 1], "max_time": "00:01:00:00", "shuffle": False, "monitor": "val_loss", "warmup": 0.5,
        "a.b": "x=y", "weight_decay": None, "min_steps": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["--lr=1"], "--lr=1: settings are given as name=value, lr=1e-3."),
        (["lr"], "'lr' is no setting with a value: give name=value"),
        (["lr="], "'lr=' is no setting with a value"),
        (["=1"], "'=1' is no setting with a value"),
        (["build..width=1"], "is no setting with a value"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr={a: 1"], "lr={a: 1 is not valid YAML"),
        (["lr=!!python/object/apply:os.getcwd []"], "is not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_named(texts: list[str], words: str) -> None:
    with pytest.raises(SettingsError) as error:
        overrides_from(texts)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lrr=1", "unknown setting 'lrr'. Did you mean 'lr'?"),
        ("build.width=4", "build.width: train.py is a script"),
        ("start=auto", "start: train.py is a script"),
        ("root=here", "root: train.py is a script"),
        ("early_stopping.patience=3", "give the whole setting, as in early_stopping={patience: 3}"),
    ],
)
def test_of_a_script_settings_alone_are_replaced(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_from(overrides_from([text]), "train.py")
    assert words in str(error.value)


# -- a file


def test_a_file_has_settings_and_functions(file: Path) -> None:
    config = Config.read(file, {})
    assert config.build == Target(
        "build", "model.py:make", {"width": 8, "layers": {"depth": 2, "drop": 0.5}}
    )
    assert (config.data, config.start, config.arguments) == (None, "auto", {"root": "runs-of-mine"})
    assert config.settings == {"lr": 0.01, "early_stopping": {"monitor": "val_loss", "patience": 2}}


def test_each_value_can_be_replaced(file: Path) -> None:
    words = [
        "build.width=16",
        "build.layers.drop=0",
        "lr=1",
        "early_stopping.patience=9",
        "max_epochs=3",
        "start=fresh",
    ]
    config = Config.read(file, overrides_from(words))
    assert config.build.parameters == {"width": 16, "layers": {"depth": 2, "drop": 0}}
    assert config.settings == {
        "lr": 1,
        "early_stopping": {"monitor": "val_loss", "patience": 9},
        "max_epochs": 3,
    }
    assert config.start == "fresh"
    file.write_text("build: model.py:make\n")
    config = Config.read(file, overrides_from(["build.width=16", "data=data.py:digits"]))
    assert config.build == Target("build", "model.py:make", {"width": 16})
    assert config.data == Target("data", "data.py:digits", {})
    assert config.built_by["build"] == {"_target_": "model.py:make", "width": 16}


def test_values_may_refer_to_others(file: Path) -> None:
    file.write_text(
        "build: {_target_: model.py:make, width: 8, hidden: '${build.width}'}\nlr: ${oc.decode:'1e-2'}\n"
    )
    config = Config.read(file, {"build.width": 32})
    assert config.build.parameters == {"width": 32, "hidden": 32}
    assert config.settings == {"lr": 0.01}
    file.write_text("build: model.py:make\nlr: ${no.such}\n")
    with pytest.raises(SettingsError, match=r"small.yaml: .*no"):
        Config.read(file, {})


def test_without_omegaconf_the_extra_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    assert (
        Config.read(file, {}).settings["lr"] == 0.01
    )  # a file without references does not need it
    file.write_text("build: model.py:make\nlr: ${build}\n")
    with pytest.raises(SettingsError) as error:
        Config.read(file, {})
    assert "pip install 'tuning-workbench[config]'" in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr: 1", "does not say what makes the model: give build: model.py:make"),
        ("build: [1]", "build=[1]: give the function, build: model.py:make"),
        ("build: {width: 4}", "give the function"),
        ("build: {_target_: 4}", "give the function"),
        ("build: m.py:f\nbatchsize: 4", "unknown setting 'batchsize'. Did you mean 'batch_size'?"),
        ("build: m.py:f\nloss: mse", "loss is an object, which the function of build returns"),
        ("build: m.py:f\ntrain_loader: x", 'returns: {"model": …, "train": …}'),
        ("build: m.py:f\nbuild: m.py:g", "is there twice"),
        ("- 1", "should hold settings by their names"),
        ("build: !!python/name:os.system ''", "is not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, words: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        Config.read(file, {})
    assert str(error.value).startswith(str(file))
    assert words in str(error.value)


def test_a_value_that_has_no_names_stays(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"lr\.x=3: lr is 0\.01, which has no names"):
        Config.read(file, {"lr.x": 3})


# -- the functions


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, which other tests cannot import."""
    (tmp_path / "of_config.py").write_text(
        "WIDTH = 8\nclass Nets:\n    @staticmethod\n    def make(width=8):\n        return width\n"
        "def make(width, *, deep=False):\n    return {'model': width, 'lr': deep}\n"
    )
    (tmp_path / "imports.py").write_text("import no_such_module\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("of_config", "imports"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_function_is_one_of_a_file_or_of_a_module(code: Path) -> None:
    make = Target.of("build", "of_config.py:make").function(code)
    assert make(3) == {"model": 3, "lr": False}
    assert make.__module__ == "of_config"  # other processes import it, too
    assert Target.of("build", "of_config:Nets.make").function(code)() == 8
    assert Target.of("build", "of_config.make").function(code) is make  # as Hydra writes it


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of_config.py:mak", "build: of_config.py:mak: of_config.py has no 'mak'. Did you mean 'make'?"),
        ("of_config.py:WIDTH", "of_config.py:WIDTH is 8, and no function"),
        ("nowhere.py:make", "nowhere.py:make: there is no file"),
        ("no_such.package:make", "there is no module 'no_such'"),
        ("of_config.py:", "names no function"),
        ("make", "names no function"),
    ],
)  # fmt: skip
def test_a_function_that_is_not_there_is_named(name: str, words: str, code: Path) -> None:
    sys.path.insert(0, str(code))
    with pytest.raises(SettingsError) as error:
        Target.of("build", name).function(code)
    assert words in str(error.value)


def test_a_file_with_the_name_of_another_module_is_refused(code: Path) -> None:
    (code / "json.py").write_text("def make(): ...\n")
    with pytest.raises(SettingsError, match="another module is called 'json'"):
        Target.of("build", "json.py:make").function(code)


def test_a_module_that_the_code_lacks_is_the_codes_own_error(code: Path) -> None:
    sys.path.insert(0, str(code))
    for name in ("imports.py:make", "imports:make"):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            Target.of("build", name).function(code)


# -- a configuration as keyword arguments


def test_a_configuration_is_given_as_keywords(tmp_path: Path) -> None:
    """Its values are recorded as plain ones, and the run exports."""
    (tmp_path / "train.py").write_text(
        "import torch\nfrom omegaconf import OmegaConf\nfrom torch import nn\nimport workbench as wb\n"
        "cfg = OmegaConf.create({'rate': 0.1, 'settings': {'lr': '${rate}', 'max_epochs': 2, 'accelerator': 'cpu',"
        " 'early_stopping': {'monitor': 'val_loss', 'patience': 2}, 'accumulate_grad_batches': {0: 2}}})\n"
        "x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))\ny = x[:, :1]\n"
        "bench = wb.Workbench(nn.Linear(4, 1), train=(x, y), val=(x, y), loss=nn.MSELoss(), **cfg.settings)\n"
        "bench.set(**OmegaConf.create({'find_lr_at': []}))\n"
        "run = bench.fit().result()\nassert type(bench.settings.accumulate_grad_batches) is dict\n"
        "bench.export('out.py')\nbench.close()\n"
    )
    done = warm.python().run("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 updates and a validation repeat the run" in done.stdout
    recorded = json.loads((tmp_path / ".workbench/runs/0001-fit/run.json").read_text())["settings"]
    assert (recorded["lr"], recorded["accumulate_grad_batches"]) == (0.1, {"0": 2})
    assert [stop["patience"] for stop in recorded["early_stopping"]] == [2]


def test_settings_take_one_too() -> None:
    stop = OmegaConf.create({"stop": {"monitor": "val_loss", "patience": 2}})
    settings = wb.Settings.make(early_stopping=stop.stop, find_lr_at=OmegaConf.create([0, 3]))
    assert settings.find_lr_at == wb.Settings.make(find_lr_at=[0, 3]).find_lr_at
    assert settings.replace(early_stopping=stop.stop) == settings
