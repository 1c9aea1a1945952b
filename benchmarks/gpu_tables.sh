#!/usr/bin/env bash
# The papers' tables on a machine with a GPU and no network, in calls of a few minutes.
#
#   here:   make gpu-pack PACK="--data mnist5k --data mnist --data cifar10"
#   there:  bash benchmarks/gpu_tables.sh take            with two of the pieces in carry/, until all were taken
#           bash benchmarks/gpu_tables.sh run MINUTES [LIST] [MORE OF settle]
#                                                          again and again: what is done is not done twice
#
# `run` leaves results.tar.gz (finished results, logs, cells) in $OUT, or in build/ where there is none. COMMIT says which commit
# this copy of the checkout is; results name it. Where the GPU's service for several processes starts, they share it at once.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
share_gpu() {
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/hardcase-mps CUDA_MPS_LOG_DIRECTORY=/tmp/hardcase-mps
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
    nvidia-cuda-mps-control -d 2>/dev/null && sleep 1 &&
        timeout 30 "$python" -c "import torch; print('shared by', float((torch.ones(8, device='cuda') * 2).sum()))" && return
    echo quit | timeout 10 nvidia-cuda-mps-control 2>/dev/null || true
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    echo "processes take turns on the GPU"
}
case "${1:-}" in
take)
    "$python" -m benchmarks.pack take
    ;;
run)
    export GIT_COMMIT=${COMMIT:?the commit of this checkout}
    minutes=${2:-8}
    list=${3:-tables}
    [ "${DEVICE:-cuda}" = cpu ] || [ -n "${TURNS:-}" ] || share_gpu
    status=0
    "$python" -m benchmarks.settle "$list" --minutes "$minutes" ${DEVICE:+--device "$DEVICE"} ${SMALL:+--small} "${@:4}" || status=$?
    echo quit | timeout 10 nvidia-cuda-mps-control 2>/dev/null || true
    find build/settle -name cells -o -name '*.png' -size -600k 2>/dev/null | sed 's,^build/,,' > build/extra.txt
    tar -czf "${OUT:-build}/results.tar.gz" -C build --ignore-failed-read results settle/logs -T build/extra.txt || true
    cp "${HARDCASE_CACHE:-$HOME/.cache/hardcase}"/tracebacks/*.txt "${OUT:-build}"/ 2>/dev/null || true
    echo "status $status; finished: $(ls build/results 2>/dev/null | tr '\n' ' ')"
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
    ;;
*)
    sed -n '2,10p' "$0"
    exit 2
    ;;
esac
