# SPDX-License-Identifier: Apache-2.0
"""Reads the files that ``ec_protocol.trace.NdjsonSink`` writes."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from ec_protocol.errors import TraceError
from ec_protocol.trace import TRACE_VERSION

#: Versions that are read. What a record of version 2 lacks, one instance of one process
#: could not have.
VERSIONS: Final = (2, TRACE_VERSION)


def read_trace(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a trace file; one that ends in ``.gz`` is unpacked.

    Raises:
        TraceError: Not a trace, an empty one, another version, or a damaged line
            (the message names the line).
    """
    try:
        if str(path).endswith(".gz"):
            yield from _records(path, gzip.open(path, "rb"))  # noqa: SIM115
        else:
            yield from _records(path, open(path, "rb"))  # noqa: SIM115
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise TraceError(f"trace file {path}: damaged gzip: {exc}") from exc
    except OSError as exc:
        raise TraceError(f"trace file {path}: {exc.strerror or exc}") from exc


def _records(path: str | Path, file: gzip.GzipFile | IO[bytes]) -> Iterator[dict[str, Any]]:
    number = 0
    with file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise TraceError(f"trace file {path}, line {number}: not JSON: {exc}") from exc
            if not isinstance(record, dict):
                raise TraceError(f"trace file {path}, line {number}: expected an object")
            if number == 1:
                if record.get("trace_version") not in VERSIONS:
                    raise TraceError(
                        f"trace file {path}: trace_version {record.get('trace_version')!r}, "
                        f"this program reads {' and '.join(map(str, VERSIONS))}"
                    )
                continue
            yield record
    if number == 0:
        raise TraceError(f"trace file {path}: empty, without even a header line")
