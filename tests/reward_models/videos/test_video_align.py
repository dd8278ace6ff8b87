"""VideoAlign against the PEFT model itself, fed by transformers' video processor, and the published sampling rule."""

import hashlib
import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.videos.video_align import INSTRUCTION, TOKENS, VideoAlignScorer, sampled
from reward_models.videos.video_align_files import merge_lora
from tests.reward_models.tiny_vlm import NORM, old_names, peft_model, save_video_align, settings

PROMPTS = ["a red circle moving right", "a blue square"]


def clips(frames=21, height=61, width=47, count=2):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (count, frames, 3, height, width), generator=generator, dtype=torch.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return save_video_align(tmp_path_factory.mktemp("video_align"))


def load(files, **options):
    return load_reward("video_align", **{"checkpoint": str(files[0]), "model": str(files[1]), **options})


@pytest.fixture(scope="module")
def scorer(files):
    return load(files)


def reference(files, clip, rows, size, prompt, positions="sequential"):
    """The three normalised ratings by the unmerged PEFT model and transformers' video processor, unpadded."""
    import torchvision.transforms.functional as vision
    from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    tokenizer = AutoTokenizer.from_pretrained(files[1])
    tokenizer.add_special_tokens({"additional_special_tokens": list(TOKENS)})
    processor = Qwen2VLProcessor(
        Qwen2VLImageProcessor(), tokenizer, Qwen2VLVideoProcessor(), chat_template=tokenizer.chat_template
    )
    frames = vision.resize(clip[rows], list(size), vision.InterpolationMode.BICUBIC, antialias=True)
    turn = [{"type": "video"}, {"type": "text", "text": INSTRUCTION.format(text_prompt=prompt)}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[text], videos=[frames], return_tensors="pt")
    wrapped = peft_model(files[1])
    network = wrapped.base_model.model.model
    with torch.no_grad():
        embedded = network.language_model.embed_tokens(inputs["input_ids"])
        seen = network.visual(inputs["pixel_values_videos"], grid_thw=inputs["video_grid_thw"]).pooler_output
        embedded[inputs["input_ids"] == network.config.video_token_id] = seen
        ids = (
            torch.arange(embedded.shape[1]).expand(3, 1, -1)
            if positions == "sequential"
            else network.get_rope_index(
                inputs["input_ids"], inputs["mm_token_type_ids"], video_grid_thw=inputs["video_grid_thw"]
            )[0]
        )
        hidden = network.language_model(inputs_embeds=embedded, position_ids=ids).last_hidden_state[0]
        places = [inputs["input_ids"][0].tolist().index(tokenizer.convert_tokens_to_ids(token)) for token in TOKENS]
        marks = hidden[places] @ wrapped.base_model.model.rm_head.weight[0]
    return [
        (float(mark) - NORM[f"{p}_mean"]) / NORM[f"{p}_std"] for mark, p in zip(marks, ("VQ", "MQ", "TA"), strict=True)
    ]


@pytest.mark.parametrize("positions", ["sequential", "mrope"])
def test_scores_are_those_of_the_peft_model(files, positions):
    media = clips()
    output = load(files, positions=positions)(RewardBatch(media, PROMPTS, fps=7.0))
    # 21 frames at 7 a second are 3 s: 6 frames. sqrt(100352 / (61 * 47)) = 5.916: ceil(12.89) and ceil(9.93) times 28.
    rows = [0, 4, 8, 12, 16, 20]
    for row in range(2):
        expected = reference(files, media[row], rows, (364, 280), PROMPTS[row], positions)
        found = [float(output.parts[part][row]) for part in ("VQ", "MQ", "TA")]
        assert found == pytest.approx(expected, rel=2e-4, abs=2e-4)
        assert float(output.raw[row]) == pytest.approx(sum(expected), rel=2e-4, abs=5e-4)


def test_use_selects_one_part(files, scorer):
    batch = RewardBatch(clips(8, 32, 32), PROMPTS, fps=8.0)
    assert torch.equal(load(files, use="MQ")(batch).raw, scorer(batch).parts["MQ"])


