# SPDX-License-Identifier: Apache-2.0
"""Whatever comes from outside, byte by byte: ``targets`` says what reads it and what must hold.

``python -m tests.fuzz`` lets libFuzzer look for inputs (atheris, guided by coverage); what it
has found stays in ``corpus/``, and ``test_fuzz.py`` goes through that in every session.
"""
