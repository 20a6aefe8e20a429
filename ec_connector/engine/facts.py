# SPDX-License-Identifier: Apache-2.0
"""What a scheduler process needs to know of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What decides whether the bytes of two processes mean the same (EC-8.4, EC-8.9).

    Attributes:
        vllm_version: Version of the host.
        model: Name of the model.
        dtype: Torch dtype name of encoder outputs, such as ``bfloat16``.
        element_size: Bytes per element.
        encoder_hash: Stands for everything else that decides what the encoder puts out; ``""``
            says nothing of it.
    """

    vllm_version: str
    model: str
    dtype: str
    element_size: int
    encoder_hash: str = ""
