"""Secrets in the user's code are not written into scripts, which read the environment instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

import workbench as wb
from tests.export.export_running import PRELUDE, Runner, check, make_bench
from tests.export.source.export_slicing import Workbench, execute, run_cells, run_file, slice_cells
from tests.warm import Warm
from workbench.export.errors import ExportError
from workbench.export.source.rewrite.secret_literals import Secrets
from workbench.export.source.source import slice_call
from workbench.launch.code_line import line

WB = "import workbench as wb\n"
VALUE = "v4lu3-of-the-secret"
MAKE = "bench = wb.Workbench(model)"

CASES = {
    "a name": ('API_KEY = "@"\nmodel = [API_KEY]', 'API_KEY = os.environ["API_KEY"]'),
    "a name in lower case": (
        'hf_token = "@"\nmodel = [hf_token]',
        'hf_token = os.environ["HF_TOKEN"]',
    ),
    "a word inside": (
        'dbPassword = "@"\nmodel = [dbPassword]',
        'dbPassword = os.environ["DB_PASSWORD"]',
    ),
    "with an annotation": ('TOKEN: str = "@"\nmodel = [TOKEN]', 'TOKEN: str = os.environ["TOKEN"]'),
    "bytes": ('SECRET = b"@"\nmodel = [SECRET]', 'SECRET = os.environ["SECRET"].encode()'),
    "one of several": (
        'n, API_KEY = 3, "@"\nmodel = [n, API_KEY]',
        'n, API_KEY = 3, os.environ["API_KEY"]',
    ),
    "in parts": ('API_KEY = "@"[:3] + "@"[3:]\nmodel = 1', None),
    "joined": (
        'API_KEY = ("v4lu3-of"\n    "-the-secret")\nmodel = [API_KEY]',
        'API_KEY = ((os.environ["API_KEY"]',
    ),
    "an f-string": ('n = 1\nAPI_KEY = f"@"\nmodel = [API_KEY]', 'API_KEY = os.environ["API_KEY"]'),
    "a default": (
        'import os\nAPI_KEY = os.getenv("API_KEY", "@")\nmodel = [API_KEY]',
        'API_KEY = os.getenv("API_KEY", os.environ["API_KEY"])',
    ),
    "an alternative": (
        'import os\nAPI_KEY = os.getenv("API_KEY") or "@"\nmodel = [API_KEY]',
        'API_KEY = os.getenv("API_KEY") or os.environ["API_KEY"]',
    ),
    "a keyword": (
        'def load(token): return token\nmodel = [load(token="@")]',
        'model = [load(token=os.environ["TOKEN"])]',
    ),
    "a login by key": (
        'def login(key): return key\nmodel = [login(key="@")]',
        'model = [login(key=os.environ["KEY"])]',
    ),
    "a login": (
        'def login(a): return a\nmodel = [login("@")]',
        'model = [login(os.environ["PASSWORD"])]',
    ),
    "an entry": (
        'cfg = {"api_key": "@", "n": 1}\nmodel = [cfg]',
        'cfg = {"api_key": os.environ["API_KEY"], "n": 1}',
    ),
    "an item": (
        'cfg = {}\ncfg["api_key"] = "@"\nmodel = [cfg]',
        'cfg["api_key"] = os.environ["API_KEY"]',
    ),
    "an attribute": (
        'import types\ncfg = types.SimpleNamespace()\ncfg.api_key = "@"\nmodel = [cfg.api_key]',
        'cfg.api_key = os.environ["API_KEY"]',
    ),
    "dict()": (
        'cfg = dict(api_key="@")\nmodel = [cfg]',
        'cfg = dict(api_key=os.environ["API_KEY"])',
    ),
    "of a class": (
        'class Config:\n    lr = 1\n    API_KEY = "@"\nmodel = [Config.API_KEY]',
        '    API_KEY = os.environ["API_KEY"]',
    ),
    "of a data class": (
        'import dataclasses\n%dataclasses.dataclass\nclass Config:\n    token: str = "@"\nmodel = [Config().token]',
        '    token: str = os.environ["TOKEN"]',
    ),
    "a parameter": (
        'def f(api_key="@", *, token="@"): return api_key\nmodel = [f()]',
        'def f(api_key=os.environ["API_KEY"]',
    ),
    "in a function": (
        'def f():\n    password = "@"\n    return password\nmodel = [f()]',
        '    password = os.environ["PASSWORD"]',
    ),
    "by its shape": (
        'x = "sk-v4lu3-of-the-secret"\nmodel = [x]',
        'x = os.environ["API_KEY"]',
    ),
    "a default of a field": (
        'import dataclasses\n%dataclasses.dataclass\nclass Config:\n    token: str = dataclasses.field(default="@")\nmodel = [Config().token]',
        '    token: str = dataclasses.field(default=os.environ["TOKEN"])',
    ),
    "a pair": (
        'import os\nfor name, value in [("MY_API_KEY", "@"), ("OTHER", "x")]:\n    os.environ[name] = value\nmodel = [os.environ["MY_API_KEY"]]',
        '[("MY_API_KEY", os.environ["MY_API_KEY"]), ("OTHER", "x")]',
    ),
    "a name and a value by keyword": (
        'def put(name, value): return value\nmodel = [put(name="MY_API_KEY", value="@")]',
        'put(name="MY_API_KEY", value=os.environ["MY_API_KEY"])',
    ),
    "a command line's default": (
        'def add(flag, default): return default\nmodel = [add("--api-key", default="@")]',
        'default=os.environ["API_KEY"]',
    ),
    "by position": (
        'class Client(list):\n    def __init__(self, n, token): super().__init__([token])\nmodel = Client(1, "@")',
        'Client(1, os.environ["TOKEN"])',
    ),
    "put together by format": (
        'API_KEY = "{}".format("@")\nmodel = [API_KEY]',
        'API_KEY = "{}".format(os.environ["API_KEY"])',
    ),
    "in JSON": (
        "import json\ncfg = json.loads('{\"api_key\": \"@\"}')\nmodel = [cfg['api_key']]",
        'json.loads(os.environ["SECRET"])',
    ),
    "in the call": (
        "class M(list):\n    def __init__(self, token): super().__init__([token])",
        None,
    ),
    "os.environ in a function": (
        'import os\ndef f():\n    os.environ["MY_API_KEY"] = "@"\n    return os.environ["MY_API_KEY"]\nmodel = [f()]',
        '    os.environ["MY_API_KEY"] = os.environ["MY_API_KEY"]',
    ),
    "os called otherwise": (
        'os = 3\nAPI_KEY = "@"\nmodel = [API_KEY, os]',
        'API_KEY = __import__("os").environ["API_KEY"]',
    ),
}


def _values(secrets: Secrets) -> dict[str, str]:
    return {name: v if isinstance(v, str) else v.decode() for name, v in secrets.variables.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_script_reads_the_environment(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, expected = CASES[case]
    last = 'bench = wb.Workbench(M(token="@"))' if case == "in the call" else MAKE
    site = run_cells(WB, cell.replace("@", VALUE).replace("%", "@"), last.replace("@", VALUE))
    sliced = slice_call(site)
    written = "\n".join([sliced.imports, sliced.code, *sliced.arguments.values()])
    assert VALUE not in written
    if expected is not None:
        assert expected in written
        assert "in the environment" in sliced.code
        assert any(name in sliced.notes[0] for name in sliced.secrets.variables)
    for name, value in _values(sliced.secrets).items():
        monkeypatch.setenv(name, value)
    again = eval(sliced.arguments["model"], dict(execute(sliced)))
    assert again == Workbench.made[-1].model


SETTERS = {
    "an item": 'os.environ["OPENAI_API_KEY"] = "@"',
    "setdefault": 'os.environ.setdefault("OPENAI_API_KEY", "@")',
    "putenv": 'os.putenv("OPENAI_API_KEY", "@")',
    "by its value": 'os.environ["OPENAI"] = "sk-@"',
}


@pytest.mark.parametrize("case", SETTERS)
def test_lines_that_set_the_environment_are_left_out(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("OPENAI", "another")
    line = SETTERS[case].replace("@", VALUE)
    sliced = slice_cells(
        WB + "import os", f"{line}\nos.environ['WB_X'] = '1'", "model = [os.environ['WB_X']]", MAKE
    ).sliced
    assert VALUE not in sliced.code
    name = "OPENAI" if case == "by its value" else "OPENAI_API_KEY"
    assert sliced.code.startswith(
        f"# Set {name} in the environment: the script holds no secrets.\nos.environ['WB_X'] = '1'\n"
    )
    assert name in sliced.notes[0]


def test_comments_and_docstrings_hold_none() -> None:
    cell = (
        "# the old one: API_KEY = 'abc12345'\n"
        'def f():\n    """Uses sk-abcdefghijklmnop1234."""\n    return 1  # hf_AbCdEfGhIjKlMnOpQrSt\n'
        "# token: 4fQ9x2LmZ81kPw7vRt3n\n"
        "model = [f()]"
    )
    found = slice_cells(WB, cell, MAKE).sliced.code
    assert (
        found
        == '# the old one: API_KEY = \'…\'\ndef f():\n    """Uses …."""\n    return 1  # …\n\n\n# token: …\nmodel = [f()]\n'
    )


def test_what_a_format_puts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", VALUE)
    sliced = slice_cells(WB, f'API_KEY = "%s" % "{VALUE}"\nmodel = [API_KEY]', MAKE).sliced
    assert 'API_KEY = "%s" % os.environ["API_KEY"]\n' in sliced.code


UNTOUCHED = (
    'tokenizer = "bpe"\nmonkey = "m"\nn_tokens = "3"\nkeys = {"a": 1}.keys()\n'
    'names = sorted(["b", "a"], key=lambda s: s)\nkey = "label"\npad_token = "[PAD]"\nAPI_KEY = None\ntoken_file = "t.txt"\n'
    'columns = ["token", "label"]\npairs = [("key", "value1")]\nurl = "key: layer1_attention_weights"\n'
    "model = [tokenizer, monkey, n_tokens, list(keys), names, key, pad_token, API_KEY, token_file, columns, pairs, url]"
)


def test_what_is_no_secret_stays() -> None:
    sliced = slice_cells(WB, UNTOUCHED, MAKE).sliced
    assert sliced.code == UNTOUCHED + "\n"
    assert sliced.notes == ()


def test_a_parameter_of_the_function_around_the_call(tmp_path: Path) -> None:
    made = run_file(
        tmp_path / "user.py",
        f'import workbench as wb\ndef main(api_key):\n    model = [api_key]\n    wb.Workbench(model)\nmain("{VALUE}")\n',
    )
    sliced = slice_call(made.site)
    assert VALUE not in sliced.code
    assert 'api_key = os.environ["API_KEY"]' in sliced.code


def test_messages_hold_none() -> None:
    with pytest.raises(ExportError) as error:
        slice_cells(WB, f'model = login(display, token="{VALUE}") if False else [1]', MAKE)
    assert VALUE not in str(error.value)


def test_a_secret_that_stands_elsewhere_too_is_refused(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1",
                       prelude=f'{PRELUDE}\nAPI_KEY = "{VALUE}"\nplain = "{VALUE}"\nmodel.notes = [API_KEY, plain]\n')  # fmt: skip
    bench.fit().result()
    with pytest.raises(ExportError, match="the value of API_KEY is a secret"):
        bench.export(tmp_path / "train.py")
    assert not (tmp_path / "train.py").exists()


def test_a_script_without_its_secrets_repeats_the_run(
    tmp_path: Path, without: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "before")
    prelude = (
        f'{PRELUDE}\nimport os\nos.environ["SERVICE_API_KEY"] = "{VALUE}"\n'
        f'PASSWORD = "{VALUE}2"\nmodel.scale = len(PASSWORD) + len(os.environ["SERVICE_API_KEY"])\n'
    )
    bench = make_bench(
        tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1", prelude=prelude
    )
    run = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    assert VALUE not in script.read_text()
    secrets = {"SERVICE_API_KEY": VALUE, "PASSWORD": f"{VALUE}2"}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    check(bench, run, Runner(without, folder, **secrets).run(script))


def test_the_line_of_a_call_holds_none() -> None:
    assert (
        line("fit", {"launch": {"token": VALUE}, "lr": 0.1})
        == "bench.fit(launch={'token': '…'}, lr=0.1)"
    )


def test_the_record_and_messages_hold_no_arguments_of_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the user's code below registers its own
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "failing", None)
    bench = make_bench(
        tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1, trackers={'failing': {'api_key': API_KEY}}",
        prelude=f"""{PRELUDE}
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
API_KEY = "{VALUE}"
class Failing(GeneralTracker):
    name = "failing"
    requires_logging_directory = False
    def __init__(self, run_name, api_key=None):
        super().__init__()
        raise ValueError("401 for " + api_key)
    tracker = None
LOGGER_TYPE_TO_CLASS["failing"] = Failing
""",
    )  # fmt: skip
    run = bench.fit().result()
    assert run.folder is not None
    written = [path.read_bytes() for path in Path(run.folder).rglob("*") if path.is_file()]
    assert not any(VALUE.encode() in data for data in written)
    assert any("401 for …" in str(event) for event in run.events)
    with pytest.raises(wb.SettingsError) as error:
        make_bench(
            tmp_path,
            f"model, train=(x, y), trackers={{'failing': {{'api_key': '{VALUE}', 'none': 1}}}}",
        )
    assert VALUE not in str(error.value)
