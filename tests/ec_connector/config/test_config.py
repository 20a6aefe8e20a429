# SPDX-License-Identifier: Apache-2.0
"""Configuration: every key, its default and its errors (EC-12)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from ec_connector.config import settings as config
from ec_connector.config.settings import KEYS, ECConfig, PeerToPeerMissing, config_reference
from ec_protocol.errors import ConfigError
from ec_protocol.tables.timing import Timing, timer_specs
from tests import ROOT

GIB = 1 << 30


def parse(role: str = "ec_both", **extra: Any) -> ECConfig:
    return ECConfig.parse({"ec_cpu_bytes": GIB, **extra}, role, environ={})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Pretend that exactly these packages can be imported; tests may remove some."""
    names = {"nixl", "zmq", "msgspec"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name in names else None
    )
    return names


# ------------------------------------------------------------------------ defaults
def test_defaults():
    assert parse() == ECConfig(
        role="both",
        cpu_bytes=GIB,
        enable_nixl=False,
        nixl_backends=("UCX",),
        peer_quota=0.5,
        grant_quota=0.9,
        allowed_peers=(),
        region_guard=True,
        trace_file=None,
        timing=Timing(),
        side_channel=None,
    )


@pytest.mark.parametrize(
    ("role", "consumes"), [("ec_producer", False), ("ec_consumer", True), ("ec_both", True)]
)
def test_roles(role, consumes):
    settings = parse(role)
    assert (f"ec_{settings.role}", settings.consumes) == (role, consumes)


@pytest.mark.parametrize("role", [None, "", "producer", "EC_BOTH", 1])
def test_a_wrong_role_is_named(role):
    with pytest.raises(ConfigError, match=r"ec_role=.*ec_producer, ec_consumer, ec_both"):
        ECConfig.parse({"ec_cpu_bytes": GIB}, role)


# -------------------------------------------------------------------- ec_cpu_bytes
@pytest.mark.clause("EC-12.3")
@pytest.mark.parametrize(
    "extra", [None, {}, {"ec_cpu_bytes": 0}, {"ec_cpu_bytes": None}, {"ec_cpu_bytes": "0"}]
)
def test_missing_or_zero_ec_cpu_bytes_is_a_value_error_that_names_it(extra):
    with pytest.raises(ValueError, match=r"ec_cpu_bytes=.* has no default; give a number of"):
        ECConfig.parse(extra, "ec_both")


@pytest.mark.clause("EC-12.1", "EC-12.3")
@pytest.mark.parametrize(
    "value", [-1, True, 1.5, "1.5", "1 GiB", "-5", "", [], {}, float("nan"), 1 << 62, "9" * 30, "²"]
)
def test_a_wrong_ec_cpu_bytes_is_named(value):
    with pytest.raises(ValueError, match=r"ec_cpu_bytes=.*1073741824"):
        ECConfig.parse({"ec_cpu_bytes": value}, "ec_both")


@pytest.mark.parametrize("value", [1073741824, "1073741824", 1073741824.0])
def test_ec_cpu_bytes_may_be_typed_in_these_ways(value):
    settings = ECConfig.parse({"ec_cpu_bytes": value}, "ec_both")
    assert settings.cpu_bytes == GIB
    assert isinstance(settings.cpu_bytes, int)


def test_num_blocks_are_whole_blocks():
    settings = ECConfig.parse({"ec_cpu_bytes": 10_239}, "ec_both")
    assert settings.num_blocks(5120) == 1
    with pytest.raises(ConfigError, match=r"ec_cpu_bytes=10239: less than one block of 10240"):
        settings.num_blocks(10240)
    with pytest.raises(ConfigError, match="block_size_bytes=0"):
        settings.num_blocks(0)


# ------------------------------------------------------------------ ec_enable_nixl
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("value", [True, "true", "True", "TRUE", "1", "yes", "Yes", 1])
def test_what_enables_nixl(value):
    assert parse(ec_enable_nixl=value).enable_nixl is True


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "value",
    [False, "false", "0", "no", "", None, 0, 2, "on", "y", "enabled", " true", [], ["true"]],
)
def test_everything_else_does_not(value):
    assert parse(ec_enable_nixl=value).enable_nixl is False


@pytest.mark.parametrize(("value", "warned"), [("ture", True), ("false", False), (None, False)])
def test_a_word_that_looks_like_a_typing_error_is_warned_about(caplog, value, warned):
    assert not parse(ec_enable_nixl=value).enable_nixl
    assert ("ec_enable_nixl='ture' counts as false" in caplog.text) is warned


def test_nixl_missing_is_a_runtime_error_with_the_documented_text(installed):
    installed.remove("nixl")
    with pytest.raises(RuntimeError) as caught:
        parse(ec_enable_nixl="yes")
    assert str(caught.value) == (
        "ec_enable_nixl requires NIXL; install the nixl package or remove ec_enable_nixl from "
        "ec_connector_extra_config."
    )
    parse(ec_enable_nixl="no")


