#!/usr/bin/env bash
# bkl's programs as a user runs them: exit codes, sentences and files, with fakes in place of nvidia-smi, compute-sanitizer and NVML.
set -u
bkl=$(realpath "$(dirname "$1")")/bkl
source_dir=$(realpath "$(dirname "$2")")
nvml=$(realpath "$(dirname "$1")")/tests/libfake_nvml.so
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$source_dir" || exit 1
failed=0

# check NAME EXIT_CODE TEXT COMMAND…: the exit code, and that stdout and stderr together hold TEXT.
check() {
    local name=$1 want=$2 text=$3
    shift 3
    local out rc
    out=$("$@" 2>&1)
    rc=$?
    if [[ $rc != "$want" || $out != *"$text"* ]]; then
        echo "FAILED: $name: exit $rc (expected $want), output: $out"
        failed=1
    fi
}

# ---- checkers on the contract's fixtures ----
check "correlation fixtures join" 0 "joined=2" "$bkl" check-f0-correlation
check "clock scenarios" 0 "6 scenarios ok" "$bkl" check-f0-clock-skew
check "clock scenarios must all be there" 1 "No such file" "$bkl" check-f0-clock-skew --fixtures fixtures/f0-efficiency
check "efficiency formulas" 0 "efficiency formulas ok" "$bkl" check-f0-efficiency
check "capability self-test" 0 "scenarios=7" "$bkl" nvml-capability
check "samples bind" 0 "bound " "$bkl" nvml-capability --bind-samples fixtures/f0-correlation/bkl-gpu-samples.jsonl
check "binding to another snapshot fails" 1 "belongs to the run" "$bkl" nvml-capability \
    --bind-samples fixtures/f0-correlation/bkl-gpu-samples.jsonl --capability fixtures/f0-nvml-capability/full-support.json
sed 's/2026-09-14T18:00:02.250Z/2026-09-14T18:00:09.250Z/' fixtures/f0-correlation/bkl-gpu-samples.jsonl >"$work/late.jsonl"
check "a skew file of other clocks is refused" 1 "disagrees with the clocks" "$bkl" check-f0-correlation --samples "$work/late.jsonl"
printf '%s\n' '{"schema_version":NaN}' >"$work/nan.jsonl"
check "NaN is named with its line" 1 "nan.jsonl:1" "$bkl" check-f0-correlation --markers "$work/nan.jsonl"
printf '\n \n[1]\n' >"$work/list.jsonl"
check "a line that is no object is named" 1 "list.jsonl:3" "$bkl" check-f0-correlation --markers "$work/list.jsonl"
: >"$work/empty.jsonl"
check "an empty file is refused" 1 "no record" "$bkl" check-f0-correlation --markers "$work/empty.jsonl"
check "a wrong option names the nearest" 2 "did you mean '--markers'" "$bkl" check-f0-correlation --marker x
check "a wrong command names the nearest" 2 "did you mean 'sample'" "$bkl" sampel
check "an impossible gap factor is refused" 1 "gap factor" "$bkl" summarize-f0-efficiency --max-gap-factor 0
check "the summary is written" 0 "# GPU efficiency" "$bkl" summarize-f0-efficiency --profile-windows fixtures/f0-efficiency/profile-windows.jsonl \
    --train-fit-ref fixtures/f0-efficiency/train-fit-reference.json --out "$work/deep/summary.json"
cmp -s "$work/deep/summary.json" fixtures/f0-efficiency/minicpm5-summary.json || { echo "FAILED: the summary's bytes differ from the fixture's"; failed=1; }
check "a checked green report needs one argument" 2 "usage" "$bkl" check-green-ctx-report
check "a report that is not there" 1 "absent.json" "$bkl" check-green-ctx-report "$work/absent.json"
check "a clock record is made of a run" 0 "validity=ok" "$bkl" calibrate-f0-clock --markers fixtures/f0-correlation/agoge-markers.jsonl \
    --samples fixtures/f0-correlation/bkl-gpu-samples.jsonl --out "$work/skew.json"
