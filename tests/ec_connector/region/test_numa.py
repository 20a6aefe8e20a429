# SPDX-License-Identifier: Apache-2.0
"""Memory nodes: which ones the GPUs are at, and that only they change anything."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from ec_connector.region import numa
from tests import needs


def machine(folder: Path, online: str, gpus: Sequence[int]) -> Path:
    """A /sys with GPUs at the given nodes, in PCI order, and a network card."""
    (folder / "devices/system/node").mkdir(parents=True)
    (folder / "devices/system/node/online").write_text(online + "\n")
    cards = [("0x10de", "0x030200", node) for node in gpus] + [("0x15b3", "0x020000", 1)]
    for i, (vendor, kind, node) in enumerate(cards):
        device = folder / "bus/pci/devices" / f"0000:{i:02x}:00.0"
        device.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("class", kind), ("numa_node", str(node))):
            (device / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("text", "nodes"), [("0", [0]), ("0-1", [0, 1]), ("0-1,4", [0, 1, 4]), ("", [0])]
)
def test_online_nodes(tmp_path, text, nodes):
    assert numa.online_nodes(machine(tmp_path, text, [])) == nodes


def test_a_machine_that_says_nothing_has_one_node(tmp_path):
    assert numa.online_nodes(tmp_path) == [0]
    assert numa.gpu_nodes(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [("", [0, 1]), ("0,1", [0]), ("3", [1]), ("1, 2", [0, 1]), ("GPU-af", [0, 1]), ("9", [0, 1])],
)
def test_visible_gpus_decide(tmp_path, visible, nodes):
    sysfs = machine(tmp_path, "0-1", [0, 0, 1, 1])
    assert numa.gpu_nodes(sysfs, {"CUDA_VISIBLE_DEVICES": visible}) == nodes


@pytest.mark.parametrize(
    ("online", "gpus", "calls"),
    [
        ("0-1", [1, 1], [(1, [1]), (0, [])]),
        ("0-1", [0, 1], [(3, [0, 1]), (0, [])]),
        ("0", [0], []),
        ("0-1", [], []),
        ("0-1", [-1], []),
        ("0-1", [7], []),
    ],
)
def test_pages_come_from_the_gpus_nodes(tmp_path, online, gpus, calls):
    made: list[tuple[int, list[int]]] = []

    def set_policy(mode: int, nodes: Sequence[int]) -> bool:
        made.append((mode, list(nodes)))
        return True

    sysfs = machine(tmp_path, online, gpus)
    with numa.near_the_gpus(sysfs, {}, set_policy, lambda: 0) as nodes:
        assert nodes == (calls[0][1] if calls else [])
    assert made == calls


def test_a_policy_of_the_operator_stays(tmp_path):
    sysfs = machine(tmp_path, "0-1", [1])
    with numa.near_the_gpus(sysfs, {}, pytest.fail, lambda: 2) as nodes:
        assert nodes == []


def test_a_refusal_is_no_error(tmp_path):
    sysfs = machine(tmp_path, "0-1", [1])
    with numa.near_the_gpus(sysfs, {}, lambda mode, nodes: False, lambda: 0) as nodes:
        assert nodes == []


def test_the_kernel_understands_the_calls():
    needs.optional(platform.machine() in numa._CALLS, "calls of another machine")
    may = numa.policy() == 0 and numa.set_policy(1, [0])
    needs.optional(may, "a policy is set, or may not be set here")
    try:
        assert numa.policy() == 1
    finally:
        assert numa.set_policy(0, ())
    assert numa.policy() == 0
