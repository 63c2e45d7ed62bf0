#!/usr/bin/env bash
# export-gguf, export-final-model and merge-adapter: exit codes, sentences, and that nothing half-done is left.
# usage: test_export_commands.sh AGOGE TESTS_DIR
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
tiny=$tests/golden/gguf/tiny.f32.gguf adapter=$tests/golden/adapter/all7

expect 0 '"type": "q8_0"' "$agoge" export-gguf --model "$tiny" --type q8_0 --out made/q8.gguf --format json
echo '[3,1,4,1,5]' >ids.jsonl
expect 0 '"logprobs"' "$agoge" score --model made/q8.gguf --ids-file ids.jsonl --format json
for type in q4_0 q4_k_m q5_k_m q6_k; do
    expect 0 "\"type\": \"$type\"" "$agoge" quantize --model "$tiny" --type $type --out made/$type.gguf --threads 1 --format json
    expect 0 '"logprobs"' "$agoge" score --model made/$type.gguf --ids-file ids.jsonl --format json
    expect 0 '' "$agoge" export-gguf --model "$tiny" --type $type --out made/again.gguf --threads 3
    cmp made/$type.gguf made/again.gguf || { echo "FAIL: $type depends on the number of threads"; bad=1; }
done
expect 0 'is quantized already' "$agoge" quantize --model made/q8.gguf --out made/q4.gguf
expect 2 'agoge quantize needs --model' "$agoge" quantize --out x.gguf
expect 2 'f32, f16, bf16, q8_0' "$agoge" export-gguf --model "$tiny" --type q4_k --out x.gguf
expect 2 'needs --run-dir, --adapter or --model' "$agoge" export-gguf --out x.gguf
expect 1 'this base model needs' "$agoge" export-gguf --model "$tiny" --adapter "$adapter" --out x.gguf
expect 2 'needs an adapter' "$agoge" export-gguf --lora-only --model "$tiny" --out x.gguf
expect 1 'there is no such folder or file' "$agoge" export-gguf --model nowhere/at/all --out x.gguf
expect 2 'needs --run-dir or --adapter-path' "$agoge" export-final-model --out-dir out
expect 1 'carries no producer_provenance' "$agoge" export-final-model --adapter-path "$adapter" --base-model "$tiny" --out-dir out
expect 2 'always written as safetensors' "$agoge" export-final-model --no-save-safetensors --adapter-path "$adapter" --out-dir out
expect 1 'no code of a model is ever run' "$agoge" merge-adapter --trust-remote-code --base-model "$tiny" --adapter-path "$adapter" --out-dir out
expect 2 'is no adapter' "$agoge" merge-adapter --base-model "$tiny" --adapter-path "$tests/golden/gguf/tiny" --out-dir out
mkdir empty-run taken && touch taken/file
expect 1 'neither an adapter nor a whole checkpoint' "$agoge" export-final-model --run-dir empty-run --out-dir out
expect 1 'carries no producer_provenance' "$agoge" merge-adapter --base-model "$tiny" --adapter-path "$adapter" --out-dir out
expect 1 'taken is there already' "$agoge" merge-adapter --allow-unsealed --base-model "$tiny" --adapter-path "$adapter" --out-dir taken
cp -r "$adapter" pickled && touch pickled/adapter_model.bin
expect 1 'which can hold code' "$agoge" merge-adapter --base-model "$tiny" --adapter-path pickled --out-dir out

mkdir hidden && cp "$adapter"/adapter_* hidden/ && mkdir hidden/old && touch hidden/old/pytorch_model.bin
expect 1 'old/pytorch_model.bin could hold code' "$agoge" export-final-model --run-dir hidden --out-dir out

left=$(find . -name '*staging*' -o -name '*.tmp-*' -o -name x.gguf -o -path ./out)
[[ -z $left ]] || { echo "FAIL: left behind: $left"; bad=1; }
exit $bad
