"""What `bench.watch` calls at validations: the run is the same with it, and what it returns is kept."""

import collections
import io
import unittest.mock
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.learners import Learner
from tests.engine.problems import labelled, noisy_net
from workbench.engine.validation import watch
from workbench.engine.validation.sample_items import items_of
from workbench.events import Message, Sampled
from workbench.runs.samples import SAMPLES, SIDE, Item, Sample, write_items
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def bench(tmp_path, model=None, **settings):
    calm = {"max_epochs": 3, "batch_size": 10, "root": tmp_path}
    loss = {} if isinstance(model, Learner) else {"loss": F.cross_entropy}
    return wb.Workbench(
        model or noisy_net(),
        train=labelled(),
        val=labelled(30, seed=2),
        **loss,
        **{**calm, **settings},
    )


def warnings_of(run):
    return [e.text for e in run.events if isinstance(e, Message) and e.level == "warning"]


def pixels(png):
    """The bytes of an uncompressed PNG row by row, without filters: what was written."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    size = int.from_bytes(png[33:37])
    raw = zlib.decompress(png[41 : 41 + size])
    return np.frombuffer(raw, np.uint8).reshape(height, -1)[:, 1:].reshape(height, width, -1)


def test_a_run_is_the_same_with_and_without_what_watches_it(tmp_path):
    """Also where the function draws random numbers, trains the model's statistics and changes its batch."""
    plain = bench(tmp_path, weight_averaging="ema").fit().result()
    model = noisy_net()
    watched = bench(tmp_path, model, weight_averaging="ema")

    def meddle(batch, outputs):
        x, _ = batch
        torch.rand(3), np.random.rand()
        model.train()(x)
        x.zero_(), outputs.zero_()
        return "seen"

    watched.watch(meddle)
    run = watched.fit().result()
    np.testing.assert_array_equal(run.history["loss"], plain.history["loss"])
    for name, values in plain.validation.items():
        np.testing.assert_array_equal(run.validation[name], values)
    assert [(s.step, s.name, s.texts) for s in run.samples] == [
        (step, "meddle", {"": "seen"}) for step in plain.validation["step"]
    ]
    assert not plain.samples


def test_it_gets_the_first_batch_and_what_the_validation_step_returned(tmp_path):
    got = []
    b = bench(tmp_path, Learner())
    b.watch(lambda batch, outputs: got.append((batch, outputs)) or "")
    b.fit(max_epochs=1).result()
    (((x, y), loss),) = got
    first = labelled(30, seed=2)
    assert torch.equal(x, torch.stack([first[i][0] for i in range(10)]))
    assert y.shape == (10,)
    assert loss.ndim == 0


def test_a_large_output_is_not_copied_and_a_small_one_in_its_container_is(tmp_path, monkeypatch):
    class Output(collections.OrderedDict):
        """As a model of transformers returns it."""

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.__dict__[key] = value

    got = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            output = Output()
            output["small"], output["large"] = self.layer(x), self.layer(x).repeat(1, 50)
            got.append(output)
            return output

    monkeypatch.setattr(watch, "LARGE", 10 * 3 * 4)
    b = wb.Workbench(
        Model(),
        train=labelled(),
        val=labelled(30, seed=2),
        loss=lambda output, y: F.cross_entropy(output["small"], y),
        batch_size=10,
        max_epochs=1,
        root=tmp_path,
    )
    seen = []
    b.watch(lambda batch, outputs: seen.append((outputs, got[-1])) or "")
    b.fit().result()
    ((handed, own),) = seen
    assert type(handed) is Output
    assert handed.large.data_ptr() == own.large.data_ptr()
    assert handed.small.data_ptr() != own.small.data_ptr()
    assert torch.equal(handed.small, own.small)


def test_an_error_is_told_once_and_the_run_goes_on(tmp_path):
    b = bench(tmp_path)

    def fails(batch, outputs):
        raise RuntimeError("no picture today")

    end = b.watch(fails)
    b.watch(lambda batch, outputs: {"score": 0.5})
    run = b.fit().result()
    assert run.status == "finished"
    assert len(run.validation["step"]) == 3
    first, second = warnings_of(run)
    assert "watch: fails failed" in first
    assert "no picture today" in first
    assert "0.5 (float) under 'score'" in second
    assert "neither an image nor a text" in second
    end()
    b.watch(lambda batch, outputs: "fine")
    assert not any("fails" in text for text in warnings_of(b.fit().result()))


