# SPDX-License-Identifier: Apache-2.0
"""Over which network devices a data plane talks and listens."""

from __future__ import annotations

import ipaddress
import logging
import socket
from contextlib import suppress
from typing import Any

import pytest

from ec_connector.config.peers import ONLY_HERE
from ec_connector.processes import devices
from ec_connector.processes.devices import reading_from, serving_on
from tests.needs import optional

pytestmark = pytest.mark.clause("EC-15.7")


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_INFINIBAND", "/nowhere")


def own() -> tuple[str, str]:
    """An address of this host that others could reach, and its device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("198.51.100.1", 9))  # nobody's: by the default route
        mine = str(probe.getsockname()[0])
        device = devices._device_of(ipaddress.ip_address(mine))
        if device not in (None, "lo"):
            return mine, str(device)
    optional(False, "this host has no address but its own loopback ones")
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.3.3.3", "localhost", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_who_binds_loopback_serves_there(host: str) -> None:
    assert serving_on(host) == "lo"


@pytest.mark.parametrize("host", [name for _, name in socket.if_nameindex()])
def test_who_binds_a_device_serves_there(host: str) -> None:
    """ZMQ binds names of devices too."""
    with suppress(OSError):
        socket.getaddrinfo(host, None)
        optional(False, "some host has the name of a device of ours, and goes before")
    assert serving_on(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", "no.such.host.invalid", "203.0.113.9"])
def test_who_binds_everything_or_nothing_known_is_told_nothing(host: str) -> None:
    assert serving_on(host) == ""


@pytest.mark.parametrize(
    "rules", [ONLY_HERE, ["localhost"], ["127.0.0.1"], ["127.0.0.0/8"], ["::1"], []]
)
def test_who_reads_from_this_host_listens_there_alone(rules: Any) -> None:
    assert reading_from(rules) == "lo"


def test_who_reads_from_a_network_listens_on_its_device_and_no_other() -> None:
    address, device = own()
    assert serving_on(address) == device
    assert reading_from([address]) == device
    assert reading_from([f"{address.rpartition('.')[0]}.0/24"]) == device
    assert reading_from([address, "localhost"]) == f"{device},lo"


@pytest.mark.parametrize("rule", ["0.0.0.0/0", "::/0", "no.such.host.invalid"])
def test_who_may_read_from_anywhere_is_told_nothing_and_it_is_said(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert reading_from(["127.0.0.1", rule]) == ""
    assert f"{rule} is reached is not known" in caplog.text
    assert reading_from(["*"]) == ""


def test_where_a_card_does_rdma_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(devices, "_INFINIBAND", str(tmp_path))
    assert serving_on("127.0.0.1") == reading_from(["127.0.0.1"]) == ""


def test_an_address_of_ipv6_has_a_device_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    table = tmp_path / "if_inet6"
    table.write_text("fd000000000000000000000000000002 04 40 00 82     eth7\n")
    monkeypatch.setattr(devices, "_IF_INET6", str(table))
    assert serving_on("fd00::2") == "eth7"
    assert serving_on("fd00::3") == ""
    monkeypatch.setattr(devices, "_IF_INET6", "/nowhere")
    assert serving_on("fd00::2") == ""
