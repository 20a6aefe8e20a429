# SPDX-License-Identifier: Apache-2.0
"""Messages between scheduler and workers: plain, frozen, picklable."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from ec_connector.engine.messages import CopyReport, LoadOp, SaveOp, StepMetadata, WorkerReport

MESSAGES = [
    SaveOp(1, "a", ((0, 2),), 77),
    LoadOp(2, "b", ((4, 1), (0, 1)), 40, (5, 4), "bfloat16"),
    StepMetadata(3),
    StepMetadata(
        3,
        (SaveOp(1, "a", ((0, 2),), 77),),
        (LoadOp(2, "b", ((4, 1),), 8, (4,), "uint8"),),
        bytes(range(16)),
    ),
    CopyReport(1, 0, True),
    WorkerReport((CopyReport(1, 0, True), CopyReport(2, 0, False))),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_messages_cross_process_borders(message: Any, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(message, protocol)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_cannot_be_changed(message: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, dataclasses.fields(message)[0].name, 0)


def test_reports_of_several_ranks_are_joined_in_order() -> None:
    first = WorkerReport((CopyReport(1, 0, True),))
    second = WorkerReport((CopyReport(1, 1, False), CopyReport(2, 1, True)))
    assert first.aggregate(second) == WorkerReport(
        (CopyReport(1, 0, True), CopyReport(1, 1, False), CopyReport(2, 1, True))
    )
    assert first == WorkerReport((CopyReport(1, 0, True),))
    assert WorkerReport().aggregate(first) == first == first.aggregate(WorkerReport())
