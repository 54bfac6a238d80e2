"""What the user's code changes, and no checkpoint of a script has."""

from __future__ import annotations

import inspect
from textwrap import indent

import pytest

from workbench.export.inputs.changing_state import changing_state
from workbench.task.metrics import over_epoch

CHANGES = {
    "self.calls += 1": "self.calls",
    "if self.training:\n    self.seen = x": "self.seen",
    "y = self.rnn(x, self.hidden)\nself.hidden = y.detach()": "self.hidden",
    "self.mean = 0.9 * self.mean + 0.1 * x.mean()": "self.mean",
    "self.losses.append(x)": "self.losses",
    "x = next(self.stream)": "self.stream",
    "self.rng = torch.Generator().manual_seed(0)": "a generator of its own",
    "self.x, self.rng = 1, random.Random(0)": "a generator of its own (self.rng)",
    "global count\ncount = count + 1": "changes count",
    "counts[0] += 1": "counts[0]",
    "return torch.rand(3, generator=noise)": "draws from noise",
    "return torch.rand(3, generator=typed)": "draws from typed",
    "counts[0] = counts[0] + 1": "changes counts[0]",
    "history.append(x)": "changes history",
    "return x + next(numbers)": "numbers",
    "return [a for a, _ in zip(x, numbers)]": "draws from numbers",
    "Net.steps = Net.steps + 1": "changes Net.steps",
    "type(self).steps += 1": "self.steps",
    "if x.sum() > 0:\n    self.body.training = False": "self.body",
    "self.count = getattr(self, 'count', 0) + 1": "self.count",
    "self.read = x": "self.read",  # by a method that may come before
}
GENERATORS = {
    "class Net:\n    rng = np.random.default_rng(0)": "Net has a generator of its own (rng)",
    "class Net:\n    rng: object = np.random.default_rng(0)": "Net has a generator of its own (rng)",
    "def noisy(x, rng=np.random.default_rng(0)):\n    return x": "noisy has a generator of its own",
    "def noisy(x, *, rng=random.Random(0)):\n    return x": "noisy has a generator of its own",
}
EPOCHS = {
    "if self.current_epoch == 3:\n    self.alpha = 1.0": True,
    "self.alpha = 1.0": True,  # another value than it began with
    "self.alpha = 0.5": False,
}
SAFE = [
    "self.features = self.body(x)\nreturn self.features",  # set at once, before it is read
    "self.weight.data = x",
    "self.running = x  # registered",
    "self.outputs.append(x)  # emptied after each epoch",
    "x = x + 1\ncounts = {}\ncounts['a'] = 1",
    "self.body.weight.requires_grad = True",
    "self.hidden = x",  # read after a call that sets it
    "os.environ['A'] = 'b'\nsizes = []\nsizes.append(1)",
]


def net(body: str) -> str:
    return f"""\
import torch
noise = torch.Generator().manual_seed(0)
count, counts, history = 0, [0], []
typed: torch.Generator = torch.Generator()
numbers = itertools.count()
KINDS = {{}}


def register(name):
    def decorate(kind):
        KINDS[name] = kind
        return kind

    return decorate


@register("net")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.outputs = 0, []
        self.register_buffer("running", torch.zeros(3))

    def forward(self, x):
{indent(body, " " * 8)}

    def extra(self, x):
        return x + self.read

    def training_step(self, x):
        y = self(x)
        return y + self.hidden

    def on_validation_epoch_end(self):
        self.outputs.clear()
"""


@pytest.mark.parametrize("body", CHANGES)
def test_found(body: str) -> None:
    assert any(CHANGES[body] in clause for clause in changing_state(net(body)))


@pytest.mark.parametrize("code", GENERATORS)
def test_generators_are_found(code: str) -> None:
    assert GENERATORS[code] in "".join(changing_state(code))


