# SPDX-License-Identifier: Apache-2.0
"""This project's own adapter: real delegates, simulated planes."""
