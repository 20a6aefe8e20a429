# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the recipes of the Makefile and by .ci/run: what runs, how long it took,
# how it ended. Where EC_STEPS names a file, each step leaves two lines in it, pytest adds
# its own (tests/conftest.py) under the step's EC_STEP, and steps_summary makes a table of them,
# also of steps that never came to their end.
#
#     . tools/steps.sh; step "ruff"; ruff check .

# step NAME: the rest of this shell is a step of that name; its status is the shell's.
# Temporary files go into a folder that says whose it is (tests/leftovers.py).
step() {
	step_name=$1
	step_start=$(date +%s)
	step_temp=$(mktemp -d "${TMPDIR:-/tmp}/ec-make-$$-$(cut -d' ' -f22 /proc/$$/stat)-XXXXXXXX") ||
		exit 1
	export TMPDIR="$step_temp" EC_STEP="$$-$step_start"
	trap 'step_ended $?' EXIT
	# Also while that runs: make passes on what its whole group has got already.
	trap 'step_ended 130' INT
	trap 'step_ended 143' TERM
	echo "==> $step_name"
	step_note begin "$step_name"
}

# step_note KIND TEXT: a line for the summary.
step_note() {
	if [ -n "$EC_STEPS" ]; then
		printf '%s\t%s\t%s\t%s\n' "$1" "$EC_STEP" "$(date +%s)" "$2" >>"$EC_STEPS"
	fi
}

# step_ended STATUS: the end of this shell, whatever the cause.
step_ended() {
	trap '' INT TERM
	trap - EXIT
	step_status=$1
	rm -rf "$step_temp"
	step_note end "$step_status"
	step_seconds=$(($(date +%s) - step_start))
	case $step_status in
	0) echo "    done in $step_seconds s" ;;
	130 | 143) echo "    interrupted after $step_seconds s: $step_name" ;;
	*) echo "    FAILED after $step_seconds s: $step_name" ;;
	esac
	exit "$step_status"
}

# steps_summary FILE: a table of its steps in the order in which they began.
steps_summary() {
	awk -F '\t' -v now="$(date +%s)" '
		NR == 1 { first = $3 }
		{ last = $3 }
		$1 == "begin" { order[++count] = $2; name[$2] = $4; began[$2] = $3 }
		$1 == "note" { note[$2] = note[$2] (note[$2] ? "; " : ": ") $4 }
		$1 == "end" { status[$2] = $4; ended[$2] = $3 }
		function row(text, seconds, verdict) { printf "%-56s %7s  %s\n", text, seconds, verdict }
		END {
			row("step", "seconds", "verdict")
			for (i = 1; i <= count; i++) {
				id = order[i]
				verdict = "ok"
				if (!(id in status)) { verdict = "did not end"; ended[id] = last = now }
				else if (status[id] == 130 || status[id] == 143) verdict = "interrupted"
				else if (status[id] != 0) verdict = "FAILED (status " status[id] ")"
				if (verdict == "ok") good++
				row(name[id], ended[id] - began[id], verdict note[id])
			}
			row("from the first to the last", count ? last - first : 0, (good + 0) " of " (count + 0) " are ok")
		}' "$1"
}
