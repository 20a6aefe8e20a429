# SPDX-License-Identifier: Apache-2.0
"""Real ``vllm serve`` processes on this machine's CPU, judged against a plain server."""
