# SPDX-License-Identifier: Apache-2.0
"""A trace that cannot be written any more costs the trace and nothing else."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.trace import NdjsonSink, Trace, TraceError
from ec_verify.traces.read import read_trace

BLOCK = 64


def test_a_full_disk_ends_the_trace_and_not_the_engine(tmp_path: Path, caplog):
    sink = NdjsonSink(tmp_path / "t")
    assert sink._file is not None
    sink._file.close()
    sink._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    tier = EncodingTier(4, BLOCK, Trace("engine", lambda: 0.0, sink))
    for name in "abcdefgh":
        entry = tier.alloc(name, BLOCK)
        assert entry is not None
        tier.cancel(entry)
    tier.check()
    assert len([r for r in caplog.records if "ends here: [Errno 28]" in r.message]) == 1
    sink.close()


def test_half_a_line_is_taken_back(tmp_path: Path):
    """The limit of the file's size falls into the middle of a line."""
    sink = NdjsonSink(tmp_path / "t")
    sink({"seq": 0})
    whole = (tmp_path / "t").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 10, limits[1]))
    try:
        sink({"seq": 1, "name": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sink({"seq": 2})
    assert list(read_trace(tmp_path / "t")) == [{"seq": 0}]


@pytest.mark.parametrize("name", ["a\ud800", "é" * 10, "../x y"])
def test_names_of_any_form_can_be_traced(tmp_path: Path, name: str):
    sink = NdjsonSink(tmp_path / "t")
    tier = EncodingTier(4, BLOCK, Trace("engine", lambda: 0.0, sink))
    assert tier.alloc(name, BLOCK) is not None
    sink.close()
    sink.close()
    (record,) = read_trace(tmp_path / "t")
    assert name in json.dumps(record, ensure_ascii=False)


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path):
    with pytest.raises(TraceError, match="trace file"):
        NdjsonSink(tmp_path / "no" / "t")
    with pytest.raises(TraceError, match="No space left"):
        NdjsonSink("/dev/full")
