# SPDX-License-Identifier: Apache-2.0
"""Saves are reported with the step that made them, if they end in time.

A report that misses its step waits for the end of the next one, however long the model
runs, and until then the encoding is served to nobody.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ec_connector.engine import worker
from ec_connector.engine.messages import CopyReport, StepMetadata
from tests.ec_connector.engine.test_worker import Rank, encoding, one, save_op

__all__ = ["one"]  # a fixture


def test_save_is_reported_with_its_own_step(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SETTLE_S", 10.0)
    report = one.step(StepMetadata(1, (save_op(1, "a", 0, 3),)), {"a": encoding(3)})
    assert report.entries == (CopyReport(1, 0, True),)


def test_slow_save_holds_nobody_up(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    run = one.engine._run

    def slow(task: object) -> bool:
        gate.wait(30)
        return run(task)  # type: ignore[arg-type]

    monkeypatch.setattr(one.engine, "_run", slow)
    monkeypatch.setattr(worker, "SETTLE_S", 0.01)
    assert one.step(StepMetadata(1, (save_op(1, "a", 0, 3),)), {"a": encoding(3)}) is None
    gate.set()
    assert one.reports() == [CopyReport(1, 0, True)]


def test_step_without_saves_does_not_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(folder)
    waited: list[float] = []
    monkeypatch.setattr(rank.engine, "settle", waited.append)
    rank.step(StepMetadata(1))
    assert waited == []
    rank.step(StepMetadata(2, (save_op(1, "a", 0, 3),)), {"a": encoding(3)})
    rank.step(StepMetadata(3))
    assert waited == [worker.SETTLE_S]
    rank.close()


def test_settling_is_bounded(one: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(one.engine, "_run", lambda task: gate.wait(30))
    one.begin(StepMetadata(1, (save_op(1, "a", 0, 3),)), {"a": encoding(3)})
    started = time.monotonic()
    one.engine.settle(0.05)
    assert 0.04 < time.monotonic() - started < 20
    gate.set()
