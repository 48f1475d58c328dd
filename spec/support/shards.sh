#!/bin/sh
# The whole suite in three processes side by side, each with a server of its own:
# most of it waits for something. Prints one after the other, then what failed in any
# of them, and as the last line "N passed, N failed, N skipped" of all. Called by
# `make test`; $1: the build folder, the rest: the command of one run.
set -u
build=$1
shift
mkdir -p "$build/test"
logs=$build/test/shard
# Hosts, and who counts the processes of a user, are in the first.
first="spec/tree spec/host spec/faults spec/security spec/shared spec/lua spec/examples spec/torture spec/oom"
second="spec/adopt spec/designs spec/cli spec/base spec/bench_spec.lua spec/strategies_spec.lua
  spec/demo_spec.lua"
third=$(ls -d spec/*/ spec/*_spec.lua | sed 's,/$,,' | grep -vxE "$(echo $first $second | tr ' ' '|')" |
  grep -vxE 'spec/(c|support)')
# What is said once, for all of them: counts, so that who adds them up sees one, and
# what failed, so that who keeps the end of long output keeps that.
once='^failed[:|]\|^[0-9]* passed, [0-9]* failed, '

"$@" $second >"$logs-2" 2>&1 &
others=$!
"$@" $third >"$logs-3" 2>&1 &
others="$others $!"
trap 'kill $others 2>/dev/null' INT TERM
"$@" $first 2>&1 | tee "$logs-1" | sed -u "/$once/d"
wait $others
sed "/$once/d" "$logs-2" "$logs-3"
grep -h '^failed[:|]' "$logs-1" "$logs-2" "$logs-3"
awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { runs++; passed += $1; failed += $3; skipped += $5 }
  END {
    if (runs < 3) printf "failed: %d of 3 processes ended before their counts\n", 3 - runs
    failed += 3 - runs
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 || passed == 0
  }' "$logs-1" "$logs-2" "$logs-3"
