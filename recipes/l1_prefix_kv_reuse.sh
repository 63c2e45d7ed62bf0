#!/usr/bin/env bash
# Does an engine reuse the key/value cache of a shared prefix? Two layouts of one prompt, the stable text first or the varying task first, on
# any server of the OpenAI protocol (`agoge serve`, vLLM, Ollama's /v1). See l1-prefix-kv-reuse.md. Writes one JSON line a cell and fails unless
# every run is at least 10 % faster to its first token with the stable text first.
set -euo pipefail
fail() { echo "l1_prefix_kv_reuse: $*" >&2; exit 1; }

base_url=${BKL_BASE_URL:-http://127.0.0.1:8000}
prefix_lines=${BKL_PREFIX_LINES:-96} runs=${BKL_RUNS:-3} context=${BKL_NUM_CTX:-8192} expected=${BKL_EXPECTED_PROMPT_TOKENS:-0}
connect_s=${BKL_CONNECT_TIMEOUT:-5} request_s=${BKL_REQUEST_TIMEOUT:-120} min_free=${BKL_MIN_FREE_MIB:-0}
result_name=${BKL_RESULT_NAME:-prefix-kv-reuse.jsonl} results=${BKL_RESULTS:-results}

for tool in curl jq flock sha256sum awk ln; do command -v "$tool" >/dev/null || fail "missing required tool: $tool"; done
for name in prefix_lines runs context expected connect_s request_s min_free; do
    [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || fail "$name must be a decimal number without a leading zero, got: ${!name}"
done
(( runs >= 3 )) || fail "BKL_RUNS must be at least 3, got: $runs"
(( prefix_lines >= 1 )) || fail "BKL_PREFIX_LINES must be at least 1"
[[ $base_url =~ ^http://127\.0\.0\.1(:[0-9]+)?$ ]] || fail "BKL_BASE_URL must be http://127.0.0.1[:port], got: $base_url"
[[ $result_name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*\.jsonl$ ]] || fail "BKL_RESULT_NAME must be a plain name that ends in .jsonl, got: $result_name"
mkdir -p "$results"
[[ ! -e $results/$result_name ]] || fail "$results/$result_name exists; results are never overwritten"
exec 9>"${TMPDIR:-/tmp}/bkl-prefix-$(sha256sum <<<"$base_url" | cut -c1-16).lock"
flock -n 9 || fail "another measurement of $base_url is going on"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

models=$(curl -fsS --connect-timeout "$connect_s" --max-time "$request_s" "$base_url/v1/models") || fail "$base_url does not answer; start the server first"
model=${BKL_MODEL:-$(jq -r '.data[0].id // empty' <<<"$models")}
jq -e --arg m "$model" 'any(.data[]; .id == $m)' >/dev/null <<<"$models" || fail "the server does not have the model '$model'"

# Free memory of GPU 0; "null" on a machine without one. A floor that is asked for must be met.
free_mib() {
    local mib=null
    if command -v nvidia-smi >/dev/null; then mib=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -1); fi
    [[ $min_free == 0 || ( $mib != null && $mib -ge $min_free ) ]] || fail "GPU 0 has ${mib} MiB free, $min_free are asked for"
    echo "$mib"
}

# prompt LAYOUT RUN TASK: the stable text is new in every run and layout, so that the first request finds an empty cache.
prompt() {
    local stable i
    stable="Run $2 of layout $1."$'\n'
    for (( i = 1; i <= prefix_lines; i++ )); do stable+="Rule $i: keep the log of lamp $i, its oil and its hours."$'\n'; done
    if [[ $1 == prefix_first ]]; then printf '%s%s' "$stable" "$3"; else printf '%s%s' "$3" "$stable"; fi
}
tasks=("Task one: tell the state of lamp seven now."$'\n' "Task two: tell the state of lamp nine now."$'\n')

# request FILE: asks for one token; writes "ttft_ms total_ms prompt_tokens cached_tokens" to stdout.
request() {
    local times
    jq -Rs --arg model "$model" '{model: $model, prompt: ., max_tokens: 1, temperature: 0, seed: 8, stream: true, stream_options: {include_usage: true}}' "$1" >"$work/body"
    times=$(curl -fsS -N --connect-timeout "$connect_s" --max-time "$request_s" -H 'Content-Type: application/json' --data-binary @"$work/body" \
        -o "$work/answer" -w '%{time_starttransfer} %{time_total}' "$base_url/v1/completions") || fail "a request failed"
    grep '^data: {' "$work/answer" | sed 's/^data: //' >"$work/chunks"
    jq -es 'any(.[]; (.choices[0].text // "") != "")' "$work/chunks" >/dev/null || fail "an answer had no text"
    jq -rs --arg t "$times" '(map(select(.usage)) | last.usage) as $u | if $u.completion_tokens != 1 then error("the answer is not one token") else . end |
        ($t | split(" ") | map(tonumber * 1000)) as $ms | "\($ms[0]) \($ms[1]) \($u.prompt_tokens) \($u.prompt_tokens_details.cached_tokens // 0)"' "$work/chunks"
}

cell() { # cell LAYOUT RUN: one line of the result
    local prime measured before after
    prompt "$1" "$2" "${tasks[0]}" >"$work/prime"
    prompt "$1" "$2" "${tasks[1]}" >"$work/measure"
    prime=$(request "$work/prime")
    before=$(free_mib)
    measured=$(request "$work/measure")
    after=$(free_mib)
    read -r prime_ttft _ _ _ <<<"$prime"
    read -r ttft total tokens cached <<<"$measured"
    (( expected == 0 || tokens == expected )) || fail "the prompt has $tokens tokens, expected $expected"
    (( tokens + 1 <= context )) || fail "the prompt has $tokens tokens and does not fit a context of $context"
    jq -cn --arg ts "$(date -u +%Y-%m-%dT%H:%M:%SZ)" --arg model "$model" --arg url "$base_url" --arg cell "$1" --argjson run "$2" --argjson tokens "$tokens" \
        --argjson cached "$cached" --argjson ttft "$ttft" --argjson total "$total" --argjson prime "$prime_ttft" --argjson before "$before" --argjson after "$after" \
        --arg pair "$(cat "$work/prime" "$work/measure" | sha256sum | cut -c1-64)" --argjson lines "$prefix_lines" --argjson ctx "$context" \
        '{schema_version: 1, timestamp: $ts, engine: {name: "openai-protocol", version: null, endpoint: $url}, model: $model, prompt_pair_sha256: $pair,
          options: {num_ctx: $ctx, num_predict: 1, temperature: 0, seed: 8, prefix_lines: $lines}, run: $run, cell: $cell, ttft_method: "first response byte",
          prompt_eval_count: $tokens, cached_prompt_tokens: $cached, eval_count: 1, one_token_total_ms: $total, prime_ttft_ms: $prime, resume_ttft_ms: $ttft,
          vram_free_mib_before_resume: $before, vram_free_mib: $after}' >>"$work/result"
}

free_mib >/dev/null
for layout in prefix_first varying_first; do cell "$layout" 0; done # warm, not recorded
: >"$work/result"
for (( run = 1; run <= runs; run++ )); do
    if (( run % 2 )); then cell prefix_first $run; cell varying_first $run; else cell varying_first $run; cell prefix_first $run; fi
done
ln "$work/result" "$results/$result_name" 2>/dev/null || { [[ ! -e $results/$result_name ]] && cp -n "$work/result" "$results/$result_name"; }
jq -s '
    def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
    (group_by(.run) | map({p: (map(select(.cell == "prefix_first"))[0]), v: (map(select(.cell == "varying_first"))[0])})) as $runs |
    ($runs | all(.p.prompt_eval_count == .v.prompt_eval_count and .p.resume_ttft_ms <= 0.9 * .v.resume_ttft_ms)) as $pass |
    ($runs | map(.p.resume_ttft_ms) | median) as $p | ($runs | map(.v.resume_ttft_ms) | median) as $v |
    {decision_gate: (if $pass then "pass" else "no-go" end), runs: ($runs | length), prompt_tokens: $runs[0].p.prompt_eval_count,
     prefix_first_ttft_ms: $p, varying_first_ttft_ms: $v, reduction_percent: (100 * ($v - $p) / $v), speed_up: ($v / $p),
     cached_prompt_tokens: ($runs | map(.p.cached_prompt_tokens) | median), cold_ttft_ms: (map(.prime_ttft_ms) | median)}' "$work/result" | tee "$work/summary"
[[ $(jq -r .decision_gate "$work/summary") == pass ]]
