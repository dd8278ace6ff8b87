"""Streams that outlive their reader, their disk and their encoding, against the kernel's own errors."""

import io
import os
import sys
import threading

import pytest

from reward_models.common.console import lasting, make_streams_last, output_required
from reward_models.common.errors import RewardError


def text(descriptor, encoding="utf-8", **options):
    return io.TextIOWrapper(io.FileIO(descriptor, "wb"), encoding=encoding, write_through=True, **options)


def buffered(descriptor):
    return open(descriptor, "w", encoding="utf-8")  # noqa: SIM115 - the test closes it


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


@pytest.mark.parametrize("opened", [text, buffered])
def test_a_reader_that_has_gone_ends_nothing(pipe, opened, monkeypatch):
    reader, writer = pipe
    monkeypatch.setattr(sys, "stdout", lasting(opened(os.dup(writer))))
    print("first", flush=True)
    assert os.read(reader, 100) == b"first\n"
    os.close(reader)
    with pytest.raises(SystemExit) as end, output_required():
        print("more", flush=True)
        sys.stdout.buffer.write(b"bytes")
        sys.stdout.flush()
        raise SystemExit(0)
    assert end.value.code == 0


@pytest.mark.parametrize("opened", [text, buffered])
def test_a_full_disk_is_an_error_only_where_output_is_all_there_is(opened, monkeypatch):
    monkeypatch.setattr(sys, "stdout", lasting(opened(os.open("/dev/full", os.O_WRONLY))))
    print("a line")
    with pytest.raises(RewardError, match="No space left on device"), output_required():
        raise SystemExit(0)
    with pytest.raises(SystemExit) as end, output_required():
        raise SystemExit(3)
    assert end.value.code == 3


def test_what_an_encoding_lacks_is_replaced_and_the_rest_is_there(pipe):
    reader, writer = pipe
    lacks = {"latin-1": "? é\n".encode("latin-1"), "ascii": b"? ?\n", "utf-8": "▁ é\n".encode()}
    for encoding, expected in lacks.items():
        print("▁ é", file=lasting(text(os.dup(writer), encoding)), flush=True)
        assert os.read(reader, 100) == expected


def test_a_pipe_that_does_not_block_gets_every_byte(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    read = []

    def drain():
        while chunk := os.read(reader, 65536):
            read.append(chunk)

    thread = threading.Thread(target=drain, daemon=True)
    stream = lasting(buffered(os.dup(writer)))
    thread.start()
    for number in range(50_000):
        print(number, file=stream)
    stream.flush()
    stream.buffer.raw.origin.close()
    os.close(writer)
    thread.join()
    assert b"".join(read).split() == [str(number).encode() for number in range(50_000)]


def test_a_stream_that_is_no_file_stays_itself(pipe, monkeypatch):
    for stream in (io.StringIO(), lasting(buffered(os.dup(pipe[1])))):
        monkeypatch.setattr(sys, "stdout", stream)
        make_streams_last()
        assert sys.stdout is stream
