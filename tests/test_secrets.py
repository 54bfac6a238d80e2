"""What counts as a secret, by name and by shape."""

from __future__ import annotations

import pytest

from workbench.events import CurveEnded, Message, RunEnded, RunStarted, Suggestion
from workbench.secrets import (
    beginning,
    ending,
    hidden,
    hide,
    is_secret_name,
    looks_secret,
    secrets_in,
    without_secrets,
)

SECRET = "API_KEY hf_token password PASSWORD apiKey HFToken OPENAI_API_KEY api-key db_password client_secret KEY TOKEN api_keys AWS_SECRET_ACCESS_KEY token"
NOT_SECRET = "tokenizer monkey keyboard n_tokens tokens max_tokens keys token_file key_size password_file sort_key pad_token label_key x"


@pytest.mark.parametrize("name", SECRET.split())
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_name(name, "a1b2c3")


@pytest.mark.parametrize("name", NOT_SECRET.split())
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("key", "label"), ("pad_token", "[PAD]"), ("eos_token", "</s>"), ("token", "<|end|>"), ("API_KEY", ""),
     ("api_key", "OPENAI_API_KEY"), ("mask_token", "<mask>"), ("target_key", "y")],
)  # fmt: skip
def test_values_that_show_that_it_is_none(name: str, value: str) -> None:
    assert not is_secret_name(name, value)


def test_what_is_given_to_a_login_is_a_secret_whatever_it_looks_like() -> None:
    assert is_secret_name("key", "label", "login")
    assert not is_secret_name("key", "label", "sort_values")


SHAPES = {
    "sk-proj-abcdefghijklmnop1234": "…",
    "hf_AbCdEfGhIjKlMnOpQrSt": "…",
    "ghp_0123456789abcdefghij": "…",
    "AKIAIOSFODNN7EXAMPLE": "…",
    "postgres://me:hunter2@host/db": "postgres://…@host/db",
    "Authorization: Bearer abcdefghijklmnopqrst": "Authorization: …",
    "OPENAI_API_KEY=abc\nEPOCHS=3": "OPENAI_API_KEY=…\nEPOCHS=3",
    "export HF_TOKEN='abc'": "export HF_TOKEN='…'",
    "# api_key = 'abc'": "# api_key = '…'",
}


@pytest.mark.parametrize("text", SHAPES)
def test_shapes(text: str) -> None:
    assert looks_secret(text)
    assert hide(text) == SHAPES[text]
    assert not looks_secret(hide(text))


@pytest.mark.parametrize(
    "text",
    [
        "scikit-learn",
        "a token: see the docs",
        "the key = value",
        "hf_transfer",
        "task-learned",
        "https://host/path",
        "x.sort(key=len)",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert not looks_secret(text)
    assert hide(text) == text


def test_plain_data_without_its_secrets() -> None:
    given = {
        "wandb": {"api_key": "abc123", "project": "p", "tags": ["a", "hf_AbCdEfGhIjKlMnOpQrSt"]},
        "lr": 0.1,
        "key": "label",
    }
    assert without_secrets(given) == {
        "wandb": {"api_key": "…", "project": "p", "tags": ["a", "…"]},
        "lr": 0.1,
        "key": "label",
    }
    assert secrets_in(given) == {"abc123", "hf_AbCdEfGhIjKlMnOpQrSt"}


@pytest.mark.parametrize(
    ("text", "hidden"),
    [("--api-key=abc", "--api-key=…"), ("1API_KEY='abc'", "1API_KEY='…'"), ("éHF_TOKEN=abc", "éHF_TOKEN=…"),
     ("x-eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ", "x-…"), ("eyJaaaaaaaaa.x.eyJhbGciOiJI.eyJzdWIiOiIx.S", "eyJaaaaaaaaa.x.…"),
     ("a=b HF_TOKEN=abc", "a=b HF_TOKEN=…"), ('OPENAI_API_KEY: "abc"', 'OPENAI_API_KEY: "…"')],
)  # fmt: skip
def test_what_stands_around_a_secret_stays(text: str, hidden: str) -> None:
    assert hide(text) == hidden


def test_a_cut_text_holds_no_half_of_a_secret() -> None:
    key = "sk-proj-abcdefghijklmnop1234"
    for before in range(60, 110):
        text = "x" * before + " " + key + " " + "y" * 20_000
        assert "sk-p" not in beginning(text, 100)
        assert "1234" not in ending(text[::-1].replace(key[::-1], key), 100)
    many = " ".join([key] * 2000)
    assert "sk-p" not in beginning(many, 100) + ending(many, 100)
    assert beginning("short", 100) == ending("short", 100) == "short"


def test_all_texts_of_an_event_are_without_secrets() -> None:
    key = "sk-proj-abcdefghijklmnop1234"
    ended = RunEnded("failed", 1, 1.0, f"no {key}", {"acc": 1.0}, key, key)
    assert key not in repr(hidden(ended))
    assert hidden(ended).metrics is ended.metrics
    started = RunStarted(
        "0001-fit",
        "fit",
        {"launch": {"api_key": "abc"}, "lr": 1.0},
        "cpu",
        ("a", "b"),
        request={"x": [key]},
    )
    assert hidden(started).settings == {"launch": {"api_key": "…"}, "lr": 1.0}
    assert hidden(started).request == {"x": ["…"]}
    curve = CurveEnded("finished", (Suggestion("steepest", 1.0, 3, f"because of {key}"),), None)
    assert hidden(curve).suggestions[0].why == "because of …"
    plain = Message("nothing")
    assert hidden(plain) is plain


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    ["a", "A.", "eyJ-", "eyJaaaaaaaa", "KEY='", "basic ", "://a:b", "-----BEGIN PRIVATE KEY"],
)
def test_a_long_word_holds_nobody_up(piece: str) -> None:
    """A search that began again at each sign would take minutes."""
    text = piece * (100_000 // len(piece)) + "!"
    assert hide(text)
    looks_secret(text)
