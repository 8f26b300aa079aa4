#!/usr/bin/env bash
# NVIDIA's assembler takes the kernels for every generation of devices, without spilling a register and within a budget.
#
# `ptxas` comes from PyPI, 40 MB, once: it is in the wheel of nvcc's parts for CUDA 12.9, the last that knows the oldest devices
# that the kernels are for. Nothing of it is shipped. It needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

version=12.9.86
folder="$PWD/target/ptxas-$version"
ptxas="$folder/nvidia/cuda_nvcc/bin/ptxas"

# Of 65536 registers 256 threads may have 255 each. The budget is far below that, so that it is seen when a compiler takes
# more: with 64 a multiprocessor still has room for 1024 threads.
budget=64
devices=(70 75 80 86 87 89 90 100 101 103 120 121)

if [ ! -x "$ptxas" ]; then
    echo "fetching ptxas $version from PyPI"
    python3 -m pip download --quiet --no-deps --dest "$folder" "nvidia-cuda-nvcc-cu12==$version"
    python3 -m zipfile -e "$folder"/*.whl "$folder"
    rm "$folder"/*.whl
    chmod +x "$ptxas"
fi

problems=0
for device in "${devices[@]}"; do
    if ! report="$("$ptxas" --verbose --gpu-name "sm_$device" --output-file /dev/null kernels/block_hash.ptx 2>&1)"; then
        echo "sm_$device: $report"
        problems=$((problems + 1))
        continue
    fi
    # Four kernels, each with a line on its stack and one on its registers.
    spilt="$(grep -c 'bytes stack frame' <<<"$report") $(grep -c ' 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"$report")"
    registers="$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' <<<"$report" | tr '\n' ' ')"
    echo "sm_$device: registers $registers"
    if [ "$spilt" != "4 4" ]; then
        echo "sm_$device: a kernel has a stack or spills: $report"
        problems=$((problems + 1))
    fi
    for used in $registers; do
        if [ "$used" -gt "$budget" ]; then
            echo "sm_$device: $used registers, $budget are the budget"
            problems=$((problems + 1))
        fi
    done
done
exit "$((problems > 0))"
