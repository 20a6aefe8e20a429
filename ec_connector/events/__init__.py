# SPDX-License-Identifier: Apache-2.0
"""What happens to encodings, published for whoever routes requests (EC-13).

An orchestrator that was told where an encoding is would like to know when that is no
longer so. A scheduler process publishes it on a ZMQ PUB socket, in numbered messages;
what a subscriber has missed it can have sent again, as far as it is kept.

* ``log``: a bounded queue between those who change the tier and the server, which
  publishes (``network.publisher``). No I/O.
* ``codec``: the messages.
* ``stream``: puts messages in order on the subscriber's side and notices what is
  missing. No I/O. ``subscriber``: its sockets, for Python programs.

Imported only behind the peer-to-peer gate, and by the tools that subscribe.
"""
