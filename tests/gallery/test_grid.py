"""Runs by iterations: every cell is the same prompt and noise, of its own run and evaluation."""

import re

from diffrl.gallery.pages.grid import ACROSS, across
from diffrl.gallery.records import State
from tests.gallery.made import PROMPTS, add_evaluation, make_run


def cells(page):
    """By the title of a run what each of its cells shows: a picture's file, or None."""
    lines = re.findall(r'<th scope="row">.*?<a [^>]*>([\w-]+)</a></th>(.*?)</tr>', page, re.S)
    return {
        name: [(re.search(r'src="/media/[\w-]+/(\S+?)\?', cell) or [None, None])[1] for cell in row.split("</td>")[:-1]]
        for name, row in lines
    }


def test_each_cell_is_of_its_run_and_iteration(tmp_path, client_of):
    one, two = (make_run(tmp_path / "runs" / name) for name in ("one", "two"))
    add_evaluation(two, 7)
    (two / "rewards.json").write_text("{}")
    make_run(tmp_path / "runs" / "other", prompts=("nobody else has it",))
    client = client_of(one, two)
    page = client.get("/grid?sample=3").text
    assert re.findall(r'<th scope="col">(\w+)<', page) == ["run", "0", "2", "4", "7"]
    files = [f"samples/eval-00000{n}/1-0.webp" for n in (0, 2, 4, 7)]
    assert cells(page) == {"one": [*files[:3], None], "two": files}
    assert f">{PROMPTS[1]}</h1>" in page and "no sample" in page and "sample 3 of 6" in page
    assert client.get("/grid?sample=7").status_code == 400
    apart = client_of(one, tmp_path / "runs" / "other").get("/grid")
    assert apart.status_code == 404 and "have in common. These have none" in apart.text
    three = cells(client_of(one, two, tmp_path / "runs" / "other").get("/grid?sample=3").text)
    assert three == {**cells(page), "other": [None] * 4}
    assert client_of(one).get("/grid").status_code == 200


def test_of_many_evaluations_some_stand_there_the_first_and_the_last_among_them():
    found = across([[State("eval", 10 * n) for n in range(40)], [State("eval", 7), State("train", 3)]])
    assert found[0] == 0 and found[-1] == 390 and len(found) <= ACROSS + 1 and 3 not in found
