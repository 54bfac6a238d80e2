"""`run.save_pretrained`: a run's weights in the form of the library that the model is from; the bench's model does not change."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def bench(root, model, **arguments):
    ids = torch.randint(0, 20, (16, 6), generator=torch.Generator().manual_seed(0))
    data = {"input_ids": ids, "labels": ids[:, 0] % 2}
    return wb.Workbench(model, **{
        "train": data, "val": data, "root": root, "accelerator": "cpu", "enable_progress_bar": False, "batch_size": 8, "lr": 1e-2, **arguments,
    })  # fmt: skip


def test_the_folder_is_read_by_from_pretrained(tmp_path):
    with bench(tmp_path, bert(), checkpoint_every=1, save_top_k=-1) as made:
        run = made.fit(max_epochs=2).result()
        before = copy.deepcopy(made.model.state_dict())
        folder = run.save_pretrained(tmp_path / "last")
        made.runs[-1].save_pretrained(tmp_path / "first", 1)
        assert all(
            torch.equal(value, before[name]) for name, value in made.model.state_dict().items()
        )
    last, first = (
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / name)
        for name in ("last", "first")
    )
    assert folder == tmp_path / "last"
    assert all(torch.equal(value, before[name]) for name, value in last.state_dict().items())
    made.load(run, 1)
    assert all(map(torch.equal, first.parameters(), made.model.parameters()))
    assert not all(map(torch.equal, first.parameters(), last.parameters()))


def test_averaged_weights_are_those_of_the_checkpoint(tmp_path):
    with bench(tmp_path, bert(), weight_averaging="ema", ema_decay=0.5) as made:
        run = made.fit(max_epochs=1).result()
        run.save_pretrained(tmp_path / "there")
        found = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "there")
        assert all(map(torch.equal, found.parameters(), made.model.parameters()))


def test_a_trained_loss_is_no_part_of_it(tmp_path):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, output, y):
            return F.cross_entropy(output * self.weight, y)

    class Small(nn.Linear):
        def save_pretrained(self, folder):
            torch.save(self.state_dict(), folder)

    with wb.Workbench(
        Small(8, 2), train=(torch.randn(16, 8), torch.zeros(16, dtype=torch.long)), loss=Loss(), root=tmp_path, accelerator="cpu",
        enable_progress_bar=False,
    ) as made:  # fmt: skip
        run = made.fit(max_epochs=1).result()
        stored = torch.load(run.save_pretrained(tmp_path / "x.pt"))
        assert stored.keys() == {"weight", "bias"}
        assert torch.equal(stored["weight"], made.model.weight)


def test_a_model_without_it_is_named_with_what_to_use(tmp_path):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bert()

        def forward(self, **batch):
            return self.inner(**batch)

    with wb.Workbench(
        plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        enable_progress_bar=False,
    ) as made:
        run = made.fit(max_steps=1).result()
        with pytest.raises(
            wb.TaskError, match=r"Sequential has no save_pretrained.*state_dict.*to_lightning"
        ):
            run.save_pretrained(tmp_path / "x")
    with (
        bench(tmp_path, Holds()) as made,
        pytest.raises(
            wb.TaskError,
            match=r"its part 'inner' has\. Call bench\.load\(.*bench\.model\.inner\.save_pretrained",
        ),
    ):
        made.fit(max_steps=1).result().save_pretrained(tmp_path / "x")


def test_another_model_is_refused(tmp_path):
    with bench(tmp_path, bert()) as made:
        id = made.fit(max_steps=1).result().id
    other = bert()
    other.classifier = nn.Linear(8, 3)
    with (
        bench(tmp_path, other, dry_run=False) as made,
        pytest.raises(wb.TaskError, match=r"another model: 'classifier\.(weight|bias)' has shape"),
    ):
        made.runs[id].save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_run_without_its_bench_says_so(tmp_path):
    with bench(tmp_path, bert()) as made:
        run = made.fit(max_steps=1).result()
        for apart in (wb.Run.open(run.folder), pickle.loads(pickle.dumps(run))):
            with pytest.raises(wb.TaskError, match="does not know its model: make the bench again"):
                apart.save_pretrained(tmp_path / "x")
        with pytest.raises(FileNotFoundError, match="no checkpoint 7"):
            run.save_pretrained(tmp_path / "x", 7)


def test_a_file_is_refused_as_the_folder(tmp_path):
    (tmp_path / "x").write_text("mine")
    with bench(tmp_path / "runs", bert()) as made:
        run = made.fit(max_steps=1).result()
    with pytest.raises(NotADirectoryError, match=r"folder=.*it is a file"):
        run.save_pretrained(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "mine"
