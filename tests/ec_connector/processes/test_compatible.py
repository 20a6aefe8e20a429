# SPDX-License-Identifier: Apache-2.0
"""Two instances of one model name whose encoders are not the same, with all processes."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from tests.world.instance import BLOCK, FACTS, Node, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.clause("EC-8.10")]
PICTURE = b"\x01" * BLOCK
HERE = replace(FACTS, encoder_hash="f00d" * 16)
THERE = replace(FACTS, encoder_hash="beef" * 16)


def test_an_encoder_under_the_same_name_is_refused_and_both_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Node("ec_producer", facts=HERE) as producer, Node("ec_consumer", facts=THERE) as consumer:
        producer.save("picture", PICTURE)
        with caplog.at_level(logging.INFO):
            assert consumer.fetch("picture", producer.address, BLOCK) == "failed"
            wait_for(lambda: consumer.counters()["incompatible"] == 1, "the counter")
            wait_for(lambda: producer.counters()["encoders_differ"] == 1, "the counter")
            wait_for(lambda: "model, dtype, width or encoder" in caplog.text, "the line in the log")
        assert "beef" not in caplog.text
        assert "f00d" not in caplog.text
        assert consumer.tier.free_blocks == consumer.tier.num_blocks


def test_the_same_encoder_is_read_from() -> None:
    with Node("ec_producer", facts=HERE) as producer, Node("ec_consumer", facts=HERE) as consumer:
        producer.save("picture", PICTURE)
        assert consumer.fetch("picture", producer.address, BLOCK) == "ready"
        assert consumer.bytes_of("picture") == PICTURE
        assert consumer.counters()["encoders_unproven"] == 0


def test_a_consumer_may_demand_to_be_told() -> None:
    demands = {"ec_require_encoder_hash": True}
    with (
        Node("ec_producer") as producer,
        Node("ec_consumer", facts=HERE, extra=demands) as strict,
        Node("ec_consumer", facts=HERE) as lenient,
    ):
        producer.save("picture", PICTURE)
        assert strict.fetch("picture", producer.address, BLOCK) == "failed"
        assert lenient.fetch("picture", producer.address, BLOCK) == "ready"
        wait_for(lambda: lenient.counters()["encoders_unproven"] == 1, "the counter")
        wait_for(lambda: producer.counters()["encoders_unproven"] == 2, "the counter")
