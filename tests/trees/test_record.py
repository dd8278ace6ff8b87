"""The document of a tree: what is written is read back, and what is broken is said in one sentence."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

import diffrl.trees.write as trees_write
from diffrl.errors import DiffrlError
from diffrl.trees.read import list_trees, read_tree
from diffrl.trees.record import DOCUMENT, TREES, TreeLeaf, TreeNode, TreeRecord, UpdateEffect
from diffrl.trees.write import drop_trees, write_tree
from reward_models.media import read_media, save_media

PROMPT = '<script>alert("x")</script> رمز 🙂\n\u2028"quoted"'
GENERATOR = torch.Generator().manual_seed(5)
PICTURE = torch.randint(0, 256, (3, 11, 7), generator=GENERATOR, dtype=torch.uint8)
CLIP = torch.randint(0, 256, (5, 3, 11, 7), generator=GENERATOR, dtype=torch.uint8)
NAN = float("nan")


def record(iteration=20, group=3, **changes):
    leaf = TreeLeaf(
        path=(1,), proxy=0.25, proxy_picture="proxy-2.webp", chosen="best 1", total=0.5,
        rewards={"shapes": 0.5, "shapes/strict": None}, advantage=1.5, trained=True,
    )  # fmt: skip
    push = UpdateEffect(0.5, True, 0.25, 2, {1: -0.75, 2: 0.75}, 0.0125, -0.5, 1.0, "before-0.webp", "aim-0.webp")
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.5, picture="node-0.webp", update_effect=push),
        TreeNode(1, 0, 0, 0, 2, 0.25, sampled=False, leaf=TreeLeaf(path=(0,), proxy=0.125, error="no such picture")),
        TreeNode(
            2,
            0,
            0,
            1,
            2,
            0.25,
            True,
            0.5,
            -1.25,
            True,
            True,
            -0.001,
            "node-2.webp",
            leaf,
            centre=0.125,
            spread=0.1001,
            turns={2: True},
            pruned=False,
        ),
    ]
    fields = {
        "prompt": PROMPT,
        "seed": 2**62,
        "sigmas": [1.0, 0.5, 0.25, 0.0],
        "branching": {2: 2},
        "rule": {"reward": "turning_point", "edges": True},
        "explored": {"precision": "nvfp4", "candidates": 2},
        "nodes": nodes,
        "metadata": {"objects": [{"count": 2}], "weight": 0.1},
        "weights": {"shapes": {"weight": -0.5, "shift": 0.0, "scale": 2}},
    }
    return TreeRecord(iteration, group, **{**fields, **changes})


def document(run, name="000020-3"):
    return run / TREES / name / DOCUMENT


def test_what_is_written_is_read_back(tmp_path):
    folder = write_tree(tmp_path, record(), {"node-0.webp": PICTURE, "node-2.webp": CLIP}, fps=8)
    assert folder == tmp_path / "trees/000020-3" and list_trees(tmp_path) == [(20, 3)]
    assert read_tree(tmp_path, 20, 3) == record()
    for file, expected in (("node-0.webp", PICTURE), ("node-2.webp", CLIP)):
        with Image.open(folder / file) as image:
            assert torch.equal(read_media(image), expected)
    assert sorted(path.name for path in folder.iterdir()) == ["node-0.webp", "node-2.webp", "tree.json"]


def test_records_without_what_came_later_are_read(tmp_path):
    """As they were written before there were any, or by another name."""
    write_tree(tmp_path, record(), {})
    data = json.loads(document(tmp_path).read_text(encoding="utf-8"))
    for node in data["nodes"]:
        node["drawn"], node["pushed"] = node.pop("sampled"), node.pop("update_effect")
    document(tmp_path).write_text(json.dumps(data), encoding="utf-8")
    assert read_tree(tmp_path, 20, 3) == record()
    del data["weights"]
    for node in data["nodes"]:
        del node["pushed"]
        for key in ("credited", "centre", "spread", "turns", "pruned"):
            del node[key]
        for key in ("centre", "spread") if node["leaf"] else ():
            del node["leaf"][key]
    document(tmp_path).write_text(json.dumps(data), encoding="utf-8")
    nodes = [
        replace(node, update_effect=None, centre=None, spread=None, turns=None, pruned=None) for node in record().nodes
    ]
    assert read_tree(tmp_path, 20, 3) == record(weights={}, nodes=nodes)


def test_larger_pictures_are_written_small(tmp_path):
    """Up to 64 pixels every one is exact; above, a picture is what it was to the eye, at a fraction of the bytes."""
    rows, columns = torch.meshgrid(torch.linspace(0, 200, 96), torch.linspace(0, 200, 160), indexing="ij")
    noise = torch.randint(0, 9, (3, 96, 160), generator=GENERATOR)
    smooth = (torch.stack([rows, columns, 200 - rows]) + noise).to(torch.uint8)
    clip = torch.stack([smooth, smooth, smooth.flip(2), smooth])
    crisp = torch.randint(0, 256, (3, 64, 64), generator=GENERATOR, dtype=torch.uint8)
    media = {"node-0.webp": smooth, "node-2.webp": clip, "proxy-2.webp": crisp}
    folder = write_tree(tmp_path, record(), media, fps=8)
    for name, expected in media.items():
        with Image.open(folder / name) as image:
            found = read_media(image)
            assert getattr(image, "n_frames", 1) == 1 or sum(_durations(image)) == 500
        error = (found.float() - expected.float()).abs()
        assert (
            found.shape == expected.shape and (float(error.mean()) < 4) and (name != "proxy-2.webp" or not error.any())
        )
    save_media(smooth, tmp_path / "exact.webp", 8)
    assert 3 * (folder / "node-0.webp").stat().st_size < (tmp_path / "exact.webp").stat().st_size


def _durations(image):
    for frame in range(image.n_frames):
        image.seek(frame)
        image.load()
        yield image.info["duration"]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    leaf = TreeLeaf(proxy=math.inf, total=NAN, rewards={"shapes": NAN}, advantage=-math.inf)
    nodes = [
        TreeNode(
            0, None, 0, 0, None, 1.0, value=NAN, leaf=leaf, update_effect=UpdateEffect(1.0, True, NAN, 0, {}, NAN, NAN)
        )
    ]
    write_tree(tmp_path, record(nodes=nodes, metadata={"x": [NAN, 1]}), {})
    assert not {"NaN", "Infinity"} & set(document(tmp_path).read_text().replace(":", " ").replace(",", " ").split())
    found = read_tree(tmp_path, 20, 3)
    leaf, effect = TreeLeaf(rewards={"shapes": None}), UpdateEffect(1.0, True, None, 0)
    assert found.nodes[0] == TreeNode(0, None, 0, 0, None, 1.0, leaf=leaf, update_effect=effect)
    assert found.metadata == {"x": [None, 1]}


def test_a_tree_that_exists_is_replaced_with_its_pictures(tmp_path):
    write_tree(tmp_path, record(), {"node-0.webp": PICTURE})
    write_tree(tmp_path, record(prompt="another"), {"node-2.webp": PICTURE})
    assert read_tree(tmp_path, 20, 3).prompt == "another" and len(list((tmp_path / TREES).iterdir())) == 1
    assert sorted(path.name for path in document(tmp_path).parent.iterdir()) == ["node-2.webp", "tree.json"]


@pytest.mark.parametrize("at", [1, 2])
def test_a_tree_that_was_not_finished_is_not_there(tmp_path, monkeypatch, at):
    write_tree(tmp_path, record(4), {})
    calls, save = [], trees_write.save_illustration

    def ends(*args):
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trees_write, "save_illustration", ends)
        with pytest.raises(KeyboardInterrupt):
            write_tree(tmp_path, record(), {"node-0.webp": PICTURE, "node-2.webp": PICTURE})
    assert list_trees(tmp_path) == [(4, 3)]
    with pytest.raises(DiffrlError, match="There is no tree of iteration 20, group 3 in"):
        read_tree(tmp_path, 20, 3)
    write_tree(tmp_path, record(), {"node-2.webp": PICTURE})
    assert sorted(path.name for path in document(tmp_path).parent.iterdir()) == ["node-2.webp", "tree.json"]


def test_going_back_removes_later_trees_and_halves(tmp_path):
    for iteration in (0, 7, 8, 1_234_567):
        write_tree(tmp_path, record(iteration, 12), {})
    (tmp_path / TREES / ".000003-0.tmp").mkdir()
    (tmp_path / TREES / "notes").mkdir()
    drop_trees(tmp_path, 8)
    assert list_trees(tmp_path) == [(0, 12), (7, 12)]
    assert sorted(path.name for path in (tmp_path / TREES).iterdir()) == ["000000-12", "000007-12", "notes"]
    drop_trees(tmp_path, -1)
    assert list_trees(tmp_path) == [] and (tmp_path / TREES / "notes").is_dir()
    drop_trees(tmp_path / "nowhere", 0)


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    write_tree(tmp_path, record(), {"node-0.webp": PICTURE})
    save = trees_write.save_illustration

    def full(media, path, fps):
        if path.name == "node-2.webp":
            raise OSError(28, "No space left on device")
        save(media, path, fps)

    monkeypatch.setattr(trees_write, "save_illustration", full)
    with pytest.raises(DiffrlError, match="No space left on device"):
        write_tree(tmp_path, record(prompt="new"), {"node-0.webp": PICTURE, "node-2.webp": PICTURE})
    assert [path.name for path in (tmp_path / TREES).iterdir()] == ["000020-3"]
    assert read_tree(tmp_path, 20, 3).prompt == PROMPT  # the one that was there


def edited(change):
    def corrupt(text):
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return corrupt


CORRUPTIONS = {
    "cut off": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "deep": lambda text: "[" * 200_000,
    "another format": lambda text: text.replace('"format":1', '"format":2'),
    "no nodes": edited(lambda data: data.pop("nodes")),
    "another group": edited(lambda data: data.update(group=4)),
    "an unknown key": edited(lambda data: data.update(surprise=1)),
    "a parent behind": edited(lambda data: data["nodes"][1].update(parent=2)),
    "another place": edited(lambda data: data["nodes"][1].update(id=2)),
    "a flag for a number": edited(lambda data: data["nodes"][1].update(sigma=True)),
    "a prompt of numbers": edited(lambda data: data.update(prompt=[1])),
    "a step beyond the last": edited(lambda data: data["nodes"][1].update(step=3)),
    "no step to a node": edited(lambda data: data["nodes"][1].update(step=None)),
    "a split beyond the last step": edited(lambda data: data.update(branching={"3": 2})),
    "a noise level without end": lambda text: text.replace('"sigmas":[1.0', '"sigmas":[1e999'),
    "a value beyond all floats": edited(lambda data: data["nodes"][1].update(value=10**400)),
    "a weight alone": edited(lambda data: data.update(weights={"shapes": 0.5})),
    "a weight without a scale": edited(lambda data: data["weights"]["shapes"].pop("scale")),
    "a weight of truth": edited(lambda data: data["weights"]["shapes"].update(weight=True)),
    "a rule of lists": edited(lambda data: data["rule"].update(value=[])),
    "an unknown key of a push": edited(lambda data: data["nodes"][0]["update_effect"].update(surprise=1)),
    "a push without a size": edited(lambda data: data["nodes"][0]["update_effect"].pop("size")),
    "a pull beyond all floats": edited(lambda data: data["nodes"][0]["update_effect"]["pulls"].update({"2": 10**400})),
    "a pull of a node before all": edited(lambda data: data["nodes"][0]["update_effect"]["pulls"].update({"-1": 1.0})),
    "a turn of no sample": edited(lambda data: data["nodes"][2].update(turns={"0": True})),
    "a turn of numbers": edited(lambda data: data["nodes"][2].update(turns={"2": 1})),
    "an aim elsewhere": edited(lambda data: data["nodes"][0]["update_effect"].update(aim="../config.yaml")),
    "a picture elsewhere": edited(lambda data: data["nodes"][0].update(picture="../../config.yaml")),
    "a proxy elsewhere": edited(lambda data: data["nodes"][2]["leaf"].update(proxy_picture="/etc/passwd")),
}


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_a_broken_document_is_one_sentence(tmp_path, how):
    write_tree(tmp_path, record(), {})
    text = document(tmp_path).read_text()
    document(tmp_path).write_text(CORRUPTIONS[how](text))
    with pytest.raises(DiffrlError) as caught:
        read_tree(tmp_path, 20, 3)
    said = str(caught.value)
    assert said.startswith(f"The tree {document(tmp_path)} cannot be read: ") and said.endswith(".")
    assert len(said) < len(str(tmp_path)) + 250 and "\n" not in said


@pytest.mark.parametrize("name", ["1" * 13 + "-1", "000020-" + "1" * 10, "٠٠٠٠٢٠-3", "00020-3"])
def test_folders_of_other_names_are_no_trees(tmp_path, name):
    write_tree(tmp_path, record(), {})
    document(tmp_path).parent.rename(tmp_path / TREES / name)
    assert list_trees(tmp_path) == []


def test_bytes_that_are_no_text_are_one_sentence(tmp_path):
    write_tree(tmp_path, record(), {})
    document(tmp_path).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DiffrlError, match="cannot be read: "):
        read_tree(tmp_path, 20, 3)


def test_reading_needs_no_torch():
    code = "import sys, diffrl.trees.read; sys.exit(bool({'torch', 'PIL', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
