#!/usr/bin/env bash
# device_check.sh [BUILD [OUT]]: everything that a GPU can prove, in at most ten minutes, in one run. BUILD is a build folder made with
# AGOGE_CUDA=on (default build/release); JSON and logs go to OUT (default results/device-check-<time>). Each stage has its own time limit, and
# a stage that fails does not stop the later ones. Exit 0: every stage passed or was skipped for a reason that the summary states;
# 1: a stage failed or ran out of time; 2: wrong usage.
set -uo pipefail
(( $# <= 2 )) || { echo "usage: $0 [BUILD [OUT]]" >&2; exit 2; }
build=${1:-build/release}
out=${2:-results/device-check-$(date -u +%Y%m%dT%H%M%SZ)}
[[ -d $build ]] || { echo "$build: there is no such build folder; make it with: cmake --preset release -DAGOGE_CUDA=on && cmake --build $build" >&2; exit 2; }
build=$(cd "$build" && pwd)
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
library=$build/kernels/src/libbkl.so
bench=$build/kernels/bench
deadline=$((SECONDS + 600))
stages=() worst=0

escaped() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/[[:cntrl:]]/ /g' <<<"$1" | head -c 300; }

# stage NAME LIMIT_S COMMAND…   (exit 77 of the command: skipped, its last line is the reason)
stage() {
    local name=$1 limit=$2 left=$((deadline - SECONDS)) began=$SECONDS rc status note=
    shift 2
    (( limit > left )) && limit=$left
    if (( limit < 1 )); then
        rc=124 status=out_of_time note="the ten minutes were over before it began"
        : >"$out/$name.log"
    else
        timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
        rc=$?
        case $rc in
        0) status=passed ;;
        77) status=skipped note=$(tail -n 1 "$out/$name.log") ;;
        124 | 137) status=out_of_time note="stopped after $limit s" ;;
        *) status=failed note=$(tail -n 1 "$out/$name.log") ;;
        esac
    fi
    [[ $status == failed || $status == out_of_time ]] && worst=1
    stages+=("{\"stage\": \"$name\", \"status\": \"$status\", \"exit_code\": $rc, \"seconds\": $((SECONDS - began)), \"note\": \"$(escaped "$note")\"}")
    printf '%-28s %-12s %4d s  %s\n' "$name" "$status" $((SECONDS - began)) "$note"
}

on_sm120() { # the lab's own programs are for sm_120 alone
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader,nounits -i 0 2>/dev/null | head -n 1)
    if [[ -n $capability && $capability != 12.0 ]]; then
        echo "SKIP: the device has compute capability $capability; this program is for 12.0"
        return 77
    fi
    "$@"
}

sanitized() { # PROGRAM: under memcheck, as a whole
    local sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
    [[ -x $sanitizer ]] || { echo "SKIP: compute-sanitizer is not here"; return 77; }
    "$sanitizer" --tool memcheck --error-exitcode 1 --print-limit 50 --check-exit-code yes "$@"
}

train() { # 20 steps on the device, of a tiny model
    local agoge=$build/agoge
    [[ -x $agoge ]] || { echo "SKIP: there is no agoge in $build"; return 77; }
    "$agoge" train --help 2>/dev/null | grep -q -- '--device' || { echo "SKIP: this agoge has no --device"; return 77; }
    [[ -n ${BKL_TRAIN_CONFIG:-} ]] || { echo "SKIP: BKL_TRAIN_CONFIG names no configuration of 20 steps"; return 77; }
    "$agoge" train "$BKL_TRAIN_CONFIG" --device cuda
}

export -f on_sm120 sanitized train
export build BKL_LIBRARY=$library OMP_WAIT_POLICY=passive

nvidia-smi -q >"$out/nvidia-smi.txt" 2>&1 || true
stage device_hello 30 bash -c 'on_sm120 "$@"' _ "$bench/bkl_device_hello"
for check in "$build"/kernels/check/check_bkl_*; do
    [[ -x $check && ! -d $check ]] || continue
    stage "$(basename "$check")" 40 "$check"
done
for name in rmsnorm rope swiglu gemm nf4_gemm lora nf4 adamw; do
    [[ -x $build/kernels/check/check_bkl_$name ]] && stage "memcheck_$name" 40 bash -c 'sanitized "$@"' _ "$build/kernels/check/check_bkl_$name"
done
stage kernel_bench 120 "$bench/bkl_kernel_bench" --library "$library" --out "$out/kernel-bench.json"
stage graph_launch_bench 60 bash -c 'on_sm120 "$@"' _ "$bench/bkl_graph_launch_bench" --out "$out/graph-launch-bench.json"
stage green_ctx_bench 60 bash -c 'on_sm120 "$@"' _ "$bench/bkl_green_ctx_bench" --out "$out/green-ctx-bench.json"
stage train_20_steps 120 bash -c train

{
    printf '{\n  "schema": "bkl.device_check.v1",\n  "commit": "%s",\n  "seconds": %d,\n  "stages": [\n' \
        "$(git -C "$(dirname "$0")" rev-parse HEAD 2>/dev/null || echo unknown)" $((SECONDS - deadline + 600))
    for i in "${!stages[@]}"; do printf '    %s%s\n' "${stages[$i]}" "$( ((i + 1 < ${#stages[@]})) && echo ,)"; done
    printf '  ],\n  "passed": %s\n}\n' "$([[ $worst == 0 ]] && echo true || echo false)"
} >"$out/summary.json"
echo "wrote $out/summary.json"
exit $worst