check "and it fits that run" 0 "clock=ok ok" "$bkl" check-f0-correlation --clock-skew "$work/skew.json"

# ---- a machine without NVML, and one with a fake ----
export BKL_NVML_LIBRARY=$work/no-such-library.so
check "no library: a snapshot that says so" 0 "device_status=unsupported" "$bkl" nvml-capability --live --out "$work/none.json"
check "and it is valid" 0 "capability snapshot ok" "$bkl" nvml-capability --fixture "$work/none.json"
check "a required device fails" 1 "a GPU is required" "$bkl" nvml-capability --live --require-device --out "$work/required.json"
[[ ! -e $work/required.json ]] || { echo "FAILED: a failed requirement left a file"; failed=1; }
check "no GPU to sample" 1 "no GPU to sample" "$bkl" sample --agoge-run-id r --out "$work/none.jsonl"
check "no GPU to qualify on" 1 "needs a GPU" "$bkl" qualify --plan "$work/plan.json" --out "$work/q"
export BKL_NVML_LIBRARY=$nvml FAKE_NVML_STATE=$work/state
check "a live card" 0 "name=Fake GPU" "$bkl" nvml-capability --live --require-name "Fake GPU" --require-compute-capability 12.0 --out "$work/live.json"
check "another name is required" 1 "required is 'Other'" "$bkl" nvml-capability --live --require-name Other
grep -q '"value": 6000$' "$work/live.json" || { echo "FAILED: free memory is not floored to MiB"; failed=1; }
echo none >"$work/state"
check "a machine without a card" 0 "device_status=no_device" "$bkl" nvml-capability --live --out "$work/zero.json"
echo ok >"$work/state"
"$bkl" sample --agoge-run-id run-1 --out "$work/samples.jsonl" --capability-out "$work/capability.json" --cadence-ms 20 >"$work/sample.log" 2>&1 &
sampler=$!
sleep 0.4; echo lost >"$work/state"; sleep 0.4; echo denied >"$work/state"; sleep 0.4
kill -TERM $sampler
wait $sampler || { echo "FAILED: the sampler did not end well: $(cat "$work/sample.log")"; failed=1; }
check "samples of a card that was lost and came back bind to their snapshot" 0 "bound " "$bkl" nvml-capability --bind-samples "$work/samples.jsonl" --capability "$work/capability.json"
for status in '"value":123.456,"unit":"W","status":"ok"' device_lost permission_denied '"reasons":["sw_power_cap"]'; do
    grep -qF "$status" "$work/samples.jsonl" || { echo "FAILED: no sample says $status"; failed=1; }
done
echo ok >"$work/state"
check "the sampler ends with its process" 0 "sample(s)" "$bkl" sample --agoge-run-id r --out "$work/gone.jsonl" --pid 999999999

# ---- the headroom waiter ----
mkdir -p "$work/bin"
cat >"$work/bin/nvidia-smi" <<'S'
#!/bin/sh
case $1 in
--query-gpu=memory.free) n=$(cat "$FAKE/n" 2>/dev/null || echo 0); echo $((n + 1)) >"$FAKE/n"; [ "$FAKE_FREE" = fail ] && exit 9
    [ "$n" = 0 ] && echo "$FAKE_FREE" || echo 9000; echo 1 ;;
*) echo "listing $1" ;;
esac
S
chmod +x "$work/bin/nvidia-smi"
export FAKE=$work NVIDIA_SMI=$work/bin/nvidia-smi
wait_for() { rm -f "$work/n"; FAKE_FREE=$free "$bkl" wait-gpu-headroom "$@"; }
free=9000 check "enough is free" 0 "GPU 0 has 9000 MiB free (>= 2048)" wait_for 2048 1 1
free=100 check "a busy card is waited for" 0 "GPU busy (100 MiB free)" wait_for 2048 5 1
free='[N/A]' check "what cannot be read is waited for" 0 "could not parse free MiB" wait_for 2048 5 1
free=fail check "the time is over" 1 "after waiting 1s" wait_for 2048 1 1
free=9000 check "no time, no look" 1 "after waiting 0s" wait_for 2048 0 1
free=9000 check "an interval of 0 is refused" 1 "interval_s must be >= 1, got: 0" wait_for 2048 1 0
free=9000 check "numbers are digits" 1 "need_mib must be a non-negative integer, got: -5" wait_for -5 1 1
free=9000 check "leading zeros are decimal" 0 "(>= 8)" wait_for 08 1 1
NVIDIA_SMI=$work/absent check "without nvidia-smi" 1 "missing required tool: nvidia-smi" "$bkl" wait-gpu-headroom

