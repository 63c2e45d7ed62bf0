#!/usr/bin/env bash
# test_programs.sh BENCH_FOLDER EMULATOR TOOLS: the lab's programs where there is no GPU: usage, refusals, predictions, and the benchmark under the
# emulator; device_check.sh goes on after failures and says what happened.
set -uo pipefail
bench=$1 emulator=$2 tools=$3
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
bad=0
expect() { # WHAT RC STDERR_PART COMMAND…
    local what=$1 rc=$2 part=$3 got
    shift 3
    "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    if [[ $got != "$rc" ]] || { [[ -n $part ]] && ! grep -q -- "$part" "$scratch/err"; }; then echo "$what: exit $got (want $rc), stderr: $(head -c 300 "$scratch/err")"; bad=1; fi
}
json() { if ! python3 -c 'import json,sys; json.load(open(sys.argv[1]))' "$1" 2>/dev/null && command -v python3 >/dev/null; then echo "$2: no JSON: $(head -c 200 "$1")"; bad=1; fi; }

expect "an unknown option of the benchmark" 2 usage "$bench/bkl_kernel_bench" --what 1
expect "an unknown model" 2 usage "$bench/bkl_kernel_bench" --model gpt2 --predict
expect "one peak without the other" 2 usage "$bench/bkl_kernel_bench" --tflops 1 --predict
expect "a library that is not there" 1 "cannot open" "$bench/bkl_kernel_bench" --library "$scratch/none.so"
expect "a prediction" 0 "" "$bench/bkl_kernel_bench" --predict
json "$scratch/out" "a prediction"
grep -q '"kind": "predicted"' "$scratch/out" || { echo "a prediction is not called one"; bad=1; }
expect "the benchmark under the emulator" 0 "" "$bench/bkl_kernel_bench" --library "$emulator" --tokens 8 --repeats 1 --filter rope --out "$scratch/bench.json"
json "$scratch/bench.json" "the benchmark under the emulator"
grep -q '"kind": "emulated"' "$scratch/bench.json" || { echo "times of the emulator are not called emulated"; bad=1; }

if [[ -x $bench/bkl_device_hello ]]; then
    for program in bkl_graph_launch_bench bkl_green_ctx_bench; do
        expect "$program with an unknown option" 2 usage "$bench/$program" --fast
        expect "$program with --out alone" 2 usage "$bench/$program" --out
    done
    if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
        expect "hello without a device" 1 "cudaGetDeviceCount failed" "$bench/bkl_device_hello"
        expect "the graph benchmark without a device" 1 "cudaGetDeviceProperties" "$bench/bkl_graph_launch_bench" --smoke --out "$scratch/graph.json"
        expect "the green benchmark without a device" 1 "bkl green_ctx_bench failed" "$bench/bkl_green_ctx_bench" --smoke --out "$scratch/green.json"
        [[ ! -e $scratch/graph.json && ! -e $scratch/green.json ]] || { echo "a report was written without a device"; bad=1; }
        grep -q ' ok$' "$scratch/out" && { echo "a sentinel without a device"; bad=1; }
    fi
fi

mkdir -p "$scratch/build/kernels/check" "$scratch/build/kernels/bench"
for name in good bad skipped; do
    printf '#!/bin/sh\n%s\n' "$([[ $name == good ]] && echo 'exit 0' || { [[ $name == bad ]] && echo 'echo it broke; exit 3' || echo 'echo SKIP: no reason; exit 77'; })" >"$scratch/build/kernels/check/check_bkl_$name"
    chmod +x "$scratch/build/kernels/check/check_bkl_$name"
done
expect "the device check with a stage that fails" 1 "" bash "$tools/device_check.sh" "$scratch/build" "$scratch/results"
json "$scratch/results/summary.json" "the device check's summary"
for want in '"check_bkl_bad", "status": "failed", "exit_code": 3' '"check_bkl_good", "status": "passed"' '"check_bkl_skipped", "status": "skipped"' '"train_20_steps", "status": "skipped"' '"passed": false'; do
    grep -q -- "$want" "$scratch/results/summary.json" || { echo "the device check's summary lacks: $want"; bad=1; }
done
expect "the device check without a build" 2 "no such build folder" bash "$tools/device_check.sh" "$scratch/nowhere"
exit $bad
