#!/usr/bin/env bash
# Everything that needs a GPU, in one command without a network or a build: benchmarks/gpu_check.sh FOLDER [OPTION...]
#
# Checks every kernel, runs the tests, tunes, and measures; within 6 minutes on an H200 machine. See gpu_check.py for the
# options, `--configuration FILE` and `--rehearse`, and for what it writes to FOLDER.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: $0 FOLDER [--configuration FILE] [--rehearse]" >&2
  exit 2
fi
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$here")"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TRITON_INTERPRET=0
export PYTHONPATH="$root:$root/tests:$root/tests/triton_kernels:$here"
if [ ! -e "$root/fastsal/kernels" ]; then # the Triton parts run from the source tree: nothing is built
  ln -s ../kernels "$root/fastsal/kernels"
  trap 'rm "$root/fastsal/kernels"' EXIT
fi
"${PYTHON:-python3}" "$here/gpu_check.py" "$folder" "$@"
