"""Which of many files a source has, against asking for each of them; numbers of rows, and of changes as text."""

import shutil

import pytest

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import signed
from diffrl.gallery.paths import present
from diffrl.gallery.rows import per_page
from diffrl.gallery.runs import RunSource


def has(source, file):
    """Whether it is given alone."""
    try:
        return bool(source.media(file))
    except GalleryError:
        return False


def test_of_many_files_those_are_there_that_are_given_one_by_one(made, tmp_path):
    folder = made / "samples" / "eval-000004"
    first, *others = sorted(folder.iterdir())
    others[0].unlink()
    secret = tmp_path / "secret.webp"
    shutil.copy(first, secret)
    (folder / "zz-out.webp").symlink_to(secret)
    (folder / "zz-in.webp").symlink_to(first)
    (folder / "zz-lost.webp").symlink_to(folder / "nothing.webp")
    (folder / "zz-folder.webp").mkdir()
    (folder / "zz-text.txt").write_text("x")
    (made / "samples" / "elsewhere").symlink_to(tmp_path)
    names = [first.name, *(one.name for one in others), *(f"zz-{n}.webp" for n in ("out", "in", "lost", "folder"))]
    files = [f"samples/eval-000004/{name}" for name in names]
    files += [f"samples/eval-000002/../eval-000004/{name}" for name in names]
    files += ["samples/elsewhere/secret.webp", "samples/eval-000004/zz-text.txt", "config.yaml", "../secret.webp"]
    files += [
        "samples/eval-000004/a\\b.webp",
        "samples/eval-000004/a\0b.webp",
        "samples/eval-000004/" + "a" * 300 + ".webp",
    ]
    source = RunSource("made", made)
    expected = {file for file in files if has(source, file)}
    assert 2 * len(others) <= len(expected) <= len(files) - 9
    for order in (files, files[::-1]):
        assert present(source.path, order, source.media) == expected


def test_many_columns_have_fewer_rows_at_once():
    assert [per_page(columns) for columns in range(7)] == [24, 24, 24, 20, 15, 12, 12]


CHANGES = {0.0: "±0.000", 1e-6: "±0.000", -1e-7: "±0.000", 0.25: "+0.250", -0.0005001: "−0.001", 1234.4: "+1,234"}
CHANGES |= {0.00049: "+0.0005", -0.00032: "−0.0003", 0.0001: "+0.0001", 0.000041: "+0.00004", -0.0000012: "−0.000001"}


def test_a_change_that_is_more_than_rounding_has_a_digit_that_says_so():
    assert {change: signed(change) for change in CHANGES} == CHANGES


@pytest.mark.browser
@pytest.mark.long
def test_scripts_write_changes_as_the_server_does(page, served, made):
    page.goto(f"{served(made)}/compare")
    assert page.evaluate("all => all.map(numbers.signed)", list(CHANGES)) == list(CHANGES.values())
