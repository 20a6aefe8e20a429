# SPDX-License-Identifier: Apache-2.0
"""Peers that want to harm us, as processes of their own, and what becomes of their victim."""
