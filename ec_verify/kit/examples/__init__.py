# SPDX-License-Identifier: Apache-2.0
"""Worked examples of adapters; see ``docs/conformance/adapter.md``."""
