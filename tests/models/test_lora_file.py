"""What a LoRA's file says is believed, or it is refused in one sentence: alike where it trains and generates."""

import io
import json
import math

import pytest
import torch
from safetensors.torch import save_file

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.export.pictures import open_pipeline
from diffrl.export.request import ModelOptions
from diffrl.models.architecture import component_shapes
from diffrl.models.families import FAMILIES
from diffrl.models.lora_file import check_lora, lora_files, read_lora
from diffrl.preflight.check import check_config
from diffrl.run.start_weights import check_start, restore_initial
from tests.training.harness import make_trainer, settings

CPU = torch.device("cpu")
RANK = 4
LAYERS = [f"transformer_blocks.{i}.attn.{name}" for i in range(2) for name in ("to_q", "to_k")]
GENERATOR = torch.Generator().manual_seed(0)
DOWN = {layer: torch.randn(RANK, 128, generator=GENERATOR) for layer in LAYERS}
UP = {layer: torch.randn(128, RANK, generator=GENERATOR) for layer in LAYERS}


def tensors(prefix="transformer.", down="lora_A", up="lora_B", separator="."):
    """The LoRA of all tests by the names of a layout."""
    named = {}
    for layer in LAYERS:
        stem = prefix + layer.replace(".", separator)
        named |= {f"{stem}.{down}.weight": DOWN[layer].clone(), f"{stem}.{up}.weight": UP[layer].clone()}
    return named


def kohya():
    return tensors("lora_unet_", "lora_down", "lora_up", "_")


@pytest.fixture
def places(random_sd3, tmp_path):
    """The three places that read a LoRA: they say the same of it."""

    class Places:
        path = tmp_path / "mine.safetensors"

        runs = 0

        def data(self, path):
            self.runs += 1
            lora = {"rank": RANK, "alpha": 5, "targets": ["attn.to_q", "attn.to_k"], "start": {"path": str(path)}}
            return settings(random_sd3, tmp_path / f"{self.runs}", model={"lora": lora})

        def generate(self, path, lines=None):
            tell = (lines if lines is not None else []).append
            options = ModelOptions(model=str(random_sd3), family="sd3", lora=str(path))
            return open_pipeline(options, CPU, tell)[0].transformer

        def check(self, path):
            return check_config(make_config(self.data(path)), ask_rewards=False)

        def train(self, path):
            trainer = make_trainer(self.data(path))
            (said,) = restore_initial(trainer.session.policy, trainer.config)
            return trainer.session.policy.inner, said

        def reader(self, path):
            """What all three stand on, by itself: the layers are those of the pipeline's headers."""
            (file,) = lora_files(str(path), ["transformer"]).values()
            weights = component_shapes(random_sd3)["transformer"].items()
            layers = {key.removesuffix(".weight"): shape for key, shape in weights if len(shape) == 2}
            return read_lora(file, layers, FAMILIES["sd3"])

        def scale(self, path, everywhere=True):
            """How much of B A each layer gets, where it is generated and where it is trained, and what is said."""
            if not everywhere:
                found = self.reader(path)
                return {layer: found.alpha[layer] / RANK for layer in LAYERS}, " ".join(found.notes)
            generated, (trained, said) = [], self.train(path)
            network = self.generate(path, generated)
            scales = {}
            for layer in LAYERS:
                unit, both = torch.eye(128), []
                for one in (network, trained):
                    module = one.get_submodule(layer)
                    change = (module(unit) - module.base_layer(unit)).T.detach()
                    both.append((change.norm() / (UP[layer] @ DOWN[layer]).norm()).item())
                    torch.testing.assert_close(change, both[-1] * UP[layer] @ DOWN[layer], rtol=1e-3, atol=1e-3)
                assert math.isclose(*both, rel_tol=1e-4)
                scales[layer] = both[0]
            checked = " ".join(self.check(path))
            assert all(line.rstrip(".") in said and line.rstrip(".") in checked for line in generated)
            return scales, " ".join(generated)

        def refusal(self, path, everywhere=True):
            """The sentence by which all three places refuse it, or the reader alone."""
            messages = []
            for look in (self.check, self.train, self.generate) if everywhere else (self.reader,):
                with pytest.raises(ConfigError) as caught:
                    look(path)
                assert len(caught.value.problems) == 1
                messages.append(caught.value.problems[0].replace("model.lora.start.path", "--lora"))
            assert len(set(messages)) == 1 and not messages[0].endswith(": .")
            return messages[0]

    return Places()