@pytest.mark.parametrize(("module", "package"), [("zmq", "pyzmq"), ("msgspec", "msgspec")])
def test_the_other_packages_are_named_as_well(installed, module, package):
    installed.remove(module)
    with pytest.raises(PeerToPeerMissing, match=rf"{package} cannot be.*ec-connector\[nixl\]"):
        parse(ec_enable_nixl=True)


@pytest.mark.clause("EC-12.2")
@pytest.mark.parametrize("gate", ["true", "false"])
def test_parsing_imports_nothing_of_peer_to_peer(gate):
    code = (
        "import sys\n"
        "from ec_connector.config.settings import ECConfig\n"
        "try:\n"
        f"    ECConfig.parse({{'ec_cpu_bytes': 1, 'ec_enable_nixl': {gate!r}}}, 'ec_both')\n"
        "except RuntimeError:\n"
        "    pass\n"
        "bad = {'nixl', 'zmq', 'msgspec', 'torch'} & {m.split('.')[0] for m in sys.modules}\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------- environment
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("role", ["ec_producer", "ec_both"])
def test_a_producer_reads_its_address_from_the_environment(role):
    extra = {"ec_cpu_bytes": GIB, "ec_enable_nixl": True}
    assert ECConfig.parse(extra, role, environ={}).side_channel == ("localhost", 5601)
    environ = {"VLLM_EC_SIDE_CHANNEL_HOST": "10.0.0.7", "VLLM_EC_SIDE_CHANNEL_PORT": "7000"}
    assert ECConfig.parse(extra, role, environ=environ).side_channel == ("10.0.0.7", 7000)
    third = ECConfig.parse(extra, role, environ=environ, dp_rank=2)
    assert third.side_channel == ("10.0.0.7", 7002)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("role", "gate"), [("ec_consumer", True), ("ec_both", False)])
def test_others_do_not_read_the_environment(role, gate):
    environ = {"VLLM_EC_SIDE_CHANNEL_HOST": "", "VLLM_EC_SIDE_CHANNEL_PORT": "nonsense"}
    extra = {"ec_cpu_bytes": GIB, "ec_enable_nixl": gate}
    assert ECConfig.parse(extra, role, environ=environ).side_channel is None


@pytest.mark.usefixtures("installed")
def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_HOST", "example")
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_PORT", "1")
    extra = {"ec_cpu_bytes": GIB, "ec_enable_nixl": True}
    assert ECConfig.parse(extra, "ec_both").side_channel == ("example", 1)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("variable", "value", "dp_rank"),
    [
        ("VLLM_EC_SIDE_CHANNEL_HOST", "", 0),
        ("VLLM_EC_SIDE_CHANNEL_HOST", "  ", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "0", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "-1", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "65536", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "http", 0),
        ("VLLM_EC_SIDE_CHANNEL_PORT", "65535", 1),
    ],
)
def test_a_wrong_variable_is_named(variable, value, dp_rank):
    with pytest.raises(ConfigError, match=f"{variable}={value!r}"):
        ECConfig.parse(
            {"ec_cpu_bytes": GIB, "ec_enable_nixl": True},
            "ec_producer",
            dp_rank=dp_rank,
            environ={variable: value},
        )


# -------------------------------------------------------------------------- timers
@pytest.mark.parametrize("name", list(timer_specs()))
@pytest.mark.parametrize("form", [float, str])
def test_every_timer_has_its_key(name, form):
    spec = timer_specs()[name]
    # a little more or less than the default breaks no inequality
    value = spec.default * (0.99 if name != "lease_s" else 1.01)
    timing = parse(**{spec.key: form(value)}).timing
    assert getattr(timing, name) == pytest.approx(value)


def test_the_key_of_the_seeds_sets_the_ack_timeout():
    assert parse(consumer_ack_timeout_s="3.5").timing.ack_timeout_s == 3.5
    assert parse(consumer_ack_timeout_s=3).timing.ack_timeout_s == 3.0


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize("value", ["soon", "", None, True, [], "nan", "inf", float("inf"), 10**400])
def test_a_timer_that_is_no_number_is_named(value):
    with pytest.raises(ConfigError, match=r"consumer_ack_timeout_s=.*expected seconds"):
        parse(consumer_ack_timeout_s=value)


@pytest.mark.parametrize("value", [0, -1, "-2.5"])
def test_a_timer_that_is_not_positive_is_named(value):
    with pytest.raises(ConfigError, match="read_timeout_s"):
        parse(read_timeout_s=value)


@pytest.mark.clause("EC-7.2")
def test_timers_that_contradict_each_other_are_named_by_their_keys():
    with pytest.raises(ConfigError, match=r"consumer_ack_timeout_s.*pin_lease_s"):
        parse(pin_lease_s=15)


# ---------------------------------------------------------------------- other keys
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["UCX"], ("UCX",)),
        (["UCX", "GDS"], ("UCX", "GDS")),
        (("POSIX",), ("POSIX",)),
        ("UCX", ("UCX",)),
        ("UCX, GDS", ("UCX", "GDS")),
    ],
)
def test_backends(value, expected):
    assert parse(ec_nixl_backends=value).nixl_backends == expected


