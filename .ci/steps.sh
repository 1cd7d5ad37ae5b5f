#!/usr/bin/env bash
# The steps of the gate, one function each: `bash .ci/steps.sh NAME`, started by .ci/run.
# What is tested where, and with what, is said in noxfile.py.
set -euo pipefail

environments=$CI_WORK/environments
venv=$environments/tests-3-11 # the one that nox gives to Python 3.11

# What each pytest of a step is told: the gate's order and examples are the same each time.
told=(-p no:cacheprovider)
[[ -n ${OJS_CI_WIDE-} ]] || told+=(--randomly-seed=1)
export OJS_TEST_REPORT=$CI_WORK/${1-}.tests
if [[ -n ${OJS_CI_AGAIN-} ]]; then # these tests alone
  told+=(-n 0)
  export OJS_TEST_ONLY=$OJS_CI_AGAIN OJS_TEST_REPORT=
fi

step_tests() { # the README's test command, in an environment that has nothing else; SQLite
  local alone=$environments/readme
  [[ -d $alone ]] || { "$(find_python 3.11)" -m venv "$alone" && "$alone/bin/pip" install -e '.[test]'; }
  "$alone/bin/python" -VV
  "$alone/bin/pytest" "${told[@]}"
}

step_environments() { # what the later steps need, side by side: installing measures nothing
  local jobs=() job package version
  for package in headers chromium nginx node curl; do bash .ci/services.sh "$package"; done
  python3 -m venv "$CI_WORK/nox"
  "$CI_WORK/nox/bin/pip" install 'nox[uv]'
  for version in 3.11 3.12 3.13; do
    find_python "$version" >/dev/null || continue
    # uv needs a tenth of pip's time, and knows of no other source of packages that pip may have been given.
    { in_its_own "tests-$version" --install-only || NOX_DEFAULT_VENV_BACKEND=venv in_its_own "tests-$version" --install-only; } &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job"; done
  "$venv/bin/pip" check
  for package in postgres mariadb redis; do url "$package"; done
}

step_lint() { in_ours lint types; }
step_django() { in_ours django; }
step_slow() { in_ours slow -- "${told[@]}"; }
step_docs() { in_ours docs -- "$CI_WORK/docs"; }

step_postgres() { # and Redis, which carries the channel layer here
  OJS_TEST_POSTGRES_URL=$(url postgres)
  OJS_TEST_REDIS_URL=$(url redis)
  export OJS_TEST_POSTGRES_URL OJS_TEST_REDIS_URL
  in_ours postgres -- "${told[@]}"
}

step_postgres14() { other_postgres postgres14; }
step_postgres18() { other_postgres postgres18; }

other_postgres() { # the oldest and the newest that we support
  OJS_TEST_POSTGRES_URL=$(url "$1")
  export OJS_TEST_POSTGRES_URL
  in_ours statements -- "${told[@]}"
}

step_mariadb() {
  OJS_TEST_MARIADB_URL=$(url mariadb)
  export OJS_TEST_MARIADB_URL
  in_ours mariadb -- "${told[@]}"
}

step_conformance() {
  [[ -d ../shared/conformance ]] || skip "there are no published cases at ../shared/conformance"
  OJS_CONFORMANCE_DIR=$(realpath ../shared/conformance)
  export OJS_CONFORMANCE_DIR
  in_ours conformance -- "${told[@]}"
}

step_wheel() { # what a user installs, used where nothing of this checkout can be seen
  in_its_own wheel-3.11
}