def nested(**settings):
    return {"lora_adapter_metadata": json.dumps(settings)}


SAYS_8 = {
    "lora_alpha": {"lora_alpha": "8"},
    "alpha": {"alpha": "8"},
    "network_alpha": {"network_alpha": "8.0"},
    "ss": {"ss_network_alpha": "8.0", "ss_network_dim": "4"},
    "flat": nested(lora_alpha=8, r=4),
    "prefixed": nested(**{"transformer.lora_alpha": 8, "transformer.r": 4, "text_encoder.lora_alpha": 2}),
    "nested": nested(transformer={"lora_alpha": 8, "r": 4}),
    "before": {"transformer.lora_alpha": "8", "transformer.r": "4"},
    "another word": {"lora_config": json.dumps({"network_alpha": 8, "network_dim": 4})},
    "lora_config": {"lora_config": json.dumps({"lora_alpha": 8, "r": 4})},
    "twice": {"lora_alpha": "8"} | nested(lora_alpha=8),
    "rslora": nested(lora_alpha=4, r=4, use_rslora=True),  # over the root of the rank
}


@pytest.mark.parametrize("metadata", SAYS_8)
def test_alpha_is_read_wherever_it_is_written(places, metadata):
    save_file(tensors(), places.path, SAYS_8[metadata])
    scales, said = places.scale(places.path, metadata in ("alpha", "prefixed", "rslora"))
    assert all(math.isclose(scale, 2, rel_tol=1e-4) for scale in scales.values()) and not said


