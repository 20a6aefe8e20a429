# SPDX-License-Identifier: Apache-2.0
"""The connector as vLLM loads it.

    vllm serve MODEL --ec-transfer-config '{"ec_connector": "ECConnector",
      "ec_connector_module_path": "ec_connector.vllm", "ec_role": "ec_both",
      "ec_connector_extra_config": {"ec_cpu_bytes": 1073741824}}'

* ``connector``: the class; ``metadata``: what its two halves send each other.
* ``setup``: reads vLLM's configuration; ``features``: reads its requests.
* ``metrics``: statistics and Prometheus.
* ``encoder_only``: encoder-only workers on a CPU platform.
* ``plugin``: the entry point that registers the class by name.

Importing this package imports nothing of vLLM; asking it for ``ECConnector`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ec_connector.vllm.connector import ECConnector

__all__ = ["ECConnector"]


def __getattr__(name: str) -> Any:
    if name == "ECConnector":
        from ec_connector.vllm.connector import ECConnector

        return ECConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
