# SPDX-License-Identifier: Apache-2.0
"""Encoder-only workers on a CPU platform.

vLLM's workers choose an encoder-only model runner for a producer, except the CPU
worker, which always builds the ordinary one and then fails to find the language
model's weights. Connectors are made just before the runner, so the worker half can
put the right class in its place.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


def use_encoder_only_runner() -> None:
    """Make the CPU worker of this process build the encoder-only runner."""
    from vllm.v1.worker.cpu import model_runner as cpu
    from vllm.v1.worker.mm_encoder_model_runner import MMEncoderModelRunner

    if issubclass(cpu.CPUModelRunner, MMEncoderModelRunner):
        return

    class CPUEncoderRunner(MMEncoderModelRunner):
        """The encoder-only runner with what the CPU worker calls beyond it."""

        def warming_up_model(self) -> None:
            """Nothing to warm up: there is no language model and no graph."""

    cpu.CPUModelRunner = CPUEncoderRunner
    logger.info("encoder-only instance on a CPU: using %s", MMEncoderModelRunner.__name__)
