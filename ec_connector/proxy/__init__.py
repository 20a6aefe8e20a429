# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible front for encoders and decoders (`ec-connector proxy`).

For each chat completion with media the proxy asks an encoder instance to encode
every piece, puts a metadata-only reference in its place when the encoder announces
it, and forwards the request with the announcements to a decoder instance::

    client ──> proxy ──media──> encoder        (0 tokens, announces the encoding)
                 └──reference + announcement──> decoder ──tokens──> client
                                                  └─ reads the encoding from the encoder

Whatever goes wrong with an encoder or with an encoding costs the request nothing but
time: the media stays in it, or is put back, and the decoder encodes.

* ``settings``: what can be set, checked.
* ``media``: finds media in a request, makes references. No I/O.
* ``fleet``: which instance takes a request; health.
* ``http``: one POST.
* ``encode``: one encoder request per piece of media.
* ``relay``: the decoder's answer, chunk by chunk; what counts as a lost encoding.
* ``server``: the HTTP handlers. ``metrics``, ``errors``: what their names say.

Needs the extra ``proxy`` (aiohttp, prometheus-client), and nothing else of the
connector: it runs on machines without GPUs and without NIXL.
"""
