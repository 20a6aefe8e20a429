# SPDX-License-Identifier: Apache-2.0
"""Which names of media may stand for their encodings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ec_connector.vllm.names import Names, read_names
from tests.ec_connector.vllm.test_vllm_features import feature, make, request

pytestmark = pytest.mark.clause("EC-2.8")
HASH = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"
COUNTED = ["renderer0-mm-0-image-0", "adapter:renderer0-mm-25-audio-0"]


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("names", [Names(), Names(counting=True), Names(known_release=False)])
def test_a_counted_name_is_never_used(name, names):
    """Also on a server that hashes: another one may have counted it."""
    assert not names.follows_content(name, {name: {}})


def test_other_names_are_used_where_the_host_hashes():
    for name in (HASH, "catalogue-25", ""):
        assert Names().follows_content(name, None)


@pytest.mark.parametrize(
    ("name", "params", "known", "used"),
    [
        # A hash may be one of a count, unless the request brought it along.
        (HASH, None, True, False),
        ("adapter:" + HASH, None, True, False),
        (2 * HASH, None, True, False),
        (HASH, {HASH: {}}, True, True),
        (HASH, {"other": {}}, True, False),
        (HASH, [HASH], True, False),
        # No host hashes to this.
        ("catalogue-25", None, True, True),
        (HASH[1:], None, True, True),
        # Of another release nobody knows how it counts.
        ("catalogue-25", None, False, False),
        ("catalogue-25", {"catalogue-25": {}}, False, True),
    ],
)
def test_where_the_host_counts_only_what_can_be_told_is_used(name, params, known, used):
    names = Names(counting=True, known_release=known)
    assert names.follows_content(name, params) is used


@pytest.mark.parametrize(
    ("cache_gb", "prefix", "counting"),
    [(0, False, True), (0.0, False, True), (4, False, False), (0, True, False), (4, True, False)],
)
def test_the_host_counts_with_both_caches_off(cache_gb, prefix, counting):
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            multimodal_config=SimpleNamespace(mm_processor_cache_gb=cache_gb)
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=prefix),
    )
    assert read_names(config, "0.32.0+cpu") == Names(counting=counting, known_release=True)
    assert not read_names(config, "0.34.0").known_release
    assert not read_names(config, "0.320").known_release


def test_a_configuration_that_cannot_be_read_is_not_trusted():
    assert read_names(SimpleNamespace(model_config=None), "0.33.1") == Names(counting=True)


def test_the_log_says_which_flag_to_change(caplog):
    Names().warn()
    assert caplog.records == []
    Names(counting=True).warn()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    for flag in ("--mm-processor-cache-gb", "--no-enable-prefix-caching"):
        assert flag in record.message


def test_items_of_a_request_are_judged_with_its_parameters():
    grid = {"pixel_values": 1}
    features = [feature(name, grid) for name in (HASH, "catalogue-25", COUNTED[0])]
    asked = request(*features)
    items = make(Names(counting=True))
    assert [i.named_by_content for i in items(asked)] == [False, True, False]
    brought = request(*features, request_id="brought")
    brought.ec_transfer_params = {HASH: {}}
    assert [i.named_by_content for i in items(brought)] == [True, True, False]
