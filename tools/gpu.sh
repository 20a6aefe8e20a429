#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What has to be shown on a machine with a GPU: `tools/gpu.sh smoke data vllm`, in pieces of
# at most ten minutes. `tools/gpu.sh --help` says which parts there are and what each needs;
# PYTHON=... chooses the machine's interpreter.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec "${PYTHON:-python3}" tools/gpu_run.py "$@"
