# SPDX-License-Identifier: Apache-2.0
"""What an engine offers, and what a server in another process grants of it.

``table``   two arrays in shared memory: the offers, which the engine alone writes, and
            the ledger, which the server alone writes
``engine``  the engine's side: entries are expected, offered and closed
``server``  the server's side: entries are found and kept until a lease ends

Neither side ever waits for the other (EC-14.2 to EC-14.6; ``tla/offers``).
"""
