#!/usr/bin/env bash
# Kills training runs and cleanups at random points and looks at what is left.
#   tools/kill_runs.sh AGOGE MAKE_TINY_FOLDER [KILLS]          the second is build/release/tests/make_tiny_folder
# Training saves a checkpoint every step; each third turn a sealed copy of the finished run is cleaned instead. After every kill: each checkpoint that
# is valid by name and files must be ready to resume, the adapter must be there, the index must be old or new and whole; in the end an
# uninterrupted run and the often killed one must have the same adapter, and a last cleanup must end what killed ones began.
set -u
agoge=$(realpath "$1") maker=$(realpath "$2") kills=${3:-100}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
"$maker" . >/dev/null || { echo "no tiny model"; exit 1; }
config() {
    printf 'model_id: %s/model\ndataset_path: rows.jsonl\noutput_dir: out\nlogging_dir: log-%s\nrun_name: %s\nmax_seq_length: 64\nlora_r: 4\nlearning_rate: 0.01\n' "$work" "$1" "$1"
    printf 'gradient_accumulation_steps: 1\nsave_steps: 1\nsave_total_limit: 3\nnum_train_epochs: 6\nresume_from_latest_checkpoint: true\n'
}
config unhurt >unhurt.yaml; config hurt >hurt.yaml
"$agoge" train-qlora --config unhurt.yaml >/dev/null 2>&1 || { echo "the uninterrupted run failed"; exit 1; }
bad=0 killed=0 trained=0 cleaned=0
fault() { echo "FAULT after $killed kills: $*"; bad=$((bad + 1)); }
ready() { # RUN: every valid checkpoint, looked at as the newest of a run of its own
    local c lone
    for c in "$1"/checkpoint-*; do
        [[ -f $c/trainer_state.json && -f $c/adapter_config.json && -f $c/adapter_model.safetensors ]] || continue
        lone=$(mktemp -d); ln -s "$(realpath "$c")" "$lone/$(basename "$c")"
        "$agoge" run-status "$lone" 2>&1 | grep -A1 '"resume"' | grep -q '"ready": true' || fault "$c is valid, but not ready to resume"
        rm -rf "$lone"
    done
}
turn=0
while (( killed < kills && turn < 4 * kills )); do
    turn=$((turn + 1))
    if (( turn % 3 )); then
        "$agoge" train-qlora --config hurt.yaml >/dev/null 2>said & victim=$!
        trained=$((trained + 1)) run=out/hurt
    else
        rm -rf out/copy; cp -r out/unhurt out/copy
        "$agoge" cleanup-run out/copy --keep-latest 1 --format json >/dev/null 2>said & victim=$!
        cleaned=$((cleaned + 1)) run=out/copy
    fi
    if (( turn % 3 )); then sleep "0.$(printf %03d $((RANDOM % 250 + 20)))"; else sleep "0.$(printf %04d $((RANDOM % 250)))"; fi
    kill -9 $victim 2>/dev/null
    wait $victim 2>/dev/null; code=$?
    (( code == 137 )) && killed=$((killed + 1))
    if (( code != 137 && code != 0 )); then fault "exit code $code: $(tail -1 said)"; fi
    ready "$run"
    if [[ $run == out/copy ]]; then
        [[ -s out/copy/adapter_model.safetensors ]] || fault "the adapter is gone"
        python3 -c 'import json,sys; json.load(open(sys.argv[1]))' out/copy/artifact_index.json || fault "the index is half"
        "$agoge" cleanup-run out/copy --keep-latest 1 --format json >/dev/null 2>said || fault "the next cleanup failed: $(tail -1 said)"
        python3 - <<'PY' || fault "the index does not list what is there"
import json, os
listed = {a["file"]: a["size_bytes"] for a in json.load(open("out/copy/artifact_index.json"))["artifacts"]}
there = {os.path.relpath(os.path.join(d, f), "out/copy"): os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk("out/copy") for f in names}
there.pop("artifact_index.json")
raise SystemExit(listed != there)
PY
    fi
done
"$agoge" train-qlora --config hurt.yaml >/dev/null 2>said || fault "the last resume failed: $(tail -1 said)"
cmp -s out/unhurt/adapter_model.safetensors out/hurt/adapter_model.safetensors || fault "the adapters differ"
echo "$killed kills ($trained runs, $cleaned cleanups): $bad faults; $(ls out/hurt/.agoge-quarantine 2>/dev/null | wc -l) entries in the quarantine"
exit $(( bad > 0 ))
