# SPDX-License-Identifier: Apache-2.0
"""Adapters of the conformance kit: ``ours``, and ``builtin``, vLLM's own connector."""
