# SPDX-License-Identifier: Apache-2.0
"""The world around what is tested: what several test modules share.

``core``: peers without I/O; ``ghosts``: the same for random schedules, which are in
``schedules``. ``host`` and ``engine``: a host like vLLM and what its processes do, on
``device``; ``delegate``: its scheduler's side alone; ``peers``: those whom it reads from.
``instance``: ours with real sockets and NIXL, here or in a process of its own;
``processes``: start, stop and kill them. ``plain``: the connector over sockets of
``docs/build-a-connector.md``. ``servers``: what the proxy stands between. ``vllm``: as much
of vLLM as our adapter touches.
"""
