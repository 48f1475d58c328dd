#!/bin/sh
# The whole suite in several processes side by side, each with a server of its own:
# most of it waits for something. A process takes the next file when it is done with one
# (spec/support/ci.lua). Prints the output of one process after the other, then the failures of
# all. The last line is "N passed, N failed, N skipped" of all. Called by `make test`; $1: the build
# folder, the rest: the command of one run.
#
# The longest files come first (NIGHTSHIFT_TIMES=FILE make test says how long each takes).
set -u
build=$1
shift
todo=$build/test/todo
logs=$build/test/shard
rm -rf "$logs"-* "$todo"
mkdir -p "$todo"

count=6
first="examples support core/servers host/workers core/scale host/outage cli/doctor security
  core/rescue host/http host/life core/cut core/limits source/rows core/names host/limits faults
  host/queues designs host/reload host/work host/log core/wake tree/outside cli/jobs
  core/retention core/mend host/handlers tree/verbs host/death cli/shell tree/children
  source/claim core/schema schedule cli/arguments lua/lock source/admin package tree/dag
  lua/misuse core/push shared core/change core/claim tree/wait testing tree/why"
first=$(printf 'spec/%s_spec.lua\n' $first)
files="$first $(find spec -name '*_spec.lua' | sort | grep -vxF "$first")"
for file in $files; do : >"$todo/$(echo "$file" | tr / +)"; done
export NIGHTSHIFT_TODO="$todo"

# Lines that are printed once, for all processes: counts and failures. So a reader adds up nothing,
# and failures are at the end of long output.
once='^failed[:|]\|^[0-9]* passed, [0-9]* failed, '

others=
for i in $(seq 2 $count); do
  "$@" $files >"$logs-$i" 2>&1 &
  others="$others $!"
done
trap 'kill $others 2>/dev/null' INT TERM
"$@" $files 2>&1 | tee "$logs-1" | sed -u "/$once/d"
wait $others
for i in $(seq 2 $count); do
  sed "/$once/d" "$logs-$i"
done
grep -h '^failed[:|]' "$logs"-*
awk -v count=$count '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { runs++; passed += $1; failed += $3; skipped += $5 }
  END {
    if (runs < count) printf "failed: %d of %d processes ended before their counts\n", count - runs, count
    failed += count - runs
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 || passed == 0
  }' "$logs"-*
