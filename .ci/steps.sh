#!/usr/bin/env bash
# The steps of the gate, one function each: `bash .ci/steps.sh NAME`, started by .ci/run.
set -euo pipefail

venv=$CI_WORK/.venv-ci # Python 3.11, Django 5.2

step_tests() { # the README's test command, and nothing before it; SQLite
  python3 --version
  python3 -m venv "$venv" && "$venv/bin/pip" install -e '.[test]' && suite "$venv/bin/pytest"
}

step_environments() { # what the later steps need, side by side: installing measures nothing
  local jobs=() job
  bash .ci/services.sh headers # mysqlclient is compiled
  bash .ci/services.sh chromium
  bash .ci/services.sh node
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  "$venv/bin/pip" install -e '.[test,postgres,mysql,redis,dev]' && "$venv/bin/pip" check & jobs+=($!)
  newer_environment 3.12 'Django~=6.0.0' & jobs+=($!)
  newer_environment 3.13 'Django~=6.1.0' & jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job"; done
}

step_lint() {
  "$venv/bin/ruff" check .
  "$venv/bin/ruff" format --check .
  "$venv/bin/mypy"
}

step_django() {
  export DATABASE_URL=sqlite:///$CI_WORK/check.sqlite3
  "$venv/bin/python" manage.py makemigrations --check --dry-run
  "$venv/bin/python" manage.py check --fail-level WARNING
}

step_postgres() { # and Redis, which carries the channel layer here
  local OJS_TEST_DATABASE_URL OJS_TEST_REDIS_URL
  OJS_TEST_DATABASE_URL=$(bash .ci/services.sh postgres)
  OJS_TEST_REDIS_URL=$(bash .ci/services.sh redis)
  export OJS_TEST_DATABASE_URL OJS_TEST_REDIS_URL OJS_TEST_FULL=1 # 20,000 jobs
  echo "$OJS_TEST_DATABASE_URL $OJS_TEST_REDIS_URL"
  suite "$venv/bin/pytest" -m "not sqlite and not conformance"
}

step_mariadb() {
  local OJS_TEST_DATABASE_URL
  OJS_TEST_DATABASE_URL=$(bash .ci/services.sh mariadb)
  export OJS_TEST_DATABASE_URL
  echo "$OJS_TEST_DATABASE_URL"
  suite "$venv/bin/pytest" -m "not sqlite and not conformance"
}

step_conformance() { # the cases wait more than they work: four at a time
  [[ -d ../shared/conformance ]] || skip "there are no published cases at ../shared/conformance"
  OJS_CONFORMANCE_DIR=$(realpath ../shared/conformance)
  export OJS_CONFORMANCE_DIR
  suite "$venv/bin/pytest" -m conformance -n 4
}

step_wheel() { # what a user installs, used where nothing of this checkout can be seen
  "$venv/bin/python" -m build --wheel --outdir "$CI_WORK/dist" .
  tutorial python3 ''
  cd "$CI_WORK/tutorial"
  .venv/bin/pip check
  .venv/bin/python manage.py makemigrations --check --dry-run
  .venv/bin/python -c 'import django_ojs, pathlib; here = pathlib.Path(django_ojs.__file__).parent; print(here)
assert here.parent.name == "site-packages" and (here / "py.typed").exists()'
}

step_readme() { # its first command in a fresh clone: the demo starts, works, and ends with Ctrl-C
  local fresh=$CI_WORK/fresh log=$CI_WORK/demo.log command page port pid attempt
  bash .ci/services.sh curl
  if ! git clone --quiet . "$fresh"; then # no clone, or another user's: its files, then, but for what was made here
    mkdir -p "$fresh"
    tar --exclude=./.git --exclude='./.venv*' --exclude='./*.sqlite3*' -cf - . | tar -xf - -C "$fresh"
  fi
  command=$(awk '/^```sh/ { inside = 1; next } /^```/ { if (inside) exit } inside' README.md)
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  echo "$command --port $port"
  set -m # a terminal of its own, which Ctrl-C is for
  (cd "$fresh" && exec bash -c "$command --port $port") >"$log" 2>&1 &
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
  curl -fsS "http://127.0.0.1:$port/ojs/manifest" >/dev/null
  kill -INT -- "-$pid"
  wait "$pid"
}

