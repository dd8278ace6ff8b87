import json

import numpy as np
import pytest
import torch

from diffrl.errors import DiffrlError
from diffrl.tracking.metrics import MetricsLog, read_metrics


def rows(count):
    return [{"iteration": i, "loss": i / 3, "phase": "update"} for i in range(count)]


def write(path, count):
    with MetricsLog(path) as log:
        for row in rows(count):
            log.append(row)


def test_rows_come_back_exactly_and_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path)
    for i, row in enumerate(rows(5), start=1):
        log.append(row)
        assert read_metrics(path) == rows(i)
    log.close()
    log.close()


def test_what_is_not_finite_becomes_null(tmp_path):
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.append(
            {"a": float("nan"), "b": float("inf"), "c": np.float32("-inf"), "d": torch.tensor(0.5), "e": np.int64(3)}
        )

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    line = (tmp_path / "m.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {"a": None, "b": None, "c": None, "d": 0.5, "e": 3}


def test_truncate_drops_later_rows_and_goes_on(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 7)
    with MetricsLog(path) as log:
        log.append({"event": "resumed"})
        log.truncate_after(4)
        log.append({"iteration": 5, "loss": 0.0})
    assert read_metrics(path) == [*rows(5), {"event": "resumed"}, {"iteration": 5, "loss": 0.0}]
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]


def test_truncate_keeps_the_bytes_of_what_stays(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"iteration":0,  "x": 1.50}\n{"iteration": 9}\n')
    with MetricsLog(path) as log:
        log.truncate_after(0)
    assert path.read_bytes() == b'{"iteration":0,  "x": 1.50}\n'


@pytest.mark.parametrize("torn", [None, b'{"iteration": 3, "lo', b"\0\0\0", b"\xff", b"17"])
def test_a_torn_last_line_is_left_out_and_never_glued_to_the_next(tmp_path, torn):
    """One that lost its newline alone, None, is whole."""
    path = tmp_path / "m.jsonl"
    write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if torn is None else whole + torn)
    assert read_metrics(path) == rows(3)
    with MetricsLog(path) as log:
        log.append({"iteration": 3})
    assert read_metrics(path) == [*rows(3), {"iteration": 3}]


def test_damage_elsewhere_names_the_line_and_changes_nothing(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"iteration": 0}\n{"iter\n{"iteration": 2}\n')
    before = path.read_bytes()
    with pytest.raises(DiffrlError, match="line 2"):
        read_metrics(path)
    with pytest.raises(DiffrlError, match="line 2"):
        MetricsLog(path)
    assert path.read_bytes() == before
    with pytest.raises(DiffrlError, match=r"Cannot read the metrics in .*none\.jsonl"):
        read_metrics(tmp_path / "none.jsonl")


def test_an_interrupted_rewrite_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    write(path, 5)
    log = MetricsLog(path)

    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("diffrl.files.os.replace", refuse)
    with pytest.raises(DiffrlError, match="No space left"):
        log.truncate_after(1)
    assert read_metrics(path) == rows(5)
