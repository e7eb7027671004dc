#!/bin/sh
# Installs a bundle without network: `sh install.sh [FOLDER]` makes the virtual environment FOLDER (default:
# /opt/trainmaster) of the wheels beside this file, and loads the images where there is a Docker engine.
# PYTHON chooses the interpreter; it must be the version that the bundle was made with.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-/opt/trainmaster}
(cd "$here" && sha256sum --quiet -c SHA256SUMS) || {
  echo "The bundle is damaged; copy it again. Nothing was installed." >&2
  exit 1
}
"${PYTHON:-python3}" -m venv "$folder"
# --isolated: no setting of this machine leads to an index.
pip() { "$folder/bin/python" -m pip --isolated install -q --no-index --find-links "$here/wheels" --no-deps "$@"; }
pip --require-hashes -r "$here/platform.lock" -r "$here/tensorboard.lock" -r "$here/train.lock"
pip "$here"/wheels/trainmaster*.whl
if [ -n "$(find "$here/wheels" -name 'torch-*.whl')" ]; then
  # With what it needs: all of it is in the bundle.
  "$folder/bin/python" -m pip --isolated install -q --no-index --find-links "$here/wheels" torch
fi
if [ -f "$here/images.tar" ]; then
  if docker version >/dev/null 2>&1; then
    docker load -q -i "$here/images.tar"
  else
    echo "There is no Docker engine; load $here/images.tar into your registry or your nodes yourself."
  fi
fi
echo "Installed. $folder/bin/trainmaster up starts a platform; the chart is in $here/deploy/helm."
