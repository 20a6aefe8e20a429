# SPDX-License-Identifier: Apache-2.0
"""The adapter of the connector that vLLM ships."""
