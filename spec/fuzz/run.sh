#!/bin/sh
# run.sh SECONDS TARGET…: runs each fuzz target for an equal share of the time.
# The seeds are in spec/fuzz/corpus.tar, a folder for each, which is unpacked
# into $O/corpus. What the run finds new stays in $O/found until the next run. The
# input that broke something is $O/fuzz-TARGET-crash-…; run it again with
# `$O/fuzz-TARGET FILE`. Ends with 1 when one broke.
#
# run.sh pack TARGET…: adds inputs of the last run that reach further to the seeds of each target,
# and packs all of $O/corpus into spec/fuzz/corpus.tar.
# The same seeds make the same archive, to the byte.
set -u

# Words that a target's inputs are made of, for libFuzzer.
words() {
  sed -n "/^# $1\$/,/^\$/p" <<'END'
# Words that libFuzzer mixes into inputs. A section per target: from a line with its name
# to the next empty one.

# duration
"w"
"d"
"h"
"m"
"s"
"ms"
"us"
"."
"31556952000"

# json
"null"
"true"
"false"
"{}"
"[]"
"\\u0000"
"\\ud800"
"\\udc00"
"1e308"
"-0.0"
"9223372036854775807"
"-9223372036854775808"
"\":"

# url
"mysql://"
"mariadb://"
"unix_socket="
"connect_timeout="
"max_payload="
"tls="
"verify"
"trust"
"off"
"ca="
"cert="
"key="
"file="
"group="
"%00"
"%2F"
"%40"
"[::1]"
":3306"

END
}

pack() {
  for target; do
    seeds="$O/corpus/$target"
    [ -d "$seeds" ] || { echo "$target has not run: make fuzz" >&2; return 1; }
    "$O/fuzz-$target" -merge=1 "$seeds" "$O/found/$target" >"$O/fuzz-$target.log" 2>&1
    echo "$target: $(find "$seeds" -type f | wc -l) inputs"
  done
  (cd "$O/corpus" && find . -type f -printf '%P\n' | LC_ALL=C sort) |
    tar --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 \
      -cf spec/fuzz/corpus.tar -C "$O/corpus" -T -
}

if [ "$1" = pack ]; then
  shift
  set -e
  pack "$@"
  exit
fi

share=$(($1 / ($# - 1)))
[ "$share" -gt 0 ] || share=1
shift

export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
unset NIGHTSHIFT_URL

rm -rf "$O/corpus"
mkdir -p "$O/corpus"
tar -xf spec/fuzz/corpus.tar -C "$O/corpus" || exit

passed=0
failed=0
for target; do
  seeds="$O/corpus/$target"
  found="$O/found/$target"
  log="$O/fuzz-$target.log"
  rm -rf "$found"
  mkdir -p "$seeds" "$found"
  dictionary="$O/$target.dict"
  words "$target" >"$dictionary"
  if nice "$O/fuzz-$target" -max_total_time="$share" -timeout=10 -rss_limit_mb=1024 -max_len=4096 \
    -artifact_prefix="$O/fuzz-$target-" -print_final_stats=1 \
    $([ ! -s "$dictionary" ] || echo "-dict=$dictionary") \
    "$found" "$seeds" >"$log" 2>&1
  then
    passed=$((passed + 1))
    awk -v t="$target" '/number_of_executed_units/ { n = $2 }
      { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
      END { printf "fuzz %s: %d inputs, %d edges\n", t, n, cov }' "$log"
  else
    failed=$((failed + 1))
    tail -n 60 "$log"
    echo "fuzz $target: broken"
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