@pytest.mark.parametrize("body", EPOCHS)
def test_only_what_an_epoch_sets_to_its_first_value_is_emptied(body: str) -> None:
    hook = f"\n    def on_train_epoch_end(self):\n{indent(body, ' ' * 8)}\n"
    code = net("self.alpha = self.alpha * 2").replace(
        "self.calls, self.outputs = 0, []", "self.alpha, self.outputs = 0.5, []"
    )
    assert any("self.alpha" in clause for clause in changing_state(code + hook)) == EPOCHS[body]


@pytest.mark.parametrize("body", SAFE)
def test_not_found(body: str) -> None:
    assert not list(changing_state(net(body)))


def test_a_generator_of_a_gan_is_no_source_of_numbers_and_a_static_method_has_no_self() -> None:
    code = (
        "class Generator(torch.nn.Module):\n    pass\n"
        "class Gan:\n    def __init__(self):\n        self.generator = Generator()\n"
        "class Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.scale = 2\n        return x\n"
    )
    assert not list(changing_state(code))


VOCABULARY = """
words, unread = {}, iter("abc")


class Lang:
    def __init__(self):
        self.index = {}

    def sentence(self, text):
        for word in text.split():
            self.add_word(word)

    def add_word(self, word):
        self.index[word] = len(self.index)


def number(word):
    words[word] = len(words)
    return words[word]


lang = Lang()
lang.sentence("a b c")
lang.add_word("d")
x = [number(word) for word in "abc"]
"""


def test_what_only_makes_the_data_changes_nothing_later() -> None:
    assert not list(changing_state(VOCABULARY, ("torch.nn.Linear(lang.size, len(words))", "x")))


@pytest.mark.parametrize(
    ("more", "arguments"),
    [
        ("class Texts:\n    def __getitem__(self, i):\n        return lang.add_word('e')", ()),
        (
            "def collate(batch):\n    return lang.add_word('e')\nloader = DataLoader(x, collate_fn=collate)",
            (),
        ),
        ("later = [lang.add_word]", ()),
        ("later = (lang.add_word(w) for w in 'ab')", ()),
        ("later = lambda w: lang.add_word(w)", ()),
        ("later = getattr(lang, 'add_word')", ()),
        ("def later():\n    yield lang.add_word('e')\nlater()", ()),
        (
            "class Net(torch.nn.Module):\n    def forward(self, x):\n        return lang.add_word(x)\nNet().forward(1)",
            (),
        ),
        ("", ("lambda o, t: lang.add_word(o)",)),
    ],
)
def test_what_may_be_called_later_changes_a_state(more: str, arguments: tuple[str, ...]) -> None:
    assert "Lang.add_word changes self.index" in changing_state(f"{VOCABULARY}\n{more}", arguments)


def test_schedulers_keep_their_attributes() -> None:
    code = "class Steps(LRScheduler):\n    def step(self):\n        self.turns += 1\n"
    assert not list(changing_state(code))


def test_the_state_of_an_optimizer_is_kept() -> None:
    step = "    def step(self):\n        self.state[0] = {}\n        self.state[0].setdefault('mu', 0)\n        self.calls += 1\n"
    assert changing_state(f"class Lars(torch.optim.Optimizer):\n{step}") == (
        "Lars.step changes self.calls",
    )
    assert "Net.step changes self.state" in changing_state(f"class Net(torch.nn.Module):\n{step}")


METRIC = """\
class Error:
    def __init__(self):
        self.batches, self.count, self.kept, self.seen = [], torch.zeros(1), {}, 0
    def reset(self):
        self.batches: list = []
        self.count = torch.zeros(1)
        self.kept.clear()
        self.seen = self.seen + 1
    def update(self, output, y):
        self.batches.append(y)
        self.count += 1
        self.kept["last"] = y
    def compute(self):
        return sum(self.batches) / self.count
"""


def test_a_metric_begins_each_validation_anew() -> None:
    """Its reset is called before; what that only changes stays."""
    assert [str(change) for change in changing_state(METRIC)] == ["Error.reset changes self.seen"]
    assert any(
        "self.batches" in change
        for change in changing_state(METRIC.replace("def reset", "def restart"))
    )


def test_the_code_of_over_epoch_keeps_no_state() -> None:
    assert changing_state(inspect.getsource(over_epoch)) == ()
