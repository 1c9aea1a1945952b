#!/usr/bin/env bash
# The papers' tables on a machine with a GPU and no network, in calls of a few minutes.
#
#   here:   make gpu-pack PACK="--data mnist5k --data mnist --data fashion --data cifar10"
#   there:  bash benchmarks/gpu_tables.sh take           with two of the pieces in carry/, until all were taken
#           bash benchmarks/gpu_tables.sh run MINUTES     again and again: what is done is not done twice
#
# `run` leaves results.tar.gz (finished results, logs) in $OUT, or in build/ where there is none. COMMIT says which commit
# this copy of the checkout is; results name it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
case "${1:-}" in
take)
    "$python" -m benchmarks.pack take
    ;;
run)
    export GIT_COMMIT=${COMMIT:?the commit of this checkout}
    status=0
    "$python" -m benchmarks.settle tables --minutes "${2:-8}" ${DEVICE:+--device "$DEVICE"} ${SMALL:+--small} || status=$?
    tar -czf "${OUT:-build}/results.tar.gz" -C build --ignore-failed-read results settle/logs $(cd build && ls -d settle/*/cells 2>/dev/null || true)
    echo "status $status; finished: $(ls build/results 2>/dev/null | tr '\n' ' ')"
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
    ;;
*)
    sed -n '2,9p' "$0"
    exit 2
    ;;
esac
