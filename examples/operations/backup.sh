#!/bin/sh
# Copy the state of a federation's server into a new folder; call it in the server's folder.
#   sh backup.sh /srv/backup
set -eu
target="$1/$(date -u +%Y%m%dT%H%M%SZ)"
mkdir -p "$target"
# 1. The run directory; a copy that a round was written into is made again.
for attempt in 1 2 3; do
  rm -rf "$target/run"
  cp -a run "$target/run"
  if venv/bin/coterie check "$target/run"; then break; fi
  if [ "$attempt" = 3 ]; then exit 1; fi
done
# 2. The SuperLink's database, by SQLite's own backup.
if [ -f superlink.db ]; then
  venv/bin/python -c "import sqlite3, sys; sqlite3.connect('superlink.db').backup(sqlite3.connect(sys.argv[1]))" \
    "$target/superlink.db"
fi
# 3. Keys, certificates, names of clients, the app and the schema. ca.key belongs elsewhere.
for file in server.key server.pem ca.pem clients.toml schema.toml app; do
  if [ -e "$file" ]; then cp -a "$file" "$target/"; fi
done
chmod -R go-rwx "$target"
echo "$target"
