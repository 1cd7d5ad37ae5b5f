#!/usr/bin/env bash
# Database servers for the gate. `services.sh postgres|mariadb|redis` prints a URL to test with: of the server
# that answers on the usual local port if it lets us make databases, else of one that is installed from Debian's
# packages where needed and started on a port of its own. `stop` ends the latter. All but URLs goes to stderr.
# `headers`, `curl`, `chromium`, `nginx` and `node` install only.
# OJS_CI_PRIVATE_SERVICES=1 passes over servers that are running already.
set -euo pipefail

PATH=$PATH:/usr/sbin
state=$CI_WORK/services
private=${OJS_CI_PRIVATE_SERVICES-}

postgres() {
  local user bin port=54329 data=$state/postgres
  packages psql postgresql-client
  for user in "$(id -un)" postgres; do
    if [[ -z $private && $(psql -wXAtq -h 127.0.0.1 -U "$user" -d postgres -c "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user" 2>/dev/null) == t ]]; then
      echo "postgres://$user@127.0.0.1:5432/ojs_ci"
      return
    fi
  done
  ls /usr/lib/postgresql/*/bin/initdb &>/dev/null || install postgresql
  bin=$(dirname "$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)")
  directory "$data" postgres
  as postgres "$bin/initdb" --auth=trust --encoding=UTF8 --locale=C.UTF-8 --username=postgres -D "$data/db" >&2
  as postgres "$bin/pg_ctl" -D "$data/db" -l "$data/log" -w -o "-p $port -k $data -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200" start >&2
  echo "'$bin/pg_ctl' -D '$data/db' -m immediate stop" >"$state/postgres.stop"
  echo "postgres://postgres@127.0.0.1:$port/ojs_ci"
}

mariadb() {
  local port=33069 data=$state/mariadb
  packages mariadb mariadb-client
  if [[ -z $private ]] && command mariadb -h 127.0.0.1 -u root -e "CREATE DATABASE IF NOT EXISTS ojs_ci" 2>/dev/null; then
    echo "mysql://root@127.0.0.1:3306/ojs_ci"
    return
  fi
  packages mariadbd mariadb-server
  directory "$data" mysql
  as mysql mariadb-install-db --no-defaults --datadir="$data/db" --auth-root-authentication-method=normal --skip-test-db >&2
  as mysql "$(command -v mariadbd)" --no-defaults --datadir="$data/db" --port=$port --bind-address=127.0.0.1 \
    --socket="$data/socket" --pid-file="$data/pid" --innodb-flush-log-at-trx-commit=0 &>"$data/log" &
  echo "pid=\$(<'$data/pid'); kill \$pid; timeout 20 tail -s 0.1 -f /dev/null --pid \$pid" >"$state/mariadb.stop"
  wait_for mariadb "$data/log" command mariadb -h 127.0.0.1 -P $port -u root -e "CREATE DATABASE IF NOT EXISTS ojs_ci"
  echo "mysql://root@127.0.0.1:$port/ojs_ci"
}

redis() {
  local port=63799 data=$state/redis
  packages redis-cli redis-tools
  if [[ -z $private && $(redis-cli -h 127.0.0.1 ping 2>/dev/null) == PONG ]]; then
    echo "redis://127.0.0.1:6379/15"
    return
  fi
  packages redis-server redis-server
  mkdir -p "$data"
  redis-server --port $port --bind 127.0.0.1 --save "" --appendonly no --dir "$data" --pidfile "$data/pid" --daemonize yes >&2
  echo "pid=\$(<'$data/pid'); kill \$pid; timeout 20 tail -s 0.1 -f /dev/null --pid \$pid" >"$state/redis.stop"
  wait_for redis /dev/null redis-cli -h 127.0.0.1 -p $port ping
  echo "redis://127.0.0.1:$port/15"
}

headers() { # to compile mysqlclient
  packages mariadb_config libmariadb-dev
  packages pkg-config pkg-config
  packages gcc gcc
}

curl() { # for docs/tutorial.md
  packages curl curl
}

chromium() { # for the tests that look at pages
  [[ -n ${CHROMIUM-} ]] || packages chromium chromium
}

nginx() { # for the tests of readers behind a proxy, which start one of their own
  packages nginx nginx-light
}

node() { # for the examples of workers and webhooks in JavaScript
  packages node nodejs
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

install() {
  local sudo=()
  [[ $(id -u) == 0 ]] || sudo=(sudo -n)
  export DEBIAN_FRONTEND=noninteractive
  exec 9>"$state/apt"
  flock 9 # steps may run side by side
  "${sudo[@]}" apt-get update -q >&2
  "${sudo[@]}" apt-get install -q -y --no-install-recommends "$@" >&2
  exec 9>&-
}

directory() { # path, owner: a server does not run as root
  mkdir -p "$1"
  [[ $(id -u) != 0 ]] || chown "$2" "$1"
}

as() { # user, command...: as root, become that user; else run it as who we are
  local user=$1
  shift
  if [[ $(id -u) == 0 && $user != root ]]; then
    runuser -u "$user" -- "$@"
  else
    "$@"
  fi
}

wait_for() { # name, log, command...
  local name=$1 log=$2 attempt
  shift 2
  for attempt in {1..60}; do
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