@pytest.mark.parametrize("value", [[], "", ",", ["UCX", ""], [1], {"UCX": 1}, None, 5, "UCX,UCX"])
def test_wrong_backends_are_named(value):
    with pytest.raises(ConfigError, match=r"ec_nixl_backends=.*UCX"):
        parse(ec_nixl_backends=value)


@pytest.mark.parametrize(("value", "expected"), [(1, 1.0), ("0.25", 0.25), (0.001, 0.001)])
def test_peer_quota(value, expected):
    assert parse(ec_peer_quota=value).peer_quota == expected
    assert parse(ec_grant_quota=value).grant_quota == expected


@pytest.mark.parametrize("value", [0, -0.1, 1.01, "half", None, True, "nan"])
def test_a_wrong_peer_quota_is_named(value):
    with pytest.raises(ConfigError, match=r"ec_peer_quota=.*more than 0 and at most 1"):
        parse(ec_peer_quota=value)
    with pytest.raises(ConfigError, match=r"ec_grant_quota=.*more than 0 and at most 1"):
        parse(ec_grant_quota=value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("yes", True), (1, True), (False, False), ("No", False), ("0", False)],
)
def test_region_guard(value, expected):
    assert parse(ec_region_guard=value).region_guard is expected


@pytest.mark.parametrize("value", ["ture", "", None, 2, [], 1.0])
def test_a_typing_error_does_not_switch_the_guard_off(value):
    with pytest.raises(ConfigError, match=r"ec_region_guard=.*expected true or false"):
        parse(ec_region_guard=value)


def test_trace_file():
    assert parse(ec_trace_file="/tmp/trace.ndjson").trace_file == "/tmp/trace.ndjson"


@pytest.mark.parametrize("value", ["", None, 1, True, "a\0b"])
def test_a_wrong_trace_file_is_named(value):
    with pytest.raises(ConfigError, match="ec_trace_file="):
        parse(ec_trace_file=value)


# -------------------------------------------------------------------- unknown keys
@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ec_cpu_byte", "ec_cpu_bytes"),
        ("cpu_bytes", "ec_cpu_bytes"),
        ("ec_enable_nixel", "ec_enable_nixl"),
        ("enable_nixl", "ec_enable_nixl"),
        ("ack_timeout_s", "consumer_ack_timeout_s"),
        ("consumer_ack_timeout", "consumer_ack_timeout_s"),
        ("lease_s", "pin_lease_s"),
        ("nixl_backends", "ec_nixl_backends"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(typed, meant):
    with pytest.raises(ConfigError, match=f"unknown key '{typed}': did you mean '{meant}'"):
        parse(**{typed: 1})


def test_an_unknown_key_without_a_neighbour_lists_all():
    with pytest.raises(ConfigError, match="known keys: ec_cpu_bytes, "):
        parse(zzz=1)
    with pytest.raises(ConfigError, match="unknown key 7"):
        ECConfig.parse({"ec_cpu_bytes": 1, 7: 1}, "ec_both")  # type: ignore[dict-item]


def test_a_misspelt_ec_cpu_bytes_is_a_typing_error_not_a_missing_key():
    with pytest.raises(ConfigError, match="did you mean 'ec_cpu_bytes'"):
        ECConfig.parse({"ec_cpu_byte": GIB}, "ec_both")


@pytest.mark.parametrize("extra", [[], "ec_cpu_bytes=1", 5])
def test_what_is_not_a_mapping_is_refused(extra):
    with pytest.raises(ConfigError, match="expected a mapping"):
        ECConfig.parse(extra, "ec_both")


def test_the_given_mapping_is_not_changed():
    extra = {"ec_cpu_bytes": "5120"}
    ECConfig.parse(extra, "ec_both")
    assert extra == {"ec_cpu_bytes": "5120"}


# ----------------------------------------------------------------------- reference
def test_the_reference_names_every_key_default_and_variable():
    text = config_reference()
    for key in KEYS.values():
        (line,) = [row for row in text.splitlines() if row.startswith(f"| `{key.name}` |")]
        assert key.doc in line
        assert line.count("|") == 5
    assert "| `ec_cpu_bytes` | `int` | **required** |" in text
    assert "| `ec_enable_nixl` | `bool` | `false` |" in text
    assert "| `ec_region_guard` | `bool` | `true` |" in text
    assert '| `ec_nixl_backends` | `list[str]` | `["UCX"]` |' in text
    assert "| `ec_trace_file` | `str` | `none` |" in text
    assert "| `consumer_ack_timeout_s` | `float` | `2.0` |" in text
    assert config.HOST_VARIABLE in text
    assert config.PORT_VARIABLE in text


def test_every_default_is_what_its_own_parser_accepts():
    for key in KEYS.values():
        if key.default is not None:
            assert key.parse(key.name, key.default) == key.default
