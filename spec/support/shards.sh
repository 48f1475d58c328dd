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
first="support security host/life examples host/http core/cut source/rows host/log host/workers
  faults core/names core/servers core/scale cli/doctor designs host/limits tree/verbs host/outage
  tree/children core/wake tree/outside host/reload core/rescue cli/shell host/queues host/handlers
  cli/arguments cli/jobs core/mend host/work core/change core/retention tree/dag host/death
  lua/misuse schedule shared tree/wait source/claim pages core/schema lua/lock core/push web/pages
  core/limits source/admin cli/top lua/parsers core/claim package lua/job lua/api testing tree/why
  core/sql_push"
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
