# SPDX-License-Identifier: Apache-2.0
"""Configuration of who is let in: keys, and what may be bound without them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.config.keyfiles import KeyFileError
from ec_connector.config.settings import ECConfig
from ec_connector.network import addresses
from ec_connector.network.addresses import BindError, address_to_bind
from ec_protocol.errors import ConfigError
from tests.world.instance import Node
from tests.world.keys import Fleet


def parse(**extra: Any) -> ECConfig:
    return ECConfig.parse({"ec_cpu_bytes": 1, "ec_enable_nixl": True, **extra}, "ec_both")


# ---------------------------------------------------------------------------- keys
def test_there_are_no_keys_unless_they_are_given() -> None:
    made = parse()
    assert (made.key_file, made.peer_keys, made.serves_anywhere) == (None, None, False)
    made = parse(ec_key_file="a", ec_peer_keys="b")
    assert (made.key_file, made.peer_keys, made.serves_anywhere) == ("a", "b", True)
    assert parse(ec_insecure_control="true").serves_anywhere


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize(
    ("extra", "fix"),
    [
        ({"ec_key_file": "a"}, "ec_key_file='a': .*set ec_peer_keys"),
        ({"ec_peer_keys": "b"}, "ec_peer_keys='b': .*set ec_key_file"),
        (
            {"ec_key_file": "a", "ec_peer_keys": "b", "ec_enable_nixl": False},
            "ec_key_file='a': .*set ec_enable_nixl to true",
        ),
        ({"ec_key_file": 5, "ec_peer_keys": "b"}, "ec_key_file=5"),
        ({"ec_key_file": "", "ec_peer_keys": "b"}, "ec_key_file=''"),
        ({"ec_key_file": "a", "ec_peer_keys": ["b"]}, "ec_peer_keys="),
        ({"ec_insecure_control": "maybe"}, "ec_insecure_control='maybe'"),
        ({"ec_keyfile": "a"}, "did you mean 'ec_key_file'"),
    ],
)
def test_a_wrong_setting_of_keys_is_named(extra: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError, match=fix):
        parse(**extra)


# ------------------------------------------------------------------- what is bound
@pytest.mark.clause("EC-15.5")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_bound_without_keys(host: str) -> None:
    address_to_bind(host, 1, anywhere=False)


@pytest.mark.clause("EC-15.5")
@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "10.0.0.5", "fd00::5", "lo", "eth0"])
def test_nothing_else_is_bound_without_keys_or_a_word(host: str) -> None:
    with pytest.raises(BindError) as caught:
        address_to_bind(host, 5601, anywhere=False)
    for said in (f"{host}:5601", "ec_key_file", "ec_peer_keys", "ec_insecure_control to true"):
        assert said in str(caught.value)
    assert address_to_bind(host, 5601, anywhere=True) == host


@pytest.mark.clause("EC-15.5")
def test_a_name_is_judged_by_what_it_means_and_that_is_what_is_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.5"], ["10.0.0.6", "127.0.0.1"]])
    monkeypatch.setattr(
        addresses.socket,
        "getaddrinfo",
        lambda *_, **__: [(0, 0, 0, "", (found, 0)) for found in next(answers)],
    )
    assert address_to_bind("encoder", 1, anywhere=False) == "127.0.0.1"
    for meant in ("10.0.0.5", "10.0.0.6"):
        with pytest.raises(BindError, match=f"{meant} is no loopback address"):
            address_to_bind("encoder", 1, anywhere=False)


@pytest.mark.clause("EC-15.5")
def test_an_instance_that_strangers_could_reach_does_not_start() -> None:
    with pytest.raises(BindError, match=r"0\.0\.0\.0 is no loopback address"):
        Node("ec_producer", 8, bind=("0.0.0.0", 0), extra={"ec_advertised_host": "127.0.0.1"})


@pytest.mark.e2e
@pytest.mark.clause("EC-15.5")
def test_one_that_may_says_so_at_every_start(caplog: pytest.LogCaptureFixture) -> None:
    extra = {"ec_advertised_host": "127.0.0.1", "ec_insecure_control": True}
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING), Node("ec_producer", 8, bind=("*", 0), extra=extra):
            assert "whoever reaches *:0 can read the whole region" in caplog.text


# ------------------------------------------------------------------- what starts
@pytest.mark.clause("EC-15.4")
def test_an_instance_whose_key_others_may_read_does_not_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    extra = fleet.member("producer")
    Path(extra["ec_key_file"]).chmod(0o640)
    with pytest.raises(KeyFileError, match="mode 0640 lets others at it; chmod 600"):
        Node("ec_producer", 8, extra=extra)


@pytest.mark.clause("EC-15.2")
def test_an_instance_without_anybody_in_its_list_does_not_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    extra = fleet.member("producer", listed=False)
    with pytest.raises(KeyFileError, match=r"ec_peer_keys=.*no public key"):
        Node("ec_producer", 8, extra=extra)