# ---- compute-sanitizer ----
cat >"$work/bin/compute-sanitizer" <<'S'
#!/bin/sh
[ "$1" = --version ] && { [ "$FAKE_MODE" = silent ] || echo "Compute Sanitizer 2026"; exit 0; }
[ "$1 $3 $4 $5 $6 $7 $8" = "--tool --error-exitcode 1 --print-limit 50 --check-exit-code yes" ] || exit 99
[ "$FAKE_MODE" = padded ] && head -c 400 /dev/zero | tr '\0' x
case $FAKE_MODE in
errors) echo "===== ERROR SUMMARY: 0 errors"; echo "===== ERROR SUMMARY: 1 error"; exit 1 ;;
quiet) exit 0 ;;
exit) echo "===== ERROR SUMMARY: 0 errors"; exit 7 ;;
*) echo "===== ERROR SUMMARY: 0 errors" ;;
esac
S
chmod +x "$work/bin/compute-sanitizer"
for program in bkl_device_hello bkl_graph_launch_bench bkl_green_ctx_bench; do printf '#!/bin/sh\n' >"$work/bin/$program"; chmod +x "$work/bin/$program"; done
export COMPUTE_SANITIZER=$work/bin/compute-sanitizer NVCC=$work/absent
one() { FAKE_MODE=$mode "$bkl" run-compute-sanitizer --out-dir "$work/san" "$@" -- "$work/bin/bkl_device_hello"; }
mode=clean check "a clean job" 0 "1 sanitizer job(s) clean" one
meta=$work/san/memcheck-bkl_device_hello.json
for want in '"error_summary": 0' '"log_truncated": false' '"--error-exitcode"' '"nvcc_version": null' '"driver_version": "listing'; do
    grep -q -- "$want" "$meta" || { echo "FAILED: $meta does not say $want"; failed=1; }
done
mode=errors check "errors fail, the last summary counts" 1 "exit_code=1 error_summary=1" one
mode=quiet check "a log without a summary fails" 1 "missing ERROR SUMMARY" one
mode=exit check "a nonzero exit fails" 1 "exit_code=7 error_summary=0" one
mode=padded check "a long log is cut" 0 "clean" one --max-log-bytes 128
grep -q '"log_truncated": true' "$meta" || { echo "FAILED: the cut log is not marked"; failed=1; }
(( $(stat -c %s "$work/san/memcheck-bkl_device_hello.log") <= 160 )) || { echo "FAILED: the log is longer than its limit"; failed=1; }
mode=silent check "a sanitizer without a version" 1 "says nothing" one
FAKE_MODE=clean check "the suite" 0 "5 sanitizer job(s) clean" "$bkl" run-compute-sanitizer --suite --bin-dir "$work/bin" --out-dir "$work/suite"
[[ $(grep -c '"schema": "bkl.compute_sanitizer.v1"' "$work/suite/summary.json") == 5 ]] || { echo "FAILED: the suite's summary does not hold five runs"; failed=1; }
rm "$work/bin/bkl_green_ctx_bench"
FAKE_MODE=clean check "a program that is missing fails the suite" 1 "the program is not there" "$bkl" run-compute-sanitizer --suite --bin-dir "$work/bin" --out-dir "$work/suite"
check "a suite without a folder" 1 "--bin-dir" "$bkl" run-compute-sanitizer --suite --out-dir "$work/suite"
check "an unknown tool" 2 "memcheck, initcheck" "$bkl" run-compute-sanitizer --tool leakcheck --out-dir "$work/x" -- /bin/true
COMPUTE_SANITIZER=$work/absent check "without compute-sanitizer" 1 "compute-sanitizer not found on PATH" "$bkl" run-compute-sanitizer --out-dir "$work/x" -- /bin/true