def test_alpha_is_read_from_tensors_and_from_pefts_configuration(places, tmp_path):
    alphas = {layer: 2.0 + i for i, layer in enumerate(LAYERS)}
    named = {f"lora_unet_{layer.replace('.', '_')}.alpha": torch.tensor(alpha) for layer, alpha in alphas.items()}
    save_file(kohya() | named, places.path, {"ss_network_alpha": "Dynamic"})
    scales, said = places.scale(places.path)
    assert scales == pytest.approx({layer: alpha / RANK for layer, alpha in alphas.items()}, rel=1e-4) and not said
    folder = tmp_path / "peft"
    folder.mkdir()
    save_file(tensors("base_model.model."), folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "alpha_pattern": {"to_k": 2, r"transformer_blocks\.1.*to_q": 1},
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    expected = dict(zip(LAYERS, (2, 0.5, 2, 0.5), strict=True)) | {LAYERS[2]: 0.25}
    assert places.scale(folder)[0] == pytest.approx(expected, rel=1e-4)
    assert places.scale(folder / "adapter_model.safetensors")[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("named", "metadata"), [(tensors(), None), (kohya(), {"ss_network_alpha": "None"}), (tensors(), nested(r=4))]
)
def test_an_alpha_that_is_written_nowhere_is_the_rank_and_that_is_said(places, named, metadata):
    save_file(named, places.path, metadata)
    scales, said = places.scale(places.path)
    assert scales == pytest.approx(dict.fromkeys(LAYERS, 1.0), rel=1e-4) and "no alpha" in said


WRONG_METADATA = {
    "text": ({"lora_alpha": "x"}, "lora_alpha must be a number"),
    "nested text": (nested(lora_alpha="x"), 'Got "x"'),
    "null": (nested(**{"transformer.lora_alpha": None}), "Got null"),
    "list": (nested(lora_alpha=[8]), r"Got \[8\]"),
    "true": (nested(lora_alpha=True), "Got true"),
    "zero": (nested(lora_alpha=0), "Got 0"),
    "infinite": ({"alpha": "inf"}, "Got"),
    "not a number": ({"lora_adapter_metadata": '{"lora_alpha": NaN}'}, "lora_adapter_metadata|NaN"),
    "no object": ({"lora_adapter_metadata": "[1, 2]"}, "must be a JSON object"),
    "no JSON": ({"lora_adapter_metadata": "{"}, "must be a JSON object"),
    "pattern": (nested(lora_alpha=8, alpha_pattern=[1]), "alpha_pattern"),
    "broken pattern": (nested(lora_alpha=8, alpha_pattern={"(": 3}), "alpha_pattern"),
    "rank": (nested(lora_alpha=8, r=16), "r of 16.* rank 4"),
    "rank of one layer": (nested(lora_alpha=8, r=4, rank_pattern={"to_k": 8}), "rank 4"),
    "rank beside": ({"lora_alpha": "8", "r": "16"}, 'r of "16".* rank 4'),
    "conflict": ({"lora_alpha": "8", "alpha": "4"}, "lora_alpha.* 8.* alpha.* 4"),
    "nested conflict": ({"ss_network_alpha": "4"} | nested(lora_alpha=8), "lora_adapter_metadata.* 8.*ss_network.* 4"),
    "rank in text": (nested(lora_alpha=8, r="x"), 'Got "x"'),
    "rank in other words": ({"lora_config": json.dumps({"lora_alpha": 8, "rank": 16})}, "rank of 16.* rank 4"),
    "text for a switch": (nested(lora_alpha=8, use_rslora="false"), 'use_rslora must be true or false. Got "false"'),
    "pattern alone": (nested(alpha_pattern={"to_k": 2}), "lora_alpha must be a number"),
    "two words": (
        {"lora_config": json.dumps({"lora_alpha": 8, "alpha": 4})},
        "lora_alpha in lora_config has 8, and alpha",
    ),
    "kind": (nested(lora_alpha=8, peft_type="LOKR"), "peft_type"),
    "dora": (nested(lora_alpha=8, use_dora=True), "DoRA"),
    "saved modules": (nested(lora_alpha=8, modules_to_save=["proj_out"]), "modules_to_save"),
    "own start": (nested(lora_alpha=8, init_lora_weights="pissa"), "init_lora_weights"),
}


@pytest.mark.parametrize("case", WRONG_METADATA)
def test_what_a_file_says_wrongly_is_refused_alike_everywhere(places, case):
    metadata, words = WRONG_METADATA[case]
    save_file(tensors(), places.path, metadata)
    with pytest.raises(ConfigError, match=words):
        raise ConfigError(places.refusal(places.path, case in ("null", "rank", "nested conflict")))


def test_tensors_and_metadata_that_differ_are_both_named(places):
    named = {f"transformer.{layer}.alpha": torch.tensor(4.0) for layer in LAYERS}
    save_file(tensors() | named, places.path, {"lora_alpha": "8"})
    message = places.refusal(places.path)
    assert "alpha" in message and "4" in message and "lora_alpha" in message and "8" in message


def test_peft_without_its_configuration_and_with_half_of_one(places, tmp_path):
    """peft's own default is an alpha of 8: a file of its layout does not mean the rank."""
    save_file(tensors("base_model.model."), places.path)
    assert "adapter_config.json" in places.refusal(places.path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}))
    assert "lora_alpha" in places.refusal(places.path)
    (tmp_path / "adapter_config.json").write_text("[]")
    assert "JSON object" in places.refusal(places.path)


def changed(key, make):
    named = tensors()
    return named | {f"transformer.{key}": make(named[f"transformer.{key}"])}