def test_an_oserror_of_the_function_is_its_own(tmp_path, monkeypatch):
    b = bench(tmp_path)

    def labelled_pictures(batch, outputs):
        return open("/nonexistent/font.ttf").read()

    b.watch(labelled_pictures)
    run = b.fit(max_epochs=1).result()
    (text,) = warnings_of(run)
    assert "watch: labelled_pictures failed" in text
    assert 'open("/nonexistent/font.ttf")' in text

    b = bench(tmp_path)
    full = unittest.mock.Mock(side_effect=OSError("no space left"))
    monkeypatch.setattr(watch, "write_items", full)
    b.watch(lambda batch, outputs: "seen")
    (text,) = warnings_of(b.fit(max_epochs=1).result())
    assert "what <lambda> returned could not be kept (no space left)" in text
    assert "Traceback" not in text


def test_a_cell_that_runs_again_replaces_its_function(tmp_path):
    b = bench(tmp_path)
    cell = "def look(batch, outputs): return 'version {}'"
    ends = []
    for version in range(3):
        space = {"__name__": "__main__"}
        exec(cell.format(version), space)
        ends.append(b.watch(space["look"]))
    for text in "ab":
        b.watch(lambda batch, outputs, text=text: text)
    ends[0]()  # it is no longer there
    run = b.fit(max_epochs=1).result()
    assert [sample.texts[""] for sample in run.samples] == ["version 2", "a", "b"]
    ends[2]()
    assert len(b.fit(max_epochs=1).result().samples) == 2


@pytest.mark.parametrize(
    ("value", "shape", "note"),
    [
        (torch.rand(3, 4, 6), (4, 6, 3), ""),
        (torch.rand(1, 4, 6).bfloat16(), (4, 6, 1), ""),
        (np.zeros((4, 6, 3), np.uint8), (4, 6, 3), ""),
        (np.ones((4, 6), bool), (4, 6, 1), ""),
        (np.array([[0, 7], [3, 1]]), (2, 2, 1), "values from 0 to 7"),
        (torch.tensor([[-1.0, float("nan")]]), (1, 2, 1), "values from -1 to -1, 1 not finite"),
        (torch.zeros(1, 3000, 10), (1000, 4, 1), ""),
    ],
    ids=["CHW", "grey", "HWC", "mask", "classes", "not finite", "large"],
)
def test_arrays_become_pictures(value, shape, note):
    ((item,), left_out) = items_of(value, "f")
    assert (pixels(item.png).shape, item.note, left_out) == (shape, note, 0)
    assert max(shape) <= SIDE


def test_values_keep_their_colours_and_labels():
    batch = torch.tensor([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1)
    items, left_out = items_of({"in": batch, "said": ["a", "b"]}, "f")
    assert [item.label for item in items] == ["in/0", "in/1", "in/2", "said/0", "said/1"]
    assert [int(pixels(item.png).item()) for item in items[:3]] == [0, 128, 255]
    assert items_of(torch.zeros(100, 1, 2, 2), "f")[1] == 36
    assert left_out == 0


def test_a_matplotlib_figure_is_drawn_and_closed():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, _ = pyplot.subplots()
    ((item,), _) = items_of(figure, "f")
    assert item.png.startswith(b"\x89PNG")
    assert len(item.png) > 1000
    assert not pyplot.fignum_exists(figure.number)
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(item.png))
    ((again,), _) = items_of(image, "f")
    assert np.array_equal(pixels(again.png)[..., :3], np.asarray(image.convert("RGB")))


