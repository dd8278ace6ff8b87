"""Folders of images with prompts, each odd in one way: what is found for each image, or why not; none ends others."""

import codecs
import csv
import json

import numpy as np
import pytest
from PIL import ExifTags, Image

from reward_models.common.reading import Unreadable
from reward_models.scoring.embedded import positive_text
from reward_models.scoring.sources import Selection, collect
from tests.files.made import graph, with_text

CAT, DOG = "a red circle", "a blue square"
SETTINGS = f"{CAT}\nNegative prompt: blurry\nSteps: 20, Sampler: Euler"


def images(folder, *names):
    for name in names or ("a.png", "b.png", "c.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(folder / name)


def table(folder, *rows, name="metadata.jsonl", encoding="utf-8", newline="\n"):
    text = newline.join(row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    (folder / name).write_bytes(text.encode(encoding))


def comma_table(folder, *rows, delimiter=",", encoding="utf-8", name="metadata.csv"):
    with (folder / name).open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def found(folder, **options):
    """By image: its prompt, or why there is none."""
    items = collect(Selection([str(folder)], **options)).items
    return {item.path.relative_to(folder).as_posix(): item.prompt or item.problem for item in items}


def three(folder, *prompts):
    images(folder)
    return [{"file_name": f"{name}.png", "text": text} for name, text in zip("abc", prompts, strict=True)]


def unlisted(folder):
    table(folder, *three(folder, CAT, CAT, CAT)[:2])


def one_null(folder):
    table(folder, *three(folder, CAT, None, CAT))


def one_line_broken(folder):
    first, _, third = three(folder, CAT, CAT, CAT)
    table(folder, first, "{broken", third)


def twice(folder):
    first, second, third = three(folder, CAT, CAT, CAT)
    table(folder, first, {**first, "text": DOG}, second, third)


def other_names(folder):
    images(folder, "a.png", "sub/b.png", "sub/C.PNG")
    table(
        folder,
        {"file_name": "./a.png", "text": CAT},
        {"file_name": "sub\\b.png", "text": CAT},
        {"file_name": f"{folder.name}/sub/c.png", "text": CAT},
    )


def named_otherwise(folder):
    images(folder)
    table(folder, *({"path": f"{name}.png", "PROMPT": [CAT, DOG]} for name in "abc"))


def marked(folder):
    table(folder, *three(folder, CAT, CAT, CAT), encoding="utf-8-sig", newline="\r\n")


def commas(folder):
    images(folder)
    comma_table(folder, ["file_name", "text"], *([f"{name}.png", CAT] for name in "abc"), encoding="utf-8-sig")


def latin(folder):
    images(folder)
    rows = [["file_name", "text"], ["a.png", CAT], ["b.png", "ein grüner Kreis"], ["c.png", CAT]]
    comma_table(folder, *rows, encoding="latin-1")


def no_table(folder):
    images(folder)
    (folder / "metadata.parquet").write_bytes(b"PAR1 no table PAR1")
    for name in "ac":
        (folder / f"{name}.txt").write_text(CAT)


def columns_of_bytes(folder):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images(folder)
    names = [f"{name}.png" for name in "abc"]
    columns = {"image": [{"bytes": b"1", "path": None}] * 3, "raw": [b"2"] * 3, "file_name": names, "text": [CAT] * 3}
    pq.write_table(pa.table(columns), folder / "metadata.parquet")


def beside(folder):
    images(folder)
    (folder / "a.caption").write_text(CAT)
    (folder / "b.json").write_text(json.dumps({"caption": CAT, "score": 3}))
    (folder / "c.png.txt").write_bytes(codecs.BOM_UTF16_LE + CAT.encode("utf-16-le"))


def bad_beside(folder):
    images(folder)
    (folder / "a.txt").write_text(CAT)
    (folder / "b.txt").write_bytes("ein grüner Kreis".encode("latin-1"))
    (folder / "c.json").write_text("{broken")
    table(folder, {"file_name": "c.png", "text": DOG})


def nearest(folder):
    images(folder)
    with_text(folder / "c.png", parameters=SETTINGS)
    (folder / "a.txt").write_text(CAT)
    table(folder, {"file_name": "a.png", "text": DOG}, {"file_name": "b.png", "text": CAT})


def a1111(folder):
    with_text(folder / "a.png", parameters=SETTINGS)
    with_text(folder / "d.png", parameters=f"{CAT} Negative prompt: blurry Steps: 20, Sampler: Euler")
    with_text(folder / "e.png", parameters="Steps: 20, Sampler: Euler")
    with_text(folder / "f.png", prompt=CAT)
    comments = {
        "b.jpg": b"UNICODE\0" + SETTINGS.encode("utf-16-be"),
        "c.webp": b"UNICODE\0" + SETTINGS.encode("utf-16-le"),
        "g.jpg": b"ASCII\0\0\0" + SETTINGS.encode(),
        "h.jpg": b"ASCII\0\0\0taken by a camera",
    }
    for name, comment in comments.items():
        exif = Image.Exif()
        exif[ExifTags.IFD.Exif] = {ExifTags.Base.UserComment: comment}
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / name, exif=exif)


def comfyui(folder):
    with_text(folder / "a.png", prompt=graph(CAT), workflow={"nodes": []})
    with_text(folder / "b.png", prompt={"1": {"class_type": "LoadImage", "inputs": {"image": "x.png"}}})
    exif = Image.Exif()
    exif[ExifTags.Base.Model] = f"prompt:{json.dumps(graph(CAT))}"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "c.webp", exif=exif)


