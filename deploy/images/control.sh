#!/bin/sh
# The control plane's image: its first argument says which part this container is.
set -eu
[ "${0##*/}" != trainmaster ] || set -- trainmaster "$@"
part=${1:-help}
[ $# -eq 0 ] || shift
# `exec`: the part itself is the container's first process and hears its SIGTERM.
case $part in
  api) exec python -m api "$@" ;;
  scheduler) exec python -m scheduler worker "$@" ;;
  beat) exec python -m scheduler beat "$@" ;;
  migrate) exec python -m migrations upgrade "$@" ;;
  bootstrap) exec python -m migrations bootstrap "$@" ;;
  migrations) exec python -m migrations "$@" ;;
  # The command line, as the installation's admin, for `docker compose exec api trainmaster …` and the like.
  trainmaster)
    file=${TRAINMASTER_TOKEN_FILE:-$TRAINMASTER_HOME/token}
    if [ -z "${TRAINMASTER_TOKEN:-}" ] && [ -r "$file" ]; then
      TRAINMASTER_TOKEN=$(cat "$file")
      export TRAINMASTER_TOKEN
    fi
    export TRAINMASTER_API_URL="http://127.0.0.1:${TRAINMASTER_PORT:-8765}" HOME=/tmp
    exec python -c 'from trainmaster.cli.main import run; run()' "$@"
    ;;
  # For health checks, as the image has no curl: fails unless the address answers with success.
  probe) exec python -ISc 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=4)' "$1" ;;
  python | sh) exec "$part" "$@" ;;
  help | -h | --help)
    echo "usage: api | scheduler [--concurrency N] | beat | migrate | bootstrap [--token-file FILE] | migrations … |" \
      "trainmaster … | probe URL | python … | sh"
    ;;
  *)
    echo "This image has no part called $part; \`help\` lists them." >&2
    exit 2
    ;;
esac
