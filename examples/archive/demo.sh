#!/bin/sh
# Runs the archive demo for `make demo`: pushes a job per sub-folder of $DIR,
# runs workers until all have ended, and shows the table. At the end it says how
# to look at the jobs. Archives and a private database go under $OUT (build/demo).
# Exit status: 0 nothing failed, 1 something did, 2 no such folder.
set -u
cd "$(dirname "$0")/../.." || exit
here=$(pwd)
build=$(cd "${O:-build}" && pwd) || exit
dir=$(realpath -- "${DIR:-/usr/share}" 2>/dev/null)
[ -d "$dir" ] || { echo "demo: DIR=${DIR-}: no such folder" >&2; exit 2; }
[ "$dir" = / ] && dir=

# The database is the demo's own, whatever the environment says.
unset NIGHTSHIFT_URL
export LUA_PATH="$here/lua/?.lua;$here/lua/?/init.lua;;"
export LUA_CPATH="$build/?.so;;"
mkdir -p "${OUT:=$here/build/demo}" && cd "$OUT" || exit
out=$(pwd)

# A demo starts from nothing, and one at a time. The server of an earlier one
# stops by itself once its last workers are gone.
exec 9>.lock
flock -n 9 || { echo "demo: another one is running" >&2; exit 1; }
tries=0
while [ -e .nightshift/server.pid ] && kill -0 "$(cat .nightshift/server.pid)" 2>/dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 300 ] || { echo "demo: an earlier one still runs, see $out" >&2; exit 1; }
  sleep 0.2
done
find . -maxdepth 1 -name '*.tar.gz' -delete
rm -rf .work .nightshift

"$build/bin/nightshift" init >work.log 2>&1 9>&- || { cat work.log >&2; exit 1; }
"${LUA:-lua5.4}" "$here/examples/archive/push.lua" "$dir" "$out" 9>&- &
watch=$!
trap 'kill $watch 2>/dev/null' EXIT
trap 'exit 130' INT TERM

# Workers as long as jobs are left; a host that is killed is started again.
crashes=0
while kill -0 $watch 2>/dev/null; do
  "$build/bin/nightshift" work "$here/examples/archive/jobs.lua" \
    --workers "${WORKERS:-4}" --drain >>work.log 2>&1 9>&- ||
    crashes=$((crashes + 1))
  [ $crashes -lt 10 ] || { tail -n 20 work.log >&2; exit 1; }
  sleep 0.1
done
wait $watch
status=$?
trap - EXIT
rm -rf .work
printf '\n%s\n  %s\n' "Its jobs as pages, at http://127.0.0.1:7878/:" "(cd '$out' && '$build/bin/nightshift' web)"
exit $status
