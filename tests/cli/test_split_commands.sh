#!/usr/bin/env bash
# freeze-split, consumer-contract, token-statistics, compose-mixture and held-out-eval as a user meets them: exit codes, and what they say to the
# letter. Needs no model; the tokenizer is the one of tests/golden/data.
set -u
agoge=$1 tests=$2
dir=$(mktemp -d) && cd "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
revision=0123456789abcdef0123456789abcdef01234567

# expect CODE FILE COMMAND…: exit code, and standard output as FILE has it ("-": not looked at). Standard error goes to said.
expect() {
    local code=$1 want=$2 got; shift 2
    "$@" >out 2>said; got=$?
    if [[ $got -ne $code ]]; then echo "exit code $got, want $code: $*"; cat said; failed=1; fi
    if [[ $want != - ]] && ! diff "$want" out; then echo "that is not what is printed by: $*"; failed=1; fi
}
says() { grep -qF -- "$1" said || { echo "'$1' is not in:"; cat said; failed=1; }; }

freeze() {
    "$agoge" freeze-split --source "$tests/golden/split/source.jsonl" --source-path data/rows.jsonl --source-repository org/data \
        --source-revision $revision --dataset-version v1 --seed 7 --salt salt-v1 --train-weight 60 --validation-weight 20 --held-out-weight 20 "$@"
}

cat >want <<E2
source  $tests/golden/split/source.jsonl, 60 records, SHA-256 7d0c9db15029d16a839a1ffa78d43b40d520ba00997de68ae6207375235ca0aa
wrote   frozen/splits/train.jsonl, 38 records
wrote   frozen/splits/validation.jsonl, 12 records
wrote   frozen/splits/held_out.jsonl, 10 records
wrote   frozen/split_manifest.json, SHA-256 bdf223ec9c3f756dbf07e5eeeb28de87f901772e241d5022f4bca2ac548af54d
wrote   frozen/split_report.md
E2
expect 0 want freeze --output-dir frozen
expect 1 - freeze --output-dir frozen
says 'frozen exists already; it is not written over'
cat >want <<E2
{"output_dir": "json", "manifest_sha256": "bdf223ec9c3f756dbf07e5eeeb28de87f901772e241d5022f4bca2ac548af54d", "source_sha256": "7d0c9db15029d16a839a1ffa78d43b40d520ba00997de68ae6207375235ca0aa", "records": 60, "train": 38, "validation": 12, "held_out": 10}
E2
expect 0 want freeze --output-dir json --format json
expect 1 - freeze --output-dir x/../y
says "a path may not hold the component '..'"
expect 2 - freeze
says 'agoge freeze-split needs --output-dir'
expect 2 - freeze --output-dir x --seeed 3
says 'seed'
expect 2 - freeze --output-dir x --train-weight 0
[[ ! -e x && ! -e y ]] || { echo 'a refusal left something behind'; failed=1; }

# consumer-contract
printf '{"text":"a"}\n{"messages":[{"role":"user","content":"b"}]}\n' >good.jsonl
printf '{"text":"a","_prometheus":{"event_timestamps":["2030-01-02","2030-01-01"]}}\n' >bad.jsonl
cat >want <<E2
ok      2 rows, 0 errors; $dir/side/good.sidecar.json
failed  1 rows, 1 errors; $dir/side/bad.sidecar.json
E2
CUDA_VISIBLE_DEVICES=-1 expect 1 want "$agoge" consumer-contract --input good.jsonl --input bad.jsonl --out-dir side
says 'not every row keeps the contract; the sidecars in side say which and why'
CUDA_VISIBLE_DEVICES='' expect 0 - "$agoge" consumer-contract --input good.jsonl --out-dir side
CUDA_VISIBLE_DEVICES=0 expect 1 - "$agoge" consumer-contract --input good.jsonl --out-dir side
says 'consumer-contract runs without GPUs; set it to -1'
expect 2 - "$agoge" consumer-contract --out-dir side
mkdir other && cp good.jsonl other
expect 2 - "$agoge" consumer-contract --input good.jsonl --input other/good.jsonl --out-dir side
says 'would write the same sidecar'

# held-out-eval: what is asked must be whole
expect 2 - "$agoge" held-out-eval --split-manifest frozen/split_manifest.json
says 'agoge held-out-eval needs --sft-artifact'
expect 2 - "$agoge" held-out-eval --split-manifest m --sft-artifact a --output-dir o --base-model-id b --base-revision $revision --context-window 64 \
    --truncation-policy left
expect 2 - "$agoge" held-out-eval --split-manifest m --sft-artifact a --output-dir o --base-model-id b --base-revision $revision --context-window 64 \
    --batch 9
expect 1 - "$agoge" smoke-eval --adapter-path nowhere
says 'nowhere does not exist'
expect 1 - "$agoge" run-granite-first-sft --contract nowhere.json
expect 1 - "$agoge" compose-mixture --policy nowhere.json --output-dir x
says 'nowhere.json does not exist'
printf '{"policy":{"seeds":1}}' >policy.json
expect 1 - "$agoge" compose-mixture --policy policy.json --output-dir x
says 'policy.seeds is not known'

(( failed == 0 )) && echo 'all said what they should'
exit $failed
