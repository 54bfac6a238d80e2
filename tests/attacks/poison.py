"""A good record, and what a stranger may make of one."""

import json
import os
import shutil

import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net

SCRIPT = "<script>alert(1)</script>"
DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = [
    None,
    True,
    -1,
    10**400,
    2**60,
    1e308,
    float("nan"),
    float("inf"),
    SCRIPT,
    "",
    [],
    {},
    [SCRIPT],
    {SCRIPT: SCRIPT},
    [[[[]]]],
]


def bench(root, **settings):
    return wb.Workbench(
        plain_net(), train=labelled(), val=labelled(20), loss=F.cross_entropy, root=root, accelerator="cpu", batch_size=8,
        max_epochs=2, **settings,
    )  # fmt: skip


def good(root):
    """A fit with a live change, a check and checkpoints; its folder."""
    with bench(root, checkpoint_every=4, gradient_clip_val=1.0) as b:
        job = b.fit()
        run = job.result()
    return run.folder


def another(folder, name="0007-fit"):
    """A copy of a run's folder beside it."""
    path = folder.with_name(name)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder, path)
    return path


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_header(folder, **values):
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def raw_header(folder, text):
    (folder / "run.json").write_text(text)


def a_pipe(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def edited(folder, kind, **values):
    """In the first event of this kind."""
    lines = lines_of(folder)
    found = next(line for line in lines if line["type"] == kind)
    found.update(values)
    write(folder, lines)


def without(lines, kind):
    return [line for line in lines if line["type"] != kind]


NO_RECORDS = {
    "created is beyond any float": lambda f: edit_header(f, created=10**400),
    "created is not a number": lambda f: edit_header(f, created=float("nan")),
    "created is a list": lambda f: edit_header(f, created=[1]),
    "kind is a number": lambda f: edit_header(f, kind=3),
    "settings are a text": lambda f: edit_header(f, settings="lr=1"),
    "parameters are a list": lambda f: edit_header(f, task={"model": "Net", "parameters": [1]}),
    "pid is a text": lambda f: edit_header(f, pid="1"),
    "pid_started is beyond any float": lambda f: edit_header(f, pid_started=10**400),
    "deep JSON": lambda f: raw_header(f, '{"kind": ' + DEEP + "}"),
    "a number of 5000 digits": lambda f: raw_header(f, '{"created": ' + "9" * 5000 + "}"),
    "no object": lambda f: raw_header(f, "[]"),
    "no UTF-8": lambda f: (f / "run.json").write_bytes(b'{"kind": "\xff"}'),
    "larger than any header": lambda f: raw_header(f, '{"kind": "' + "x" * (1 << 23) + '"}'),
    "a pipe called run.json": lambda f: a_pipe(f, "run.json"),
    "a folder called run.json": lambda f: ((f / "run.json").unlink(), (f / "run.json").mkdir()),
    "a pipe called metrics.jsonl": lambda f: a_pipe(f, "metrics.jsonl"),
    "a folder called metrics.jsonl": lambda f: (
        (f / "metrics.jsonl").unlink(),
        (f / "metrics.jsonl").mkdir(),
    ),
}
"""What makes a folder no record: it is skipped, and named once."""

BAD_LINES = {
    "step is null": lambda f: edited(f, "StepsDone", step=None),
    "step is a text": lambda f: edited(f, "StepsDone", step=SCRIPT),
    "step is beyond any array": lambda f: edited(f, "StepsDone", step=10**400),
    "a billion rows": lambda f: edited(f, "StepsDone", rows=10**9),
    "a billion rows of nothing": lambda f: edited(f, "StepsDone", rows=10**9, columns={}),
    "rows below 0": lambda f: edited(f, "StepsDone", rows=-1),
    "every 0th update": lambda f: edited(f, "StepsDone", every=0),
    "columns are a list": lambda f: edited(f, "StepsDone", columns=[1]),
    "a column is no base64": lambda f: edited(f, "StepsDone", columns={"loss": "%%%%"}),
    "a column is a number": lambda f: edited(f, "StepsDone", columns={"loss": 7}),
    "a column is too short": lambda f: edited(f, "StepsDone", columns={"loss": "AAAA"}),
    "seconds are not a number": lambda f: edited(f, "StepsDone", seconds=float("nan")),
    "a metric is a text": lambda f: edited(f, "Validated", metrics={"val_loss": SCRIPT}),
    "metrics are a list": lambda f: edited(f, "Validated", metrics=[1, 2]),
    "a status of nobody's": lambda f: edited(f, "RunEnded", status='"><script>alert(1)</script>'),
    "an error that is a number": lambda f: edited(f, "RunEnded", error=7),
    "a value saved that is a text": lambda f: edited(f, "Saved", value=SCRIPT),
    "settings are a list": lambda f: edited(f, "RunStarted", settings=[1]),
    "layers are numbers": lambda f: edited(f, "RunStarted", layers=[1, 2]),
    "groups of groups": lambda f: edited(f, "RunStarted", groups=[[["a"]]]),
    "a deep setting": lambda f: edited(
        f,
        "RunStarted",
        settings={"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
    ),
    "a type that is a list": lambda f: edited(f, "Validated", type=[]),
    "deep JSON": lambda f: (f / "metrics.jsonl").open("a").write('{"type": ' + DEEP + "}\n"),
    "no JSON": lambda f: (f / "metrics.jsonl").open("ab").write(b"\xff\xfe\n"),
    "a change at no update": lambda f: write(
        f,
        [
            *lines_of(f)[:3],
            {"type": "Changed", "step": None, "values": {"lr": 1.0}},
            *lines_of(f)[3:],
        ],
    ),
}
"""Lines that are no events: they are left out, and the rest of the record is read."""
