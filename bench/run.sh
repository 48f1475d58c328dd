#!/bin/sh
# Starts a MariaDB server of its own for the bench, runs bench/run.lua (or $ASK)
# against it with this script's arguments, and stops it. Called by `make bench`.
# Everything is under $O/bench and a socket folder in /tmp; no port is opened.
#
# Nothing that it starts outlives it, however it ends: each process asks the kernel to
# be told when the one above it is gone. A signal ends it at once. The
# questions are asked in the background, since a waiting shell gets no signal.
set -eu
[ "${BENCH_TIED:-}" = $PPID ] || BENCH_TIED=$PPID exec setpriv --pdeathsig TERM sh "$0" "$@"
cd "$(dirname "$0")/.."
build=$(cd "${O:-build}" && pwd)
home=$build/bench
server= asking=
here=$(pwd)
export LUA_PATH="$here/?.lua;$here/lua/?.lua;$here/lua/?/init.lua;;"
export LUA_CPATH="$build/?.so;;"
"${LUA:-lua5.4}" "${ASK:-bench/run.lua}" "$build" "" "$@" # wrong options need no server
socket_folder=$(mktemp -d)
cleanup() {
  for process in $asking $server; do
    if kill "$process" 2>/dev/null; then wait "$process" || :; fi
  done
  rm -rf "$socket_folder" "$home/data" "$home/tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
PATH=$PATH:/usr/sbin:/usr/local/sbin

rm -rf "$home/data"
mkdir -p "$home"
# A tmpdir of its own: a server that starts wipes the temporary tables in its
# tmpdir, whosever they are.
mkdir -p "$home/tmp"
# What a job costs in the binary log is asked alone, on a server that has one.
binlog=skip-log-bin
case " $* " in *" --only capacity "*) binlog=log-bin=bin ;; esac
# The settings the figures are measured with; run.lua prints these lines.
cat >"$home/settings" <<END
innodb-buffer-pool-size=1G
innodb-log-file-size=512M
innodb-flush-log-at-trx-commit=1
performance-schema=OFF
$binlog
skip-networking
max-connections=500
END
{
  echo "[mariadbd]"
  cat "$home/settings"
  echo "datadir=$home/data"
  echo "tmpdir=$home/tmp"
  echo "socket=$socket_folder/s.sock"
  echo "pid-file=$socket_folder/pid"
  echo "log-error=$home/server.log"
  [ "$(id -u)" != 0 ] || echo "user=root"
} >"$home/my.cnf"
mariadb-install-db --defaults-file="$home/my.cnf" --skip-test-db \
  --auth-root-authentication-method=socket \
  --auth-root-socket-user="$(id -un)" >"$home/install.log" 2>&1 ||
  { cat "$home/install.log" >&2; exit 1; }
setpriv --pdeathsig KILL mariadbd --defaults-file="$home/my.cnf" 2>>"$home/server.log" &
server=$!
client() { mariadb --no-defaults -S "$socket_folder/s.sock" -u "$(id -un)" "$@"; }
tries=0
until client -e "DO 1" 2>/dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 300 ] || { echo "bench: the server does not start, see $home/server.log" >&2; exit 1; }
  sleep 0.1
done
client -e "CREATE DATABASE floor CHARACTER SET utf8mb4;
  CREATE DATABASE nightshift CHARACTER SET utf8mb4"

setpriv --pdeathsig KILL "${LUA:-lua5.4}" "${ASK:-bench/run.lua}" "$build" "$socket_folder/s.sock" "$@" &
asking=$!
wait $asking
asking=
