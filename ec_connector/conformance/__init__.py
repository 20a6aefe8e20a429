# SPDX-License-Identifier: Apache-2.0
"""This project's own adapter for the conformance kit: real delegates, simulated planes."""
