"""What counts as a secret, by name and by shape."""

from __future__ import annotations

import pytest

from workbench.secrets import hide, is_secret_name, looks_secret, secrets_in, without_secrets

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
    ["scikit-learn", "a token: see the docs", "the key = value", "hf_transfer", "task-learned", "https://host/path", "x.sort(key=len)"],
)
def test_plain_text_stays(text: str) -> None:
    assert not looks_secret(text)
    assert hide(text) == text


def test_plain_data_without_its_secrets() -> None:
    given = {"wandb": {"api_key": "abc123", "project": "p", "tags": ["a", "hf_AbCdEfGhIjKlMnOpQrSt"]}, "lr": 0.1, "key": "label"}
    assert without_secrets(given) == {"wandb": {"api_key": "…", "project": "p", "tags": ["a", "…"]}, "lr": 0.1, "key": "label"}
    assert secrets_in(given) == {"abc123", "hf_AbCdEfGhIjKlMnOpQrSt"}
