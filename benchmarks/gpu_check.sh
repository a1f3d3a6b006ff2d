#!/usr/bin/env bash
# Everything that needs a GPU, in one command without a network: benchmarks/gpu_check.sh FOLDER
#
# Builds with what is installed, runs the kernels' and models' tests on the GPU, measures, and writes gpu_check.json,
# gpu_check.md, a measured configuration file and the logs to FOLDER. Under 8 minutes on an H200 machine.
# Without a GPU it is a rehearsal: the tests are only collected, the measurements run once in Triton's interpreter on
# toy sizes, and no figure is written. Exits with 1 if the build, a test or a check of a measured result fails.
set -uo pipefail
if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
out="$(cd "$1" && pwd)"
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/tests:$PWD/tests/triton_kernels"

failed=0
step() { # name, time limit in seconds, command...
  local name="$1" limit="$2" start=$SECONDS
  shift 2
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then
    echo "$name: done in $((SECONDS - start)) s"
  else
    echo "$name: FAILED after $((SECONDS - start)) s, the end of $name.log:"
    tail -n 30 "$out/$name.log"
    failed=1
  fi
}

step build 150 "$python" -m pip install --no-index --no-build-isolation --no-deps -e .
if [ $failed -ne 0 ]; then # the Triton parts run from the source tree too
  ln -sfn ../kernels fastsal/kernels
  export PYTHONPATH="$PWD:$PYTHONPATH"
fi
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  workers=()
  if "$python" -c 'import xdist' 2>/dev/null; then
    workers=(-n 8) # compiling takes the time, not the GPU
  fi
  TRITON_INTERPRET=0 step tests 180 "$python" -m pytest -q -p no:cacheprovider "${workers[@]}" tests/triton_kernels \
    --ignore tests/triton_kernels/test_static.py
  TRITON_INTERPRET=0 step measure 270 "$python" benchmarks/gpu_check.py "$out"
else
  echo "no GPU: a rehearsal, nothing is measured"
  step tests 120 "$python" -m pytest -q -p no:cacheprovider --collect-only tests/triton_kernels
  TRITON_INTERPRET=1 step measure 240 "$python" benchmarks/gpu_check.py "$out" --rehearse
fi
if [ -f "$out/gpu_check.md" ]; then
  cat "$out/gpu_check.md"
fi
exit $failed
