# SPDX-License-Identifier: Apache-2.0
"""A front for encoders and decoders with the APIs of clients (`ec-connector proxy`).

For each request with media the proxy asks an encoder instance to encode
every piece, puts a metadata-only reference in its place when the encoder announces
it, and forwards the request with the announcements to a decoder instance::

    client ──> proxy ──media──> encoder        (0 tokens, announces the encoding)
                 └──reference + announcement──> decoder ──tokens──> client
                                                  └─ reads the encoding from the encoder

Whatever goes wrong with an encoder or with an encoding costs the request nothing but
time: the media stays in it, or is put back, and the decoder encodes.

Clients may be anybody. What one can cost is bounded before it is paid; what one may say
is media, and never the name of a host or of an encoding.

* ``settings``: what can be set, checked. ``command``: the same on a command line.
* ``listening``: connections, and how many. ``access``: keys.
* ``intake``: a body within its limits; work on long ones beside the event loop.
* ``surfaces``: the APIs, where their media is, what may not be in a request.
* ``media``: what one part brings; references. No I/O.
* ``fetching``: media behind URLs, from allowed hosts.
* ``fleet``: which instance takes a request; health.
* ``http``: headers that are passed on; one POST.
* ``encode``: one encoder request per piece of media. ``announced``, ``watch``: what is
  known to be encoded.
* ``relay``: the decoder's answer, event by event. ``answers``: what it says, and what of
  it stays inside.
* ``server``: the HTTP handlers. ``metrics``, ``errors``: what their names say.

Needs the extra ``proxy`` (aiohttp, prometheus-client), and nothing else of the
connector: it runs on machines without GPUs and without NIXL.
"""
