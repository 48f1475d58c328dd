#!/bin/sh
# The whole suite in several processes side by side, each with a server of its own:
# most of it waits for something. Prints one after the other, then what failed in any
# of them, and as the last line "N passed, N failed, N skipped" of all. Called by
# `make test`; $1: the build folder, the rest: the command of one run.
#
# The lists are balanced by how long each file takes (NIGHTSHIFT_TIMES=FILE make test);
# what no list names is in the last.
set -u
build=$1
shift
mkdir -p "$build/test"
logs=$build/test/shard
rm -f "$logs"-*

# Who counts the processes of a user is in the first, with most hosts.
count=5
set_1="$(echo spec/host/[a-np-qs-z]*_spec.lua) spec/faults spec/security spec/laws_spec.lua"
set_2="spec/designs spec/source spec/schedule"
set_3="spec/tree spec/cli spec/host/outage_spec.lua spec/examples_spec.lua"
set_4="spec/lua spec/host/reload_spec.lua $(echo spec/core/[a-n]*_spec.lua)"
set_5=$(find spec -name '*_spec.lua' | sort |
  grep -vE "^($(echo $set_1 $set_2 $set_3 $set_4 | tr ' ' '|'))(/|\$)")

# What is said once, for all of them: counts, so that who adds them up sees one, and
# what failed, so that who keeps the end of long output keeps that.
once='^failed[:|]\|^[0-9]* passed, [0-9]* failed, '

others=
for i in $(seq 2 $count); do
  eval "files=\$set_$i"
  "$@" $files >"$logs-$i" 2>&1 &
  others="$others $!"
done
trap 'kill $others 2>/dev/null' INT TERM
"$@" $set_1 2>&1 | tee "$logs-1" | sed -u "/$once/d"
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
