#!/usr/bin/env bash
# Ends what a run of .ci/run leaves, however it ended: `watch.sh FOLDER PID`, started by .ci/run, waits until that process
# is gone, kills every process that belongs to the folder, and removes the folder.
set -u
work=$1
tail --pid="$2" --sleep-interval=1 -f /dev/null

left() { # the processes of the run: by their environment, command line or folder, of which servers overwrite some
  local process
  for process in /proc/[0-9]*; do
    ! grep -qsaF watch.sh "$process/cmdline" || continue
    if grep -qsaF "$work" "$process/environ" "$process/cmdline" || [[ $(readlink "$process/cwd") == "$work"/* ]]; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}

for signal in TERM KILL; do
  for pid in $(left); do kill -s "$signal" "$pid" 2>/dev/null; done
  for _ in {1..10}; do
    [[ -z $(left) ]] || sleep 1
  done
done
rm -rf "$work"