# ---- the GPU gate ----
unset GITHUB_EVENT_PATH GITHUB_EVENT_NAME GITHUB_REPOSITORY GITHUB_REF GITHUB_SHA GITHUB_OUTPUT GITHUB_RUN_ID VALIDATION_RESULT
git init -q -b main "$work/repo" && cd "$work/repo" || exit 1
commit() { git add -A && git -c user.name=t -c user.email=t@t commit -qm "$1" && git rev-parse HEAD; }
mkdir -p kernels docs; echo a >kernels/a.cu; echo a >docs/a.md; first=$(commit first)
echo b >docs/a.md; words=$(commit words)
git mv kernels/a.cu kernels/a.md; moved=$(commit moved)
zero=0000000000000000000000000000000000000000
push() { printf '{"repository":{"full_name":"o/n"},"before":"%s","after":"%s","ref":"%s"}' "$1" "$2" "${3:-refs/heads/main}" >"$work/event.json"; }
pull() { printf '{"repository":{"full_name":"o/n"},"pull_request":{"base":{"sha":"%s"},"head":{"sha":"%s","repo":{"full_name":"%s"}}}}' "$1" "$2" "$3" >"$work/event.json"; }
gate() { "$bkl" gpu-ci-gate detect --event "$work/event.json" --event-name "$1" --repository o/n "${@:2}"; }
push "$first" "$words"; check "words need no GPU" 0 "required=false trusted=true deleted=false" gate push
push "$words" "$moved"; check "a renamed kernel does" 0 "required=true" gate push
push "$zero" "$words"; check "a new branch does" 0 "required=true" gate push
push "$first" "$zero"; check "a deleted branch needs nothing" 0 "required=false trusted=true deleted=true" gate push
push "$first" "$words" refs/heads/other; check "another branch does" 0 "required=true" gate push
pull "$first" "$words" o/n; check "a pull request of words" 0 "required=false trusted=true" gate pull_request --output "$work/github-output"
[[ $(cat "$work/github-output") == $'required=false\ntrusted=true\ndeleted=false' ]] || { echo "FAILED: the workflow's output file"; failed=1; }
pull "$first" "$moved" x/n; check "a fork is not trusted" 0 "required=true trusted=false" gate pull_request_target
printf '{"repository":{"full_name":"o/n"}}' >"$work/event.json"
check "a manual run does" 0 "required=true" gate workflow_dispatch --sha "$first"
check "an event of no kind" 1 "not known" gate schedule
push "$first" HEAD; check "a commit is an id" 1 "no commit id" gate push
check "another repository" 1 "expected 'o/m'" "$bkl" gpu-ci-gate detect --event "$work/event.json" --event-name push --repository o/m
check "neither detect nor verify" 1 "GPU validation failed" "$bkl" gpu-ci-gate maybe
push "$first" "$words"
publish() { "$bkl" publish-gpu-validation --event "$work/event.json" --event-name push --repository o/n --run-id 77 "$@"; }
check "what would be published" 0 '"conclusion": "success"' publish --dry-run --result success
check "any other result is a failure" 0 '"conclusion": "failure"' publish --dry-run --result skipped
check "with the commit" 0 "\"head_sha\": \"$words\"" publish --dry-run
check "a run id is a number" 1 "no decimal number" publish --dry-run --run-id x
check "one of two" 1 "either --dry-run or --publish" publish
GITHUB_TOKEN='' check "publishing needs a token" 1 "GITHUB_TOKEN" publish --publish

(( failed == 0 )) && echo "bkl: all cases passed"
exit $failed
