"""What is said to be cut, against the encodings themselves: words behind the limit change nothing, those before do."""

import pytest
import torch

from diffrl.bundled import pipeline_folder
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import SPLITS
from diffrl.models.adapter import EditingAdapter
from diffrl.models.families import FAMILIES
from diffrl.models.shipped import shipped_settings
from diffrl.models.text_encoders import TextReader, text_readers, tokenizers_of
from diffrl.models.tiny import build_pipeline, save_pipeline, tiny_settings
from diffrl.registry import resolve
from tests.tiers import daily

WORDS = ["a", "red", "circle", "square"]


@pytest.fixture
def encode(request):
    """Encodings by an adapter of a random pipeline, which is made for every family in turn."""
    family = FAMILIES[request.param]
    pipeline = build_pipeline(request.param, WORDS, seed=0)
    kind = resolve("model.family", {family.name: family.adapter}, family.name)
    templated = type(pipeline).__name__.startswith("Flux2")  # its chat template has 30 tokens
    longer = {"max_sequence_length": 64} if templated else {}
    adapter = kind(pipeline, torch.float32, **{**tiny_settings(pipeline), **longer})

    def encoded(text):
        if isinstance(adapter, EditingAdapter):
            return adapter.encode_edits([text], [torch.zeros(3, 32, 32, dtype=torch.uint8)])
        return adapter.encode_prompts([text])

    return family, pipeline, adapter, encoded


@pytest.mark.parametrize("encode", daily(FAMILIES, ["sd3", "wan", "qwen_image"]), indirect=True)
def test_a_prompt_is_cut_exactly_where_its_encoders_stop_reading(encode, tmp_path):
    family, pipeline, adapter, encoded = encode
    readers = text_readers(family.text_encoders, pipeline.components, adapter.max_sequence_length)
    readers = [reader for reader in readers if "ByT5" not in reader.name]  # which reads quoted texts alone
    assert readers

    def same(words):
        one, other = (encoded("red " * words + end) for end in ("circle", "square"))
        # Some encoders read on behind the limit, in other shapes, and leave that out afterwards.
        return all(torch.allclose(one[name], other[name], rtol=1e-4, atol=1e-5) for name in one)

    first = [next(n for n in range(600) if reader.cuts("red " * n + "circle")) for reader in readers]
    assert min(first) > 3 and not same(min(first) - 1)
    assert same(max(first) + 30)
    folder = tmp_path / "pipeline"
    save_pipeline(pipeline, folder)
    again = text_readers(family.text_encoders, tokenizers_of(family.text_encoders, folder), adapter.max_sequence_length)
    texts = ["red " * n + "circle" for n in range(min(first) - 2, max(first) + 2)]
    again = [reader for reader in again if "ByT5" not in reader.name]
    assert [[one.cuts(t) for t in texts] for one in again] == [[one.cuts(t) for t in texts] for one in readers]


def test_most_prompts_are_not_tokenised_and_a_placeholder_reads_nothing():
    asked = []
    reader = TextReader("mine", 20, lambda text: asked.append(text) or len(text) + 2)
    assert not reader.cuts("a" * 16) and asked == [""]
    assert [reader.cuts("a" * n) for n in (17, 18, 19)] == [False, False, True] and len(asked) == 4
    assert not reader.cuts("\u00e4" * 5) and len(asked) == 5  # may be many tokens
    assert reader.reads_words and not TextReader("placeholder", 1, lambda text: 1).reads_words


@pytest.mark.parametrize(("world", "name", "family"), [("shapes", "tiny-sd3", "sd3"), ("words", "tiny-words", "sd3")])
def test_no_sentence_of_a_toy_world_is_cut_by_its_pipeline(world, name, family):
    encoders, folder = FAMILIES[family].text_encoders, pipeline_folder(f"assets/{name}")
    longest = shipped_settings(folder).get("max_sequence_length") or FAMILIES[family].max_sequence_length
    readers = text_readers(encoders, tokenizers_of(encoders, folder), longest)
    longest_texts = sorted((p.text for split in SPLITS for p in load_prompts(f"{world}:{split}")), key=len)[-300:]
    assert readers and not any(reader.cuts(text) for reader in readers for text in longest_texts)
