# SPDX-License-Identifier: Apache-2.0
"""The encoder-cache connector: real I/O around the sans-I/O core of `ec_protocol`.

Importing this package imports nothing else; the modules of the local tier
never import nixl, zmq or msgspec.
"""
