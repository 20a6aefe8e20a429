# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: every ``World`` of a test run records into a trace of its own.

``pytest -p tests.ec_protocol.record_worlds`` with ``EC_TRACE_FOLDER`` set.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ec_protocol.trace import NdjsonSink
from tests.recording import as_told, checkable
from tests.world.core import World


@pytest.fixture(autouse=True)
def _record(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = Path(os.environ["EC_TRACE_FOLDER"])
    name = request.node.nodeid.rpartition("/")[2].replace("/", "-").replace("::", "-")
    numbers = itertools.count(1)
    open_sinks = []
    build = World.__init__

    def recording(world: World, **options: Any) -> None:
        if options.get("sink") is None:
            sink = NdjsonSink(folder / f"{name}-{next(numbers)}.ndjson")
            open_sinks.append(sink)

            options["sink"] = as_told(checkable(sink))
        build(world, **options)

    monkeypatch.setattr(World, "__init__", recording)
    yield
    for sink in open_sinks:
        sink.close()
