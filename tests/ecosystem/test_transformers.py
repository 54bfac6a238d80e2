"""transformers: tiny models from their configurations, collators, tokenizers and schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import workbench as wb
from tests.ecosystem.twins import fit, in_batches, losses, plain

transformers = pytest.importorskip("transformers")


def bert(**more: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32, **more,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt(vocabulary: int = 40) -> Any:
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=16, n_layer=1, n_head=2, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def sentences(n: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "input_ids": rng.integers(5, 40, 12).tolist(),
            "attention_mask": [1] * 12,
            "labels": int(i % 3),
        }
        for i in range(n)
    ]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = ["the cat sat", "the dog sat down", "a bird flew over the house"]
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"]))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]"
    )


def own_loss(model: Any, batch: Any) -> torch.Tensor:
    found: torch.Tensor = model(**batch).loss
    return found


def test_a_classifier_with_its_own_loss(tmp_path: Path) -> None:
    model, collate = bert(), transformers.default_data_collator
    expected = plain(model, in_batches(sentences(), collate), own_loss)
    assert losses(fit(tmp_path, model, train=sentences(), collate_fn=collate)) == expected


def test_a_data_loader_with_a_collator(tmp_path: Path) -> None:
    model = bert()
    loader = torch.utils.data.DataLoader(
        sentences(), 8, collate_fn=transformers.default_data_collator
    )
    expected = plain(model, loader, own_loss)
    assert losses(fit(tmp_path, model, train=loader, val=loader)) == expected


def test_a_tokenizer_that_pads(tmp_path: Path) -> None:
    words = tokenizer()
    texts = ["the cat sat", "the dog sat down", "a bird flew", "the house"] * 4
    samples = [{**words(text), "labels": i % 3} for i, text in enumerate(texts)]
    model, collate = bert(), transformers.DataCollatorWithPadding(words)
    expected = plain(model, in_batches(samples, collate), own_loss)
    assert losses(fit(tmp_path, model, train=samples, collate_fn=collate)) == expected


def test_a_causal_language_model(tmp_path: Path) -> None:
    words = tokenizer()
    samples = [
        words(text)
        for text in ["the cat sat down", "a bird flew over the house", "the dog sat"] * 6
    ]
    model, collate = gpt(len(words)), transformers.DataCollatorForLanguageModeling(words, mlm=False)
    expected = plain(model, in_batches(samples, collate), own_loss)
    run = fit(tmp_path, model, train=samples, val=samples, collate_fn=collate)
    assert losses(run) == expected
    assert run.metrics["val_loss"] < expected[0]


def test_predictions_are_outputs_of_transformers(tmp_path: Path) -> None:
    model, collate = bert(), transformers.default_data_collator
    bench = wb.Workbench(
        model, train=sentences(), collate_fn=collate, batch_size=8, root=tmp_path, accelerator="cpu"
    )
    found = bench.predict(sentences(16, seed=1)).result()
    with torch.no_grad():
        expected = [
            model.eval()(**batch).logits for batch in in_batches(sentences(16, seed=1), collate)
        ]
    assert [type(output).__name__ for output in found] == ["SequenceClassifierOutput"] * 2
    assert all(
        torch.equal(output.logits, logits) for output, logits in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    "name", ["get_linear_schedule_with_warmup", "get_cosine_schedule_with_warmup"]
)
def test_schedules(tmp_path: Path, name: str) -> None:
    make = getattr(transformers, name)

    def schedule(optimizer: Any, updates: int) -> Any:
        return make(optimizer, num_warmup_steps=2, num_training_steps=updates)

    run = fit(
        tmp_path,
        bert(),
        train=sentences(),
        collate_fn=transformers.default_data_collator,
        scheduler=schedule,
    )
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-2)
    reference, rates = schedule(other, 8), []
    for _ in range(8):
        rates.append(other.param_groups[0]["lr"])
        other.step()
        reference.step()
    assert run.history["lr"].tolist() == pytest.approx(rates)


def test_a_model_output_given_to_a_plain_loss_is_named(tmp_path: Path) -> None:
    x = torch.randint(5, 40, (16, 12))
    with pytest.raises(Exception, match=r"SequenceClassifierOutput") as error:
        wb.Workbench(
            bert(),
            train=(x, torch.zeros(16, dtype=torch.long)),
            loss=torch.nn.functional.cross_entropy,
            root=tmp_path,
        )
    assert "logits" in str(error.value)
    assert len(str(error.value)) < 1000


def test_label_for_labels_is_named(tmp_path: Path) -> None:
    samples = [
        {"input_ids": torch.tensor(s["input_ids"]), "label": s["labels"]} for s in sentences()
    ]
    with pytest.raises(Exception, match="labels") as error:
        wb.Workbench(bert(), train=samples, root=tmp_path)
    assert len(str(error.value)) < 1000


def test_samples_of_lists_without_a_collator_are_named(tmp_path: Path) -> None:
    """torch's own collation makes one tensor for each place in a list."""
    with pytest.raises(Exception, match="'input_ids' is a list of 12 tensors") as error:
        wb.Workbench(bert(), train=sentences(), root=tmp_path)
    assert "collate_fn" in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_batch_encoding_is_a_batch(tmp_path: Path) -> None:
    model = bert()
    batches = [
        transformers.BatchEncoding(transformers.default_data_collator(sentences(8, seed)))
        for seed in range(3)
    ]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    assert losses(fit(tmp_path, model, train=loader)) == plain(model, batches, own_loss)


