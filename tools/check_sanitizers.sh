#!/usr/bin/env bash
# Builds and runs the tests and the program under AddressSanitizer with UBSan, under valgrind, and under ThreadSanitizer. One line for each
# pass; what a pass said is kept in build/sanitizers/. docs/sanitizers.md tells what they cover.
# usage: tools/check_sanitizers.sh [asan] [valgrind] [tsan]     (all three without words)
# JOBS: compilations at a time (default: the cores); LIMIT: seconds a test may take (default 900).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
jobs=${JOBS:-$(nproc)} limit=${LIMIT:-900} logs=$PWD/build/sanitizers bad=0
export OMP_WAIT_POLICY=passive
mkdir -p "$logs"

# summary PASS WHAT N_OF N_BAD
summary() {
    if (( $4 == 0 && $3 > 0 )); then
        echo "$1: clean, $3 $2"
    else
        echo "$1: $4 of $3 $2 failed; see $logs/$1.log"; bad=1
    fi
}

# need PASS PROGRAM…: says what is missing
need() {
    local pass=$1 program
    for program in "${@:2}"; do
        command -v "$program" >/dev/null || { echo "$pass: not run, $program is not installed"; bad=1; return 1; }
    done
}

# tests PASS REGEX: runs the tests of the preset PASS
tests() {
    ctest --test-dir "build/$1" --timeout "$limit" --output-on-failure --no-tests=error -R "$2" >>"$logs/$1.log" 2>&1
    local n_bad of
    read -r n_bad of < <(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+)$/\1 \2/p' "$logs/$1.log" | tail -1)
    summary "$1" "tests" "${of:-0}" "${n_bad:-1}"
}

asan() {
    need asan gcc cmake || return
    cmake --preset asan >"$logs/asan.log" 2>&1 && cmake --build build/asan -j "$jobs" >>"$logs/asan.log" 2>&1 ||
        { echo "asan: the build failed; see $logs/asan.log"; bad=1; return; }
    tests asan .
}

# probe NAME CODE BODY: a loop of two threads with BODY in it must end with the exit code CODE under ThreadSanitizer.
probe() {
    printf 'int main(void) { int sum = 0;\n#pragma omp parallel num_threads(2)\n{ %s }\nreturn sum < 0; }\n' "$3" >"$logs/probe.c"
    clang -g -fopenmp -fsanitize=thread "$logs/probe.c" -o "$logs/probe" >>"$logs/tsan.log" 2>&1 || return
    "$logs/probe" >>"$logs/tsan.log" 2>&1
    (( $? == $2 )) || { echo "ThreadSanitizer's probe '$1' did not end with $2" >>"$logs/tsan.log"; return 1; }
}

# Before a clean pass is believed: a race is found, and OpenMP's archer is at work, without which every barrier looks like a race.
tsan() {
    need tsan clang cmake || return
    export TSAN_OPTIONS=ignore_noninstrumented_modules=1
    : >"$logs/tsan.log"
    probe race 66 'for (int i = 0; i < 1000; i++) sum += i;' &&
        probe barrier 0 '
#pragma omp single
sum = 1;
#pragma omp critical
sum++;' ||
        { echo "tsan: not run, ThreadSanitizer with OpenMP's archer does not work here (clang, libomp-dev); see $logs/tsan.log"; bad=1; return; }
    cmake --preset tsan >>"$logs/tsan.log" 2>&1 &&
        cmake --build build/tsan -j "$jobs" --target check_linear check_lora check_attention test_decoder test_examples test_batcher test_api_server >>"$logs/tsan.log" 2>&1 ||
        { echo "tsan: the build failed (it needs clang and libomp-dev); see $logs/tsan.log"; bad=1; return; }
    tests tsan '^(ops/check_(linear|lora|attention)|model/test_decoder|unit/test_examples|serve/test_(batcher|api_server))$'
}

valgrind_pass() {
    need valgrind valgrind cmake || return
    local tool=(timeout "$limit" valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite)
    local units=(test_json test_gguf test_train_config test_torch_archive) n=0 n_bad=0 unit
    cmake --preset release >"$logs/valgrind.log" 2>&1 &&
        cmake --build build/release -j "$jobs" --target agoge make_tiny_folder "${units[@]}" >>"$logs/valgrind.log" 2>&1 ||
        { echo "valgrind: the build failed; see $logs/valgrind.log"; bad=1; return; }
    local agoge=$PWD/build/release/agoge programs=$PWD/build/release/tests
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
    "$programs/make_tiny_folder" "$work" >>"$logs/valgrind.log" 2>&1
    cat >"$work/tiny.yaml" <<'YAML'
model_id: model
dataset_path: rows.jsonl
output_dir: out
logging_dir: log
run_name: tiny
max_seq_length: 64
lora_r: 4
lora_dropout: 0.1
gradient_accumulation_steps: 2
max_steps: 3
save_steps: 2
YAML
    echo '[3, 1, 4, 1, 5]' >"$work/ids.jsonl"
    look() {
        n=$((n + 1))
        echo "== $*" >>"$logs/valgrind.log"
        (cd "$work" && "${tool[@]}" "$@") >>"$logs/valgrind.log" 2>&1 && return
        echo "== exit code $? of $*" >>"$logs/valgrind.log"; n_bad=$((n_bad + 1))
    }
    # valgrind knows no AVX-512 and hides it from the program; --cpu says the same in so many words.
    local compute=(--cpu avx2 --threads 2)
    look "$agoge" train-qlora --config tiny.yaml "${compute[@]}"
    look "$agoge" generate --model model --adapter out/tiny --prompt 'the light ' --max-new-tokens 6 --temperature 0.8 --top-k 20 "${compute[@]}"
    look "$agoge" score --model model --ids-file ids.jsonl "${compute[@]}"
    look "$agoge" score --model model --load-in-4bit --ids-file ids.jsonl "${compute[@]}"
    look "$agoge" tokenize --model model --text 'a ship of salt'
    for unit in "${units[@]}"; do look "$programs/$unit"; done
    summary valgrind "commands and tests" "$n" "$n_bad"
}

(( $# )) || set -- asan valgrind tsan
for pass in "$@"; do
    case $pass in
    asan | tsan) $pass ;;
    valgrind) valgrind_pass ;;
    *) echo "no such pass: $pass; there are asan, valgrind and tsan" >&2; exit 2 ;;
    esac
done
exit $bad