Q = LAYERS[0]
WRONG_TENSORS = {
    "nan": (lambda: changed(f"{Q}.lora_B.weight", lambda t: t * math.nan), f"holds NaN in {Q}"),
    "infinity": (lambda: changed(f"{Q}.lora_A.weight", lambda t: t / 0), f"holds infinity in {Q}"),
    "nan alpha": (lambda: tensors() | {f"transformer.{Q}.alpha": torch.tensor(math.nan)}, "alpha.*Got NaN"),
    "long alpha": (lambda: tensors() | {f"transformer.{Q}.alpha": torch.ones(2)}, "alpha.*one number"),
    "integers": (lambda: {k: t.to(torch.int8) for k, t in tensors().items()}, "int8 in transformer_blocks"),
    "ranks that differ": (
        lambda: changed(f"{Q}.lora_B.weight", lambda t: t[:, :3].contiguous()),
        f"rank 3 .* 4 in {Q}",
    ),
    "half": (lambda: {k: t for k, t in tensors().items() if k != f"transformer.{Q}.lora_A.weight"}, f"half of .*{Q}"),
    "cube": (lambda: changed(f"{Q}.lora_B.weight", lambda t: t[:, :, None].contiguous()), f"128 x 4 x 1 in {Q}"),
    "nothing": (lambda: {}, "no LoRA"),
    "no rank": (lambda: changed(f"{Q}.lora_A.weight", lambda t: t[:0]), f"{Q}"),
    "twice": (lambda: tensors() | tensors(""), "transformer_blocks.* twice"),
    "another layer": (
        lambda: tensors() | {f"x.y.lora_{s}.weight": torch.ones(4, 4) for s in "AB"},
        r"a part does not reach it, 1 of 5 layers: x\.y",
    ),
    "foreign": (
        lambda: {f"unet.down_blocks.{i}.to_q.lora_{s}.weight": torch.ones(4, 4) for s in "AB" for i in range(5)},
        r"nothing reaches it, 5 of 5 layers: .*down_blocks.0.to_q.* 2 more",
    ),
    "wider": (lambda: changed(f"{Q}.lora_A.weight", lambda t: t[:, :-1].contiguous()), f"{Q} is 128 x 127, here 128 x"),
    "dora": (lambda: tensors() | {f"transformer.{Q}.dora_scale": torch.ones(128, 1)}, "DoRA"),
    "peft dora": (lambda: tensors() | {f"transformer.{Q}.lora_magnitude_vector": torch.ones(128)}, "DoRA"),
    "lokr": (lambda: {f"lycoris_{Q.replace('.', '_')}.lokr_w1": torch.ones(4, 4)}, "LoKr"),
    "loha": (lambda: {f"lora_unet_{Q.replace('.', '_')}.hada_w1_a": torch.ones(4, 4)}, "LoHa"),
    "ia3": (lambda: {f"base_model.model.{Q}.ia3_l": torch.ones(128, 1)}, "IA3"),
    "oft": (lambda: {f"lora_unet_{Q.replace('.', '_')}.oft_blocks": torch.ones(4, 4, 4)}, "OFT"),
    "difference": (lambda: tensors() | {f"diffusion_model.{Q}.diff": torch.ones(128, 128)}, "differences"),
    "bias difference": (lambda: tensors() | {f"diffusion_model.{Q}.diff_b": torch.ones(128)}, "differences"),
    "bias": (lambda: tensors() | {f"transformer.{Q}.lora_B.bias": torch.ones(128)}, "bias"),
    "embedding": (lambda: {"emb_params": torch.ones(3, 64)}, "textual inversion"),
    "something": (lambda: {"something": torch.ones(3)}, "holds no LoRA but something"),
    "checkpoint": (lambda: {f"model.diffusion_model.{n}.weight": torch.ones(8, 8) for n in LAYERS}, "whole weights"),
    "weights beside": (lambda: tensors() | {"transformer.norm_out.weight": torch.ones(8)}, "norm_out"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_what_is_no_lora_of_this_network_is_called_by_its_name(places, case):
    make, words = WRONG_TENSORS[case]
    save_file(make(), places.path)
    with pytest.raises(ConfigError, match=words):
        raise ConfigError(places.refusal(places.path, case in ("nan", "another layer", "foreign", "wider", "dora")))


def test_a_pickle_is_refused_unread(places, tmp_path):
    content = io.BytesIO()
    torch.save(tensors(), content)
    for name in ("mine.bin", "mine.pt", "named.safetensors"):
        (tmp_path / name).write_bytes(content.getvalue())
        assert "pickle" in places.refusal(tmp_path / name, name == "mine.pt")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "adapter_model.bin").write_bytes(content.getvalue())
    assert "pickle" in places.refusal(folder)


def test_layers_of_text_encoders_are_left_out_and_named(places):
    text = {
        f"lora_te1_text_model_encoder_layers_{i}_mlp_fc1.lora_{side}.weight": torch.ones(4, 4)
        for side in ("down", "up")
        for i in range(5)
    }
    save_file(kohya() | text, places.path)
    scales, said = places.scale(places.path)
    assert set(scales) == set(LAYERS)
    assert "text encoders" in said and "(5)" in said and "lora_te1_text_model_encoder_layers_0_mlp_fc1" in said
    save_file(text, places.path)
    assert "text encoders" in places.refusal(places.path)


def test_small_numbers_and_ineffective_differences_are_taken(places):
    """fp8 as ComfyUI's converters save it; extracted LoRAs hold differences of norms that are zero."""
    fp8 = {key: tensor.to(torch.float8_e5m2) for key, tensor in tensors().items()}
    save_file(fp8 | {f"diffusion_model.{Q}.norm.diff": torch.zeros(8)}, places.path)
    module = places.generate(places.path).get_submodule(Q)
    exact = fp8[f"transformer.{Q}.lora_B.weight"].float() @ fp8[f"transformer.{Q}.lora_A.weight"].float()
    unit = torch.eye(128)
    torch.testing.assert_close((module(unit) - module.base_layer(unit)).T, exact, rtol=1e-3, atol=1e-3)


def test_training_says_why_it_needs_one_rank(places):
    named = tensors()
    named[f"transformer.{Q}.lora_A.weight"] = DOWN[Q][:2].clone()
    named[f"transformer.{Q}.lora_B.weight"] = UP[Q][:, :2].contiguous()
    save_file(named, places.path)
    places.generate(places.path)
    for look in (places.check, places.train):
        with pytest.raises(ConfigError, match=r"ranks 2, 4.* one rank"):
            look(places.path)


def header(**entries):
    """A safetensors file with this header, and no more."""
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


TORN = {
    "offsets": header(x={"dtype": "F32", "shape": [1], "data_offsets": [0]}),
    "metadata": header(__metadata__={"alpha": 8}),
    "dtype": header(**{"x.lora_A.weight": {"dtype": "F4", "shape": [0, 2], "data_offsets": [0, 0]}}),
    "a name of two lines": header(**{"x\ny.lora_A.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
}


@pytest.mark.parametrize("case", TORN)
def test_a_torn_header_is_one_sentence(places, case):
    places.path.write_bytes(TORN[case])
    message = places.refusal(places.path, case == "offsets")
    assert "\n" not in message and "mine.safetensors" in message


def test_a_file_is_judged_before_its_pipeline_is_here(places):
    data = places.data(places.path)
    data["model"]["path"] = "nobody/has-this"
    save_file(tensors(), places.path)
    assert "no alpha" in check_start(make_config(data).model)
    save_file(changed(f"{Q}.lora_B.weight", lambda t: t * math.nan), places.path)
    with pytest.raises(ConfigError, match="holds NaN"):
        check_start(make_config(data).model)


def test_a_checkpoints_folder_holds_its_adapter_one_level_down(places, tmp_path):
    """As flow_grpo and DiffusionNFT save it; of two, none is chosen."""
    for name in ("lora", "other"):
        folder = tmp_path / "checkpoint-20" / name
        folder.mkdir(parents=True)
        save_file(tensors("base_model.model."), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}')
        if name == "lora":
            scales = places.scale(tmp_path / "checkpoint-20")[0]
            assert scales == pytest.approx(dict.fromkeys(LAYERS, 2.0), rel=1e-4)
    assert "lora/adapter_model.safetensors, other/adapter_model" in places.refusal(tmp_path / "checkpoint-20")


def test_generating_refuses_a_file_before_its_pipeline_is_loaded(places, monkeypatch):
    """Loading one of real size takes minutes."""
    monkeypatch.setattr("diffrl.export.pictures.load_adapter", lambda *_, **__: pytest.fail("loaded"))
    save_file(tensors("", separator="-"), places.path)
    with pytest.raises(ConfigError, match="nothing reaches it"):
        places.generate(places.path)


def test_a_lora_of_sana_by_its_makers_names_is_refused_by_them(random_pipelines, tmp_path):
    layer = "blocks.0.attn.qkv"
    tensors = {f"{layer}.lora_A.weight": torch.ones(2, 8), f"{layer}.lora_B.weight": torch.ones(24, 2)}
    save_file(tensors, tmp_path / "lora.safetensors")
    message = (
        f"nothing reaches it.*{layer}.*sana are read by their names in diffusers alone, such as transformer_blocks"
    )
    with pytest.raises(ConfigError, match=message):
        list(check_lora(str(tmp_path / "lora.safetensors"), str(random_pipelines("sana")), FAMILIES["sana"]))