def test_pictures_share_the_room_of_a_file_and_the_rest_is_counted(tmp_path):
    """Noise of 1024 x 1024 has 3 MB as PNG."""
    noise = torch.rand(2, 3, SIDE, SIDE)
    small = [noise[0, :, :9, :9]] * 9  # they leave their room to the large ones
    items, left_out = items_of({"noise": noise, "small": small, "said": "é"}, "f")
    long = Item("long", text="é" * 20_000)
    write_items(tmp_path, "00000005-0.json", [long, *[long] * 20, *items], left_out)
    crowded = Sample(5, 0, "f", tmp_path, "00000005-0.json")
    assert crowded.left_out > 0
    assert f"<p>{crowded.left_out} left out</p>" in crowded._repr_html_()
    # what comes after the large ones has its place
    assert list(crowded.images) == [f"small/{n}" for n in range(9)]

    write_items(tmp_path, "00000006-0.json", items, left_out)
    sample = Sample(6, 0, "f", tmp_path, "00000006-0.json")
    assert sample.left_out == 0
    assert list(sample.images) == ["noise/0", "noise/1", *crowded.images]
    assert [item.note for item in sample.items] == [*["at 1/3 of its size"] * 2, *[""] * 10]
    assert pixels(sample.images["noise/0"]).shape == (342, 342, 3)
    assert "left out" not in sample._repr_html_()


def test_a_figure_that_is_larger_than_it_says_is_shrunk(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with pyplot.rc_context({"savefig.bbox": "tight"}):
        figure, axes = pyplot.subplots(figsize=(11, 4))
        axes.plot([1, 2], label="a long legend " * 4)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        ((item,), _) = items_of(figure, "f")
    assert SIDE * 0.9 < int.from_bytes(item.png[16:20]) <= SIDE


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "NoneType"),
        (torch.zeros(5, 7, 9), "no image: HW, CHW"),
        ({"a": nn.ReLU()}, "under 'a'"),
    ],
    ids=["nothing", "shape", "module"],
)
def test_what_is_neither_image_nor_text_is_named(value, words):
    with pytest.raises(TaskError, match=words):
        items_of(value, "f")


def test_what_cannot_be_called_with_a_batch_and_outputs_is_refused_at_once(tmp_path):
    b = bench(tmp_path)
    for wrong in (b.model, lambda batch: "x", "f"):
        with pytest.raises(TaskError, match="batch and the model's outputs"):
            b.watch(wrong)


def test_samples_of_a_run_that_continues_and_of_a_packed_one(tmp_path):
    b = bench(tmp_path)
    b.watch(lambda batch, outputs: outputs[None, None])
    first = b.fit(max_epochs=2).result()
    more = b.fit("continue", max_epochs=3).result()
    assert [s.step for s in more.samples] == [5, 10, 15]
    b.delete(first)
    assert all(sample.images for sample in more.samples)
    other = wb.Run.unpack(more.pack(tmp_path / "run.tar"), tmp_path / "other")
    assert [s.images for s in other.samples] == [s.images for s in more.samples]


def test_a_run_keeps_so_many_bytes_and_the_first_and_newest_in_any_case(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "ALL", 4000)
    b = bench(tmp_path, max_epochs=9)
    b.watch(lambda batch, outputs: "x" * 900)
    first = b.fit().result()
    kept = [sample.step for sample in first.samples]
    assert (kept[0], kept[-1]) == (5, 45)
    assert 3 <= len(kept) <= 4
    more = b.fit("continue", max_epochs=12).result()  # those of the run before count, too
    kept = [sample.step for sample in more.samples]
    assert (kept[0], kept[-1]) == (5, 60)
    assert len(list((more.folder / SAMPLES).iterdir())) == len(kept) <= 4


def test_files_of_a_stranger_are_read_within_limits(tmp_path):
    b = bench(tmp_path)
    b.watch(lambda batch, outputs: "<script>alert(1)</script>")
    run = b.fit(max_epochs=1).result()
    (sample,) = run.samples
    assert "<script>" not in sample._repr_html_()
    file = run.folder / SAMPLES / sample.file
    huge = "iVBORw0KGgoAAAANSUhEUgAAdTAAAHUwCAAAAAA="  # a PNG that says 30000 x 30000 pixels
    for content, words in (
        ('{"items": [{"png": "' + huge + '"}], "left_out": 0}', "pixels a side"),
        ('{"items": [{"png": "<svg>"}], "left_out": 0}', "base64"),
        ('{"items": 3, "left_out": 0}', "no samples"),
        ('{"items": [], "left_out": 0}' + " " * (1 << 21), "more than"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=words):
            wb.Run.open(run.folder).samples[0].items
    outside = Sampled(5, 0, "f", "../run.json")
    assert not run.from_events([*run.events, outside], run.folder).samples[1:]
