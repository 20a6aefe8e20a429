# SPDX-License-Identifier: Apache-2.0
"""Entry point of the group ``vllm.general_plugins``: registers the connector by name.

vLLM calls ``register`` in every process that it starts, sometimes more than once,
and before it looks for a connector.
"""

from __future__ import annotations

import os
from typing import Final

#: The name for ``ec_connector`` in ``--ec-transfer-config``.
NAME: Final = "ECConnector"
#: The built-in connector's, whose place ours can take.
BUILTIN_NAME: Final = "ECCPUConnector"
#: Set to 1 to give ``BUILTIN_NAME`` to this connector.
REPLACE_VARIABLE: Final = "EC_CONNECTOR_REPLACE_BUILTIN"

_MODULE: Final = "ec_connector.vllm.connector"
_CLASS: Final = "ECConnector"
_YES: Final = frozenset({"1", "true", "yes"})
_NO: Final = frozenset({"", "0", "false", "no"})


def register() -> None:
    """Make the connector known to vLLM. May be called again.

    Raises:
        ConfigError: ``EC_CONNECTOR_REPLACE_BUILTIN`` is neither yes nor no, or this
            vLLM does not let a name be taken over.
    """
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

    from ec_protocol.errors import ConfigError

    # The factory refuses a name twice and has no public way to ask or to give back.
    known = getattr(ECConnectorFactory, "_registry", None)
    if not isinstance(known, dict) or NAME not in known:
        ECConnectorFactory.register_connector(NAME, _MODULE, _CLASS)
    said = os.environ.get(REPLACE_VARIABLE, "").strip().lower()
    if said not in _YES | _NO:
        raise ConfigError(f"{REPLACE_VARIABLE}={said!r}: expected 1 or 0")
    if said in _NO:
        return
    if not isinstance(known, dict):
        raise ConfigError(
            f"{REPLACE_VARIABLE}={said}: this version of vLLM has another connector registry; "
            f'unset it and use "ec_connector": "{NAME}"'
        )
    known[BUILTIN_NAME] = known[NAME]
