#!/usr/bin/env bash
# test_standalone.sh CMAKE KERNELS: kernels/ configures alone. OFF: no targets, and no compiler but C++ is looked for. ON without any host
# compiler that nvcc supports: an error that says what to do, unless it is allowed; ON without nvcc: a warning and no targets.
set -uo pipefail
cmake=$1 kernels=$2
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
bad=0
configure() { "$cmake" -S "$kernels" -B "$scratch/$1" "${@:2}" >"$scratch/log" 2>&1; }
says() { grep -q -- "$1" "$scratch/log" || { echo "$2: it does not say \"$1\": $(tail -n 3 "$scratch/log")"; bad=1; }; }

configure off -DBKL_ENABLE_CUDA=OFF || { echo "OFF: it does not configure"; bad=1; }
says "no CUDA targets" OFF
"$cmake" --build "$scratch/off" --target help 2>/dev/null | grep -q 'bkl' && { echo "OFF: it defines targets"; bad=1; }


configure none -DBKL_ENABLE_CUDA=ON -DBKL_HOST_COMPILER_NAMES=g++-99 && { echo "no host compiler: it configures"; bad=1; }
says "BKL_CUDA_HOST_COMPILER=PATH" "no host compiler"

if [[ -x ${NVCC:-/usr/local/cuda/bin/nvcc} ]]; then
    configure chosen -DBKL_ENABLE_CUDA=ON -DBKL_CUDA_HOST_COMPILER="$(command -v g++)" || { echo "a chosen host compiler: it does not configure"; bad=1; }
    says "(BKL_CUDA_HOST_COMPILER)" "a chosen host compiler"
    "$cmake" --build "$scratch/chosen" --target help >"$scratch/targets"
    for target in bkl_device_hello bkl_graph_launch_bench bkl_green_ctx_bench; do
        grep -q "$target" "$scratch/targets" || { echo "ON: no target $target"; bad=1; }
    done
else
    configure without -DBKL_ENABLE_CUDA=ON -DBKL_ALLOW_UNSUPPORTED_HOST_COMPILER=ON || { echo "ON without nvcc: it does not configure"; bad=1; }
    says "no CUDA compiler was found" "ON without nvcc"
fi
exit $bad
