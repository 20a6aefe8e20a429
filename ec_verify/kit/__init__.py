# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: plays schedules against anybody's encoder-cache connector.

``adapter`` says what an implementation has to offer; ``schedule`` is the language of
``spec/SCENARIOS.md``; ``world`` simulates everything around the implementation
(network, DMA, clock, the other peers) and watches the invariants; ``play`` carries a
schedule out; ``runner`` gives verdicts.
"""
