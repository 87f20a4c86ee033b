# SPDX-License-Identifier: MIT
"""The small encoder: masking in its shares, the same weights twice, and what it has learned."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attnscope as asc
from attnscope.demo.encoder import (
    EncoderRecipe,
    build_encoder,
    masked_batch,
    masked_loss,
    pieces_tokenizer,
    train_encoder,
    with_mask,
)
from attnscope.demo.texts import documentation

TINY = EncoderRecipe(steps=3, layers=1, width=16, heads=2, inner_width=16, batch=4, tokens=12)
DATA = Path(__file__).resolve().parents[4] / "shared/data"


def test_masking_has_its_shares():
    recipe = EncoderRecipe(batch=256, tokens=128)
    corpus = torch.randint(5, 500, (10_000,), generator=torch.Generator().manual_seed(0))
    input_ids, expected = masked_batch(corpus, recipe, 7, bos=1, mask=514, vocabulary=515)
    chosen = expected != -100
    assert input_ids.shape == expected.shape == (256, 128)
    assert not chosen[:, 0].any()
    assert (input_ids[:, 0] == 1).all()
    assert chosen[:, 1:].float().mean().item() == pytest.approx(0.15, abs=0.01)
    masked, unchanged = input_ids[chosen] == 514, input_ids[chosen] == expected[chosen]
    assert masked.float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert unchanged.float().mean().item() == pytest.approx(0.1, abs=0.02)
    # the others stand as they are in the corpus, and the predicted tokens are theirs
    tokens = torch.where(chosen, expected, input_ids)[0, 1:]
    assert (corpus.unfold(0, 127, 1) == tokens).all(1).any()
    again = masked_batch(corpus, recipe, 7, bos=1, mask=514, vocabulary=515)
    assert torch.equal(input_ids, again[0])
    assert not torch.equal(input_ids, masked_batch(corpus, recipe, 8, bos=1, mask=514, vocabulary=515)[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder whose `a` is a finished training."""
    home = tmp_path_factory.mktemp("encoders")
    train_encoder(home / "a", TINY, progress=False)
    return home


def test_two_trainings_are_bit_equal_and_a_finished_one_is_kept(home):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folders = [home / "a", train_encoder(home / "b", TINY, progress=False)]
    first_model, other = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in folders)
    for (name, first), second in zip(first_model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second), name
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    written = (folders[0] / "model.safetensors").stat().st_mtime_ns
    assert train_encoder(home / "a", TINY, progress=False) == folders[0]
    assert (folders[0] / "model.safetensors").stat().st_mtime_ns == written
    inputs = tokenizer("the value of an object", return_tensors="pt")
    result = asc.token_likelihood(first_model, inputs, tokenizer=tokenizer)
    assert result.log_likelihood.isfinite().all()


def test_another_recipe_or_text_is_refused_by_name(home):
    other = replace(TINY, seed=1)
    with pytest.raises(ValueError, match=r"holds an encoder of another recipe \(seed: 0 there, 1 wanted\);"):
        train_encoder(home / "a", other, progress=False)
    with pytest.raises(ValueError, match=r"another recipe \(corpus: \w+ there, \w+ wanted\);"):
        train_encoder(home / "a", TINY, texts=["other words are here"] * 9, progress=False)
    with pytest.raises(ValueError, match="texts must hold more than 12 tokens, got 2"):
        train_encoder(home / "c", TINY, texts=["the object"], progress=False)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        train_encoder(home / "c", EncoderRecipe(steps=0))


def test_a_mask_is_added_to_the_tokenizer_of_512_pieces():
    folder = DATA / "stories260K/hf"
    if not folder.exists():
        pytest.skip("stories260K is not here")
    from transformers import AutoTokenizer

    tokenizer = with_mask(AutoTokenizer.from_pretrained(folder))
    assert (len(tokenizer), tokenizer.mask_token_id) == (513, 512)
    assert tokenizer.pad_token_id is not None
    assert build_encoder(TINY, tokenizer).config.vocab_size == 513


@pytest.mark.slow
def test_it_learns_what_the_text_expects(tmp_path):
    """After a tenth of the training held-out tokens are far likelier than by chance."""
    recipe = EncoderRecipe(steps=120)
    folder = train_encoder(tmp_path / "encoder", recipe, progress=False)
    from transformers import AutoModelForMaskedLM

    tokenizer = pieces_tokenizer()
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.tensor(tokenizer(documentation()[1], add_special_tokens=False, verbose=False)["input_ids"])
    sizes = {"bos": tokenizer.bos_token_id, "mask": tokenizer.mask_token_id, "vocabulary": len(tokenizer)}
    with torch.no_grad():
        loss = masked_loss(model, *masked_batch(ids, recipe, 10_000, **sizes)).item()
        chance = masked_loss(
            build_encoder(recipe, tokenizer), *masked_batch(ids, recipe, 10_000, **sizes)
        ).item()
    assert loss < chance - 1
