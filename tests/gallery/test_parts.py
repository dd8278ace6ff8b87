"""Lines of tables: what is the same fact stands in one."""

from diffrl.gallery.rows import folded


def test_parts_of_one_name_and_equal_values_share_a_line_and_nothing_else_does():
    lines = [
        ("a", (1, 2), 0),
        ("b", (1, 2), 1),
        ("a/colour", (1, 2), 2),
        ("a/count", (1, 2), 3),
        ("b/colour", (1, 2), 4),
        ("b/count", (1, 3), 5),
        ("c/colour", (1, 2), 6),
        ("b/count/more", (1, 2), 7),
    ]
    assert folded(lines) == [
        ("a", 0),
        ("b", 1),
        ("a/colour = b/colour = c/colour", 2),
        ("a/count", 3),
        ("b/count", 5),
        ("b/count/more", 7),
    ]
    assert folded([]) == []