step_readme() { # its first command in a fresh clone: the demo starts, works, and ends with Ctrl-C
  local fresh=$CI_WORK/fresh log=$CI_WORK/demo.log command page pid attempt
  bash .ci/services.sh curl
  if ! git clone --quiet . "$fresh"; then # no clone, or another user's: its files, then, but for what was made here
    mkdir -p "$fresh"
    tar --exclude=./.git --exclude='./.venv*' --exclude=./.nox --exclude='./*.sqlite3*' -cf - . | tar -xf - -C "$fresh"
  fi
  command=$(awk '/^```sh/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md)
  command+=" --port 0" # any that is free, for gRPC, too: another gate may start the demo in the same second
  echo "$command"
  set -m # a terminal of its own, which Ctrl-C is for
  (cd "$fresh" && exec bash -c "$command") >"$log" 2>&1 &
  pid=$!
  for attempt in {1..600}; do
    grep -qE 'completed [1-9]' "$log" && break
    kill -0 "$pid" 2>/dev/null || break
    sleep 1
  done
  cat "$log"
  grep -E 'completed [1-9]' "$log" | tail -n 1
  page=$(curl -fsSL "$(grep -oE 'http://[^ ]+/overview/' "$log")")
  [[ $page == *'name="password"'* ]]
  curl -fsS "$(grep -oE 'http://[^ ]+/ojs/manifest' "$log")" >/dev/null
  kill -INT -- "-$pid"
  wait "$pid"
}

step_python312() { newer_suite 3.12; }
step_python313() { newer_suite 3.13; }

step_djangotasks() { # Django's own tests of its Tasks framework on our backend; ours with the backport beside Django 6
  local version python none=1 code=0 told
  for version in 3.12 3.13; do
    find_python "$version" >/dev/null || continue
    none=0
    python=$environments/tests-${version/./-}/bin/python
    told=0
    "$python" .ci/django_tasks.py || told=$?
    [[ $told -eq 0 || $code -eq 1 ]] || code=$told # a failure counts for more than an archive that is not to be had
  done
  [[ $none -eq 0 ]] || skip "neither Python 3.12 nor 3.13 is on this machine"
  # Not into the environment, which the steps for the newer versions have without it.
  "$python" -m pip install --no-deps --target "$CI_WORK/backport" 'django-tasks>=0.9' django-stubs-ext typing_extensions
  PYTHONPATH=$CI_WORK/backport "${python%/*}/pytest" tests/tasks
  return "$code"
}

step_constraints() { # after a green `wide`
  python3 .ci/constraints.py "$environments"/tests-3-*/bin/python >.ci/constraints.new
  mv .ci/constraints.new .ci/constraints.txt
}

newer_suite() { # Python's version: of the suite what noxfile.py says, and of `wide` the tutorial with its Django
  find_python "$1" >/dev/null || skip "Python $1 is not on this machine"
  in_its_own "tests-$1" --no-install -- "${told[@]}"
  [[ -z ${OJS_CI_WIDE-} || -n ${OJS_CI_AGAIN-} ]] || in_its_own "wheel-$1"
}

in_ours() { # sessions of nox, in the environment of Python 3.11, which has all that they need
  PATH=$venv/bin:$PATH "$CI_WORK/nox/bin/nox" --envdir "$environments" --no-venv --no-install -s "$@"
}

in_its_own() { # session that is named after a version of Python, options...: in an environment of its own
  local session=$1
  shift
  PATH=$(dirname "$(find_python "${session##*-}")"):$PATH "$CI_WORK/nox/bin/nox" --envdir "$environments" -r -s "$session" "$@"
}

url() { # service: where it is, started if need be
  [[ -s $CI_WORK/$1.url ]] || bash .ci/services.sh "$1" >"$CI_WORK/$1.url"
  cat "$CI_WORK/$1.url"
}

find_python() { # 3.12: prints the path of an interpreter of that version
  local candidate
  # The system's comes first: it is built with profiles, and runs the tests in three quarters of the time that one of
  # pyenv needs, whose shim may be on the PATH without its version being enabled: ask each, for what not all have, too.
  for candidate in "/usr/bin/python$1" "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c "import ensurepip, sqlite3, sys; print(sys.executable); sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      return
    fi
  done
  return 1
}

skip() {
  echo "SKIPPED: $*"
  exit 77
}

# A line is a stage; `|` stands between lanes that run side by side: one works while the other mostly waits.
gate="
environments
tests lint django docs conformance wheel readme python313 | postgres mariadb slow python312
"
wide="
tests | environments
postgres mariadb postgres14 postgres18 | lint django slow conformance docs wheel readme python313 python312 djangotasks
"

case ${1-} in
  gate | wide) sed '/^$/d' <<<"${!1}" ;;
  *) "step_$1" ;;
esac