step_docs() { # the documentation, with warnings as errors
  "$venv/bin/pip" install -e '.[docs]'
  "$venv/bin/python" -m sphinx -W --keep-going -b html docs "$CI_WORK/docs"
}

step_python312() { newer_suite 3.12 -m "not slow"; } # between two versions on which the slow ones run
step_python313() { newer_suite 3.13; }

step_djangotasks() { # Django's own tests of its Tasks framework on our backend; ours with the backport beside Django 6
  local version python none=1 code=0 told
  for version in 3.12 3.13; do
    find_python "$version" >/dev/null || continue
    none=0
    python=$CI_WORK/python$version/bin/python
    told=0
    "$python" .ci/django_tasks.py || told=$?
    [[ $told -eq 0 || $code -eq 1 ]] || code=$told # a failure counts for more than an archive that is not to be had
  done
  [[ $none -eq 0 ]] || skip "neither Python 3.12 nor 3.13 is on this machine"
  # Not into the environment, which the steps for the newer versions have without it.
  "$python" -m pip install --no-deps --target "$CI_WORK/backport" 'django-tasks>=0.9' django-stubs-ext typing_extensions
  PYTHONPATH=$CI_WORK/backport suite "${python%/*}/pytest" tests/tasks
  return "$code"
}

newer_environment() { # Python's version, Django
  local python
  python=$(find_python "$1") || return 0
  "$python" -m venv "$CI_WORK/python$1"
  "$CI_WORK/python$1/bin/pip" install -e '.[test]' "$2"
}

newer_suite() { # Python's version, pytest's arguments: the suite on SQLite, and the tutorial with the Django that it has
  local python=$CI_WORK/python$1/bin
  find_python "$1" >/dev/null || skip "Python $1 is not on this machine"
  shift
  "$python/python" -c 'import django, sys; print("Python", sys.version.split()[0], "Django", django.__version__)'
  suite "$python/pytest" "$@"
  tutorial "$python/python" "$("$python/python" -c 'import django; print("%d.%d" % django.VERSION[:2])')"
}

tutorial() { # interpreter, Django's version or '': docs/tutorial.md word by word, in an empty folder
  local package=("$CI_WORK"/dist/*.whl)
  [[ -e ${package[0]} ]] || package=(.)
  bash .ci/services.sh curl
  "$1" .ci/tutorial.py --package "${package[0]}" --django "$2" --folder "$CI_WORK/tutorial$2"
}

# The machine may be busy with others' work: tests that failed, three at most, run once more, each in a process of its
# own with the machine to itself. All runs stay in the log and the summary says so, for a test that needs it is a
# defect to look for.
suite() { # pytest and its arguments
  local code=0 test failed
  "$@" || code=$?
  [[ $code -eq 1 ]] || return "$code"
  mapfile -t failed < <("$1" --last-failed --last-failed-no-failures none --collect-only -q -n 0 | grep '::')
  echo "-----> ${#failed[@]} failed"
  [[ ${#failed[@]} -ge 1 && ${#failed[@]} -le 3 ]] || return "$code"
  for test in "${failed[@]}"; do
    "$1" -n 0 -p no:cacheprovider "$test" || return "$code"
  done
  echo "-----> SECOND RUN: what failed above passed alone"
}

find_python() { # 3.12: prints an interpreter of that version
  local candidate
  # A shim of pyenv may be on the PATH without its version being enabled: ask each.
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

skip() {
  echo "SKIPPED: $*"
  exit 77
}

case ${1-} in
  list) printf '%s\n' tests environments lint django postgres mariadb conformance wheel readme docs python312 python313 djangotasks ;;
  *) "step_$1" ;;
esac
