# SPDX-License-Identifier: Apache-2.0
"""Sequence diagrams of counterexamples, traces and scenarios: ``ec-protocol explain``."""