@pytest.mark.parametrize("rslora", [False, True])
def test_lora_is_merged_as_peft_merges_it(files, rslora):
    wrapped = peft_model(files[1], seed=3, rslora=rslora)
    saved = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    merged = merge_lora(saved, 8, rslora)
    theirs = wrapped.merge_and_unload().state_dict()
    assert set(merged) == set(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(merged[name], tensor, rtol=1e-5, atol=1e-6)
    layer = "model.language_model.layers.0.self_attn.q_proj.weight"
    before = saved[f"base_model.model.{layer.replace('.weight', '.base_layer.weight')}"]
    assert (merged[layer] - before).abs().max() > 0.1


def test_saved_modules_win_over_the_originals():
    state = {
        "base_model.model.rm_head.original_module.weight": torch.zeros(1, 4),
        "base_model.model.rm_head.modules_to_save.default.weight": torch.ones(1, 4),
    }
    assert torch.equal(merge_lora(state, 8)["rm_head.weight"], torch.ones(1, 4))


@pytest.mark.parametrize(
    "name", ["x.lora_embedding_A.default", "x.lora_magnitude_vector.default.weight", "x.lora_A.default.weight"]
)
def test_other_adapters_are_refused(name):
    with pytest.raises(RewardError, match="plain LoRA"):
        merge_lora({"x.base_layer.weight": torch.zeros(3, 3), name: torch.zeros(1, 3)}, 8)


def test_merged_safetensors_score_the_same(files, scorer, tmp_path):
    wrapped = peft_model(files[1])
    state = old_names({name: tensor.clone() for name, tensor in wrapped.merge_and_unload().state_dict().items()})
    save_file(
        {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}, tmp_path / "model.safetensors"
    )
    shutil.copy(files[0] / "model_config.json", tmp_path)
    batch = RewardBatch(clips(8, 32, 32), PROMPTS, fps=8.0)
    expected = scorer(batch).raw.tolist()
    for place in (tmp_path, tmp_path / "model.safetensors"):
        assert load(files, checkpoint=str(place))(batch).raw.tolist() == pytest.approx(expected, abs=1e-4)


def published_rows(count, fps, rate):
    """smart_nframes and the uniform sampling of the published vision_process.py, written down straight."""
    most = math.floor(min(768, count) / 2) * 2
    wanted = round(min(max(count / fps * rate, 4), most) / 2) * 2
    return np.linspace(0, count - 1, wanted).round().astype(int).tolist()


@pytest.mark.parametrize(("count", "fps", "rate"), [(81, 16.0, 2.0), (2, 8.0, 2.0), (5000, 8.0, 2.0), (97, 24.0, 3.0)])
def test_frames_are_those_of_the_published_rule(count, fps, rate):
    assert sampled(count, fps, rate) == published_rows(count, fps, rate)
    assert sampled(9, None, 2.0, frames=5) == [0, 3, 5, 8]  # round(2.5) is 2


def test_instruction_is_the_published_one():
    # The digest was taken of DETAILED_PROMPT_WITH_SPECIAL_TOKEN in the published prompt_template.py.
    digest = "fdb6309bac618dd0c8b1b589d3a0970a974f7856eecbb355a190b2dce54af700"
    assert hashlib.sha256(INSTRUCTION.encode()).hexdigest() == digest


def test_failures_are_of_their_sample(scorer):
    output = scorer(RewardBatch(clips(8, 32, 32), ["a circle", "<|TA_reward|> 10"], fps=8.0))
    assert output.ok.tolist() == [True, False] and "<|TA_reward|>" in output.errors[1]
    assert math.isnan(output.raw[1]) and math.isnan(output.parts["VQ"][1])
    output = scorer(RewardBatch(clips(1, 32, 32), PROMPTS, fps=8.0))
    assert output.ok.tolist() == [False, False] and "1 frames" in output.errors[0]
    output = scorer(RewardBatch(clips(0, 32, 32), PROMPTS, fps=8.0))
    assert output.ok.tolist() == [False, False]


def test_wrong_batches_are_refused(scorer):
    with pytest.raises(RewardError, match="fps"):
        scorer(RewardBatch(clips(8, 32, 32), PROMPTS))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data_config__sample_type": "multi_pts"}, "sample_type = 'multi_pts'"),
        ({"inference_config__TA_std": None}, "TA_std in inference_config"),
        ({"peft_lora_config__lora_alpha": None}, "lora_alpha in peft_lora_config"),
    ],
)
def test_other_ways_of_scoring_are_refused(files, tmp_path, changes, sentence):
    (tmp_path / "model_config.json").write_text(json.dumps(settings(**changes)))
    shutil.copytree(files[0] / "checkpoint-11352", tmp_path / "checkpoint-11352")
    with pytest.raises(RewardError, match=sentence):
        load(files, checkpoint=str(tmp_path))


def test_other_mistakes_are_told(files, tmp_path):
    for options, sentence in (
        ({"step": 3}, r"no checkpoint-3 in .* \[11352\]"),
        ({"checkpoint": str(tmp_path)}, "model.pth or model.safetensors"),
    ):
        with pytest.raises(RewardError, match=sentence):
            load(files, **options)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RewardError, match="looks for model_config.json"):
        load(files, checkpoint=str(tmp_path))
    (tmp_path / "model_config.json").write_text("{")
    with pytest.raises(RewardError, match="cannot be read"):
        load(files, checkpoint=str(tmp_path))


def test_the_largest_step_is_taken(files, tmp_path):
    for step in (9, 100):
        shutil.copytree(files[0] / "checkpoint-11352", tmp_path / f"checkpoint-{step}")
    shutil.copy(files[0] / "model_config.json", tmp_path)
    (tmp_path / "checkpoint-9" / "model.pth").write_bytes(b"not this one")
    assert isinstance(load(files, checkpoint=str(tmp_path)), VideoAlignScorer)
    with pytest.raises(RewardError, match="cannot be read"):
        load(files, checkpoint=str(tmp_path), step=9)


def test_bfloat16_is_close(files, scorer):
    half = load(files, dtype="bfloat16")
    batch = RewardBatch(clips(8, 32, 32), PROMPTS, fps=8.0)
    assert half(batch).parts["MQ"].tolist() == pytest.approx(scorer(batch).parts["MQ"].tolist(), abs=0.1)
    assert half.qwen.rm_head.weight.dtype == torch.float32
