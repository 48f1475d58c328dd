#!/bin/sh
# Migrates the files below $DIR: serves them, makes a task of each, and has two hosts
# download them into $OUT/images. Exit status: 0 all are there, 1 not.
set -u
cd "$(dirname "$0")/../.." || exit
here=$(pwd)/examples/migration
build=$(cd "${O:-build}" && pwd) || exit
dir=$(realpath -- "${DIR:-/usr/share/doc}") || exit
lua=${LUA:-lua5.4}

# The database is the example's own, whatever the environment says.
unset NIGHTSHIFT_URL
export LUA_PATH="$(pwd)/lua/?.lua;$(pwd)/lua/?/init.lua;;" LUA_CPATH="$build/?.so;;"
mkdir -p "${OUT:=$(pwd)/build/migration}" && cd "$OUT" || exit
export IMAGES="$(pwd)/images"
rm -rf images && mkdir images || exit
"$build/bin/nightshift" init >work.log 2>&1 || { cat work.log >&2; exit 1; }

"$lua" "$here/tools.lua" serve "$dir" "${PAUSE_EVERY:-0}" >port 2>server.log &
server=$!
trap 'kill $server $hosts 2>/dev/null; rm -f port images/*.part*' EXIT
trap 'exit 130' INT TERM
hosts=
until [ -s port ]; do
  kill -0 $server 2>/dev/null || { cat server.log >&2; exit 1; }
  sleep 0.05
done

"$lua" "$here/tools.lua" seed "$dir" "http://127.0.0.1:$(cat port)" "${LIMIT:-50000}" 2>>work.log ||
  { cat work.log >&2; exit 1; }
for host in 1 2; do
  "$build/bin/nightshift" work "$here/jobs.lua" --adopt "$here/migration.lua" --workers "${WORKERS:-4}" \
    --drain --log json >>work.log 2>&1 &
  hosts="$hosts $!"
done
"$lua" "$here/tools.lua" watch