ALL = {"a.png": CAT, "b.png": CAT, "c.png": CAT}


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (unlisted, {**ALL, "c.png": None}),
        (one_null, {**ALL, "b.png": "metadata.jsonl:2 has null"}),
        (one_line_broken, {**ALL, "b.png": "metadata.jsonl:2: it is no JSON"}),
        (twice, {**ALL, "a.png": "says two prompts of a.png"}),
        (other_names, {"a.png": CAT, "sub/b.png": CAT, "sub/C.PNG": CAT}),
        (named_otherwise, ALL),
        (marked, ALL),
        (commas, ALL),
        (latin, {**ALL, "b.png": "cannot be read as UTF-8"}),
        (no_table, {**ALL, "b.png": "metadata.parquet cannot be read as a table"}),
        (columns_of_bytes, ALL),
        (beside, ALL),
        (bad_beside, {**ALL, "b.png": "b.txt cannot be read as UTF-8", "c.png": "c.json is no JSON"}),
        (nearest, ALL),
        (
            a1111,
            {
                **{name: CAT for name in ("a.png", "b.jpg", "c.webp", "d.png", "f.png", "g.jpg")},
                "e.png": "e.png is empty",
                "h.jpg": None,
            },
        ),
        (comfyui, {"a.png": CAT, "b.png": "cannot be told: its ComfyUI graph leads to no positive", "c.webp": CAT}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_image_has_its_prompt_or_the_reason_why_not(write, expected, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    write(folder)
    rows = found(folder)
    assert rows.keys() == expected.keys()
    wrong = {name: (rows[name], wanted) for name, wanted in expected.items() if wanted != rows[name]}
    assert all(wanted is not None and wanted in str(got) for got, wanted in wrong.values()), wrong


def test_one_row_fails_and_the_others_are_scored_and_where_prompts_come_from_is_said_once(tmp_path, capsys):
    from reward_models.cli import main

    folder = tmp_path / "images"
    folder.mkdir()
    bad_beside(folder)
    with pytest.raises(SystemExit) as end:
        main(["score", str(folder), "--reward", "shapes", "--no-cache"])
    said = capsys.readouterr().out
    assert not end.value.code and "shapes failed for 2 of 3 files" in said
    assert said.count("The first that is there counts") == 1 and "1 from .txt, 2 from nowhere" in said


def test_the_text_is_that_of_the_sampler_whose_image_is_saved():
    first = graph(DOG)
    second = {
        "20": {"class_type": "CLIPTextEncodeFlux", "inputs": {"clip_l": CAT, "t5xxl": CAT, "clip": ["1", 1]}},
        "21": {"class_type": "FluxGuidance", "inputs": {"conditioning": ["20", 0], "guidance": 3.5}},
        "22": {"class_type": "BasicGuider", "inputs": {"model": ["1", 0], "conditioning": ["21", 0]}},
        "23": {"class_type": "SamplerCustomAdvanced", "inputs": {"guider": ["22", 0], "latent_image": ["6", 0]}},
        "24": {"class_type": "VAEDecode", "inputs": {"samples": ["23", 0], "vae": ["1", 2]}},
        "8": {"class_type": "SaveImage", "inputs": {"images": ["24", 0]}},
    }
    assert positive_text(first) == DOG
    del first["7"]  # a second sampler goes on from the first one's latents
    assert positive_text({**first, **second}) == CAT
    both = {**graph(DOG), **{key: node for key, node in second.items() if key != "8"}}
    with pytest.raises(Unreadable, match="2 positive texts"):
        positive_text({**both, "30": {"class_type": "SaveImage", "inputs": {"images": ["24", 0]}}})
    turning = graph(DOG)
    turning["3"]["inputs"]["text"] = ["3", 0]
    with pytest.raises(Unreadable, match="no positive text"):
        positive_text(turning)


@pytest.mark.parametrize("value", [None, [], {"1": 2}, {"1": {"inputs": []}}])
def test_what_is_no_graph_leads_to_no_text(value):
    with pytest.raises(Unreadable):
        positive_text(value)