def test_resumed_it_is_the_same(tmp_path: Path) -> None:
    collate = transformers.default_data_collator
    model = bert()
    expected = plain(model, in_batches(sentences(), collate), own_loss, epochs=3)
    bench = wb.Workbench(model, train=sentences(), collate_fn=collate, root=tmp_path, lr=1e-2, batch_size=8, shuffle=False,
                         max_epochs=1, accelerator="cpu")  # fmt: skip
    first = bench.fit().result()
    again = bench.fit(start=first.id, max_epochs=3).result()
    assert losses(again) == expected


def test_adafactor(tmp_path: Path) -> None:
    def make(params: Any, lr: float) -> Any:
        return transformers.Adafactor(params, lr=lr, relative_step=False, scale_parameter=False)

    model, collate = bert(), transformers.default_data_collator
    expected = plain(model, in_batches(sentences(), collate), own_loss, optimizer=make)
    assert (
        losses(fit(tmp_path, model, train=sentences(), collate_fn=collate, optimizer=make))
        == expected
    )


def test_label_becomes_labels_in_a_collator_that_pads(tmp_path: Path) -> None:
    words = tokenizer()
    samples = [
        {**words(text), "label": i % 3}
        for i, text in enumerate(["the cat sat", "the dog sat down", "a bird", "the house"] * 4)
    ]
    model, collate = bert(), transformers.DataCollatorWithPadding(words)
    expected = plain(model, in_batches(samples, collate), own_loss)
    assert losses(fit(tmp_path, model, train=samples, val=samples, collate_fn=collate)) == expected


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model, rows = (
        gpt(),
        list(torch.randint(0, 40, (32, 8), generator=torch.Generator().manual_seed(0))),
    )

    def collate(chosen: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.stack(chosen), "labels": torch.stack(chosen)}

    bench = wb.Workbench(model, train=rows, collate_fn=collate, batch_size=8, shuffle=False, lr=1e-2, max_epochs=2, root=tmp_path,
                         accelerator="cpu")  # fmt: skip
    expected = plain(model, in_batches(rows, collate), own_loss)
    run = bench.fit().result()
    bench.load(run.id)
    assert losses(run) == expected
    assert model.transformer.wte.weight is model.lm_head.weight


def test_masks_of_a_collator_are_drawn_again_when_resumed(tmp_path: Path) -> None:
    words = tokenizer()
    words.add_special_tokens({"mask_token": "[MASK]"})
    samples = [
        words(text)
        for text in ["the cat sat down", "a bird flew over the house", "the dog sat"] * 6
    ]
    collate = transformers.DataCollatorForLanguageModeling(words, mlm=True, mlm_probability=0.4)

    def bench(name: str) -> wb.Workbench:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
        return wb.Workbench(transformers.BertForMaskedLM(config), train=samples, collate_fn=collate, batch_size=6, max_epochs=3, dry_run=False,
                            root=tmp_path / name, accelerator="cpu")  # fmt: skip

    whole = bench("whole").fit().result()
    parts = bench("parts")
    first = parts.fit(max_epochs=1).result()
    assert losses(parts.fit(start=first.id, max_epochs=3).result()) == losses(whole)
