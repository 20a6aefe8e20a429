#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What has to be shown on a machine with a GPU: the tests marked `cuda`, some of them
# under compute-sanitizer, and all benchmarks. Needs no network. Takes at most ten
# minutes; each part has a limit of its own.
#
#     tools/gpu.sh [FOLDER]      logs, bench.json and plots go there; default out/gpu
#
# PYTHON=... chooses the interpreter; PARTS="tests sanitizer bench" is the default.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-out/gpu}
python=${PYTHON:-python3}
parts=${PARTS:-tests sanitizer bench}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
status=0

part() { # NAME SECONDS COMMAND...: run one part, keep its log, note a failure
    local name=$1 limit=$2 start=$SECONDS rc=0
    shift 2
    case " $parts " in *" ${name%%-*} "*) ;; *) return 0 ;; esac
    echo "==> $name"
    timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || rc=$?
    tail -n "${TAIL:-4}" "$out/$name.log"
    echo "    $name: exit status $rc after $((SECONDS - start)) s"
    [ "$rc" -eq 0 ] || status=1
}

"$python" - <<'PY' || exit 1
import sys, torch
if not torch.cuda.is_available():
    sys.exit("gpu.sh: no CUDA device")
print(torch.cuda.get_device_name(), "torch", torch.__version__)
PY

TAIL=12 part tests 150 "$python" -m pytest -q -p no:cacheprovider -m cuda tests/ec_connector

# Memory checking slows everything down, so a few tests stand for all. Tests in which
# CUDA refuses a call on purpose would be reported, and are left out.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
subset="half_way or waits_for_the_encoder or still_reads or still_writes or let_go or row_order"
subset="$subset or (same_bits and bfloat16) or (same_bits and e4m3)"
if [ -n "$sanitizer" ]; then
    TAIL=6 part sanitizer 150 "$sanitizer" --tool memcheck --leak-check no --error-exitcode 9 \
        "$python" -m pytest -q -p no:cacheprovider -m cuda -k "$subset" tests/ec_connector/
else
    echo "==> sanitizer: compute-sanitizer is not installed"
fi

bench() { # JSON on stdout is kept apart from what else is printed
    "$python" -m ec_connector.cli bench all --json --plot "$1/plots" >"$1/bench.json" &&
        "$python" - "$1/bench.json" <<'PY'
import json, sys
document = json.load(open(sys.argv[1]))
print(document["machine"])
for r in document["rows"]:
    print(f"{r['bench']:8} {r['ratio']:>8.3g} {r['ours']:>9.4g} {r['baseline']:>9.4g} {r['unit']:8} {r['case']}")
PY
}
export -f bench
export python
TAIL=80 part bench 290 bash -c 'bench "$0"' "$out"

exit "$status"
