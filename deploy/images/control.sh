#!/bin/sh
# The control plane's image: its first argument says which part this container is.
set -eu
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
  # The command line, against the platform whose data folder is mounted here.
  trainmaster) exec python -c 'from trainmaster.cli.main import run; run()' "$@" ;;
  python | sh) exec "$part" "$@" ;;
  help | -h | --help)
    echo "usage: api | scheduler [--concurrency N] | beat | migrate | bootstrap [--token-file FILE] | migrations … | trainmaster … | python … | sh"
    ;;
  *)
    echo "This image has no part called $part; \`help\` lists them." >&2
    exit 2
    ;;
esac
