#!/bin/sh
# One consistent dump of everything, and where to: backup.sh postgres://…/shop /var/backups/shop.dump
set -eu
pg_dump --format=custom --no-owner --file="$2.new" "$1"
mv "$2.new" "$2"
