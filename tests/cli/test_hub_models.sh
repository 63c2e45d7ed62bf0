#!/usr/bin/env bash
# A hub id where a model is taken: found in the cache that huggingface_hub would have made, offline; and what is said where it is not.
# usage: test_hub_models.sh AGOGE TESTS_DIR
set -u
agoge=$1 tests=$2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
bad=0
# expect EXIT PART COMMAND…: exit code, and a part of what it says on either stream
expect() {
    local want=$1 part=$2; shift 2
    local said code
    said=$("$@" 2>&1); code=$?
    if [[ $code != "$want" || $said != *"$part"* ]]; then
        echo "FAIL: ${*:2}: exit $code, expected $want with '$part'; it said: $said"; bad=1
    fi
}
unset HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HF_TOKEN_PATH HF_ENDPOINT TRANSFORMERS_OFFLINE
export HF_HUB_OFFLINE=1 HOME=$work/home
commit=0123456789abcdef0123456789abcdef01234567
"$(dirname "$agoge")/tests/make_tiny_folder" "$work/made" >/dev/null || { echo "FAIL: no tiny folder"; exit 1; }

# The layout of huggingface_hub: blobs by name, relative links, the ref.
make_cache() {
    local repo=$1/models--tiny--model file
    mkdir -p "$repo/blobs" "$repo/snapshots/$commit" "$repo/refs"
    for file in "$work"/made/model/*; do
        local name; name=$(sha256sum "$file" | cut -c1-64)
        cp "$file" "$repo/blobs/$name"
        ln -s "../../blobs/$name" "$repo/snapshots/$commit/$(basename "$file")"
    done
    printf %s "$commit" >"$repo/refs/main"
}
make_cache "$work/cache"
echo '[3,1,4,1,5]' >ids.jsonl

expect 1 'is not in the cache' "$agoge" score --model tiny/model --ids-file ids.jsonl
expect 1 "$work/home/.cache/huggingface/hub" "$agoge" score --model tiny/model --ids-file ids.jsonl
export HF_HUB_CACHE=$work/cache
expect 0 '"logprobs"' "$agoge" score --model tiny/model --ids-file ids.jsonl --format json
expect 0 '"logprobs"' "$agoge" score --model tiny/model --revision $commit --ids-file ids.jsonl --format json
expect 1 'tiny/model@v2 is not in the cache' "$agoge" score --model tiny/model --revision v2 --ids-file ids.jsonl
HF_HUB_CACHE='' HF_HOME=$work expect 1 "$work/hub" "$agoge" score --model tiny/model --ids-file ids.jsonl
expect 0 '"model_id": "tiny/model"' "$agoge" model-metadata --model-id tiny/model
expect 0 'tiny/model' "$agoge" inspect-lora-targets --model-id tiny/model
expect 0 '"base_model": "tiny/model"' "$agoge" export-gguf --model tiny/model --type f32 --out tiny.gguf --format json
grep -q 'general.name.*model' -a tiny.gguf || { echo "FAIL: general.name is not the repository's name"; bad=1; }
echo '{"text": "a b c d e f g"}' >rows.jsonl
printf 'model_id: tiny/model\nrevision: %s\ndataset_path: rows.jsonl\nrun_name: t\nlora_r: 4\n' $commit >hub.yaml
expect 0 '"fits": true' "$agoge" plan --config hub.yaml --format json
expect 0 '"steps"' "$agoge" train-qlora --config hub.yaml --set max_steps=1 --format json
grep -q '"base_model_name_or_path": "tiny/model"' adapters/t/adapter_config.json || { echo "FAIL: the adapter does not name its base by its id"; bad=1; }
expect 0 '"logprobs"' "$agoge" score --model tiny/model --adapter adapters/t --ids-file ids.jsonl --format json
expect 0 '"base_model": "tiny/model"' "$agoge" export-gguf --run-dir adapters/t --type f32 --out merged.gguf --format json
expect 0 "\"revision\": \"$commit\"" "$agoge" pull tiny/model --format json
expect 0 '"files": 1,' "$agoge" pull tiny/model --include config.json --format json
expect 2 'is no name of a repository' "$agoge" pull model
expect 2 'needs ORG/NAME' "$agoge" pull
expect 1 'nowhere/at/all: there is no such folder' "$agoge" score --model nowhere/at/all --ids-file ids.jsonl
HF_HUB_OFFLINE=no HF_ENDPOINT=ftp://x expect 1 'must begin with https://' "$agoge" pull tiny/model

# A link that leads out of the cache is not followed.
ln -sf /etc/passwd "cache/models--tiny--model/snapshots/$commit/config.json"
expect 1 'leads out of the cache' "$agoge" score --model tiny/model --ids-file ids.jsonl
exit $bad
