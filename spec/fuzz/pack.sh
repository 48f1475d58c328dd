#!/bin/sh
# pack.sh TARGET…: adds to the seeds of each target what the last run found and
# the seeds do not reach, and packs them into spec/fuzz/corpus/TARGET.tar. The
# same seeds make the same archive, to the byte.
set -eu
for target; do
  seeds="$O/corpus/$target"
  [ -d "$seeds" ] || { echo "$target has not run: make fuzz" >&2; exit 1; }
  "$O/fuzz-$target" -merge=1 "$seeds" "$O/found/$target" >"$O/fuzz-$target.log" 2>&1
  (cd "$seeds" && find . -type f -printf '%P\n' | LC_ALL=C sort) |
    tar --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 \
      -cf "spec/fuzz/corpus/$target.tar" -C "$seeds" -T -
  echo "$target: $(tar -tf "spec/fuzz/corpus/$target.tar" | wc -l) inputs"
done
