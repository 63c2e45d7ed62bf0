#!/usr/bin/env python3
"""Two small reproducibility bundles, made with Python's json and hashlib and the openssl program alone, for tests/unit/test_bundle.c.

usage: seal_bundles.py OUT        (OUT is tests/golden/seal)

    OUT/adapter/   a bundle whose evaluation is of an adapter
    OUT/merged/    one whose evaluation is of a merged model in two shards
    OUT/adapter.sig, key.pem, key.pub.pem, other.pub.pem   openssl's signature over adapter's inventory, and keys
"""
import hashlib, json, shutil, subprocess, sys
from pathlib import Path

out = Path(sys.argv[1])
MODEL, REVISION = "openbmb/MiniCPM5-1B-Base", "0123456789abcdef0123456789abcdef01234567"


def canonical(value): return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
def sha(data): return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def make_split(root):
    rows, splits, line = {"train": 4, "validation": 2, "held_out": 3}, {}, 0
    for name, count in rows.items():
        members, text = [], ""
        for i in range(count):
            line += 1
            row = {"canonical_id": f"{name}-{i}", "lineage_id": f"{name}-line-{i}", "text": f"Zeile {line}: ä → {name}"}
            raw = json.dumps(row, ensure_ascii=False)
            text += canonical(row) + "\n"
            members.append({"canonical_id": row["canonical_id"], "lineage_id": row["lineage_id"], "group_id": None if i else f"{name}-group",
                            "source_coordinate": f"data/rows.jsonl:{line}", "content_sha256": sha(canonical({"text": row["text"]})),
                            "raw_line_sha256": sha(raw), "materialized_line_sha256": sha(canonical(row))})
        put(root / f"splits/{name}.jsonl", text)
        splits[name] = {"path": f"splits/{name}.jsonl", "sha256": sha(text), "record_count": count, "members": members}
    manifest = {
        "schema_version": "agoge.split-manifest.v1",
        "source": {"repository": "rmems/operation-prometheus", "revision": "f" * 40, "dataset_version": "v1", "path": "data/rows.jsonl",
                   "sha256": sha("source"), "record_count": line},
        "canonical_identity": {"canonical_id_field": "canonical_id", "lineage_id_field": "lineage_id", "group_id_field": "group_id",
                               "missing_lineage": "canonical_id", "content_hash_policy": "normalized-training-payload-v1",
                               "source_coordinate_policy": "source-path-plus-one-based-line"},
        "split_policy": {"algorithm_version": "sha256-atomic-bucket-v1", "seed": 7, "salt": "s1",
                         "weights": {"train": 80, "validation": 10, "held_out": 10}},
        "splits": splits,
        "leakage_audit": {"status": "passed", "exact_content_cross_split": 0, "canonical_id_cross_split": 0,
                          "source_coordinate_cross_split": 0, "lineage_cross_split": 0, "declared_group_cross_split": 0,
                          "deterministic_guarantees": ["no lineage stands in two splits"]},
        "token_statistics": {"artifact_schema_version": "agoge.token-stats.v1", "storage": "immutable-sidecar",
                             "invariant": "must-not-modify-source-split-digests", "required_keys": ["model_id"]},
        "exclusions": [], "limitations": ["semantic near-duplicates are not looked for"]}
    put(root / "split_manifest.json", canonical(manifest) + "\n")
    return manifest


def make_index(root, folder, provenance):
    files = sorted(p for p in (root / folder).rglob("*") if p.is_file())
    index = {"output_dir": f"somewhere/{folder}",
             "artifacts": [{"file": p.relative_to(root / folder).as_posix(), "size_bytes": p.stat().st_size, "sha256": sha(p.read_bytes())}
                           for p in files], "producer_provenance": provenance}
    put(root / folder / "artifact_index.json", json.dumps(index, indent=2) + "\n")


def arm(role, artifact, tasks):
    return {"role": role, "model_repository": MODEL, "model_revision": REVISION, "artifact": artifact, "tokenizer_repository": MODEL,
            "tokenizer_revision": REVISION, "tokenizer_sha256": sha("tokenizer"), "serializer_id": "code-repair-prompt-v1",
            "serializer_version": "1", "serializer_sha256": sha("serializer"), "logical_task_set_sha256": tasks, "context_window": 2048,
            "truncation_policy": "mark_unsupported", "scoring_version": "exact-match-v1",
            "decoding": {"do_sample": False, "seed": 17, "max_new_tokens": 128, "temperature": 0.0, "top_p": 1.0}}


def make_bundle(name, merged):
    root = out / name
    shutil.rmtree(root, ignore_errors=True)
    manifest = make_split(root)
    config = {"model_id": MODEL, "revision": REVISION, "trust_remote_code": False, "dataset_path": "splits/train.jsonl",
              "dataset_text_field": "text", "output_dir": "adapters", "run_name": "demo_run",
              "quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16",
                               "bnb_4bit_use_double_quant": True},
              "training": {"max_seq_length": 512, "batch_size": 1, "learning_rate": 0.0001, "seed": 42, "completion_only_loss": False},
              "lora": {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"],
                       "target_modules_mode": "explicit"},
              "runtime": {"save_safetensors": True}, "telemetry": {"run_id": None}}
    put(root / "config/locked.json", canonical(config) + "\n")
    # The manifest leaves out what the defaults say, and spells a number in another way.
    ran = json.loads(json.dumps(config))
    del ran["quantization"]["bnb_4bit_quant_type"], ran["training"]["seed"], ran["telemetry"]
    ran["lora"]["lora_alpha"] = 16.0
    put(root / "run/manifest.json", json.dumps({"timestamp": "2030-01-02T03:04:05Z", "git": {}, "config": ran,
                                                "environment": {"cuda_version": "None"}}, indent=2) + "\n")
    provenance = {"base_model_name_or_path": MODEL, "revision": REVISION,
                  "training_split_manifest_sha256": sha((root / "split_manifest.json").read_bytes()),
                  "training_split_name": "train", "training_split_sha256": manifest["splits"]["train"]["sha256"]}
    put(root / "adapter/adapter_config.json", json.dumps({"peft_type": "LORA", "base_model_name_or_path": MODEL, "revision": REVISION, "r": 8}))
    put(root / "adapter/adapter_model.safetensors", b"\x02\0\0\0\0\0\0\0{}")
    put(root / "adapter/checkpoint-50/trainer_state.json", '{"global_step": 50}')
    make_index(root, "adapter", provenance)
    if merged:
        put(root / "merged/config.json", json.dumps({"model_type": "llama"}))
        shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        for s in shards: put(root / "merged" / s, b"\x02\0\0\0\0\0\0\0{}")
        put(root / "merged/model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}))
        make_index(root, "merged", provenance)
    ids = [m["canonical_id"] for m in manifest["splits"]["held_out"]["members"]]
    tasks, folder = sha(canonical(ids)), "merged" if merged else "adapter"
    artifact = {"kind": "merged_model" if merged else "peft_adapter", "artifact_index_path": f"{folder}/artifact_index.json",
                "artifact_index_sha256": sha((root / folder / "artifact_index.json").read_bytes())}
    put(root / "contract.json", canonical({
        "schema_version": "agoge.evaluation-contract.v2", "split_manifest_path": "split_manifest.json",
        "split_manifest_sha256": sha((root / "split_manifest.json").read_bytes()),
        "held_out_split_sha256": manifest["splits"]["held_out"]["sha256"], "logical_task_ids": ids, "logical_task_set_sha256": tasks,
        "base": arm("causal_base", None, tasks), "sft": arm("causal_sft", artifact, tasks)}) + "\n")
    files = sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.relative_to(root).as_posix().encode())
    put(root / "reproducibility-bundle.json", canonical({
        "schema_version": "agoge.reproducibility-bundle.v1",
        "files": [{"path": p.relative_to(root).as_posix(), "size_bytes": p.stat().st_size, "sha256": sha(p.read_bytes())} for p in files],
        "run_manifest_path": "run/manifest.json", "locked_config_path": "config/locked.json", "split_manifest_path": "split_manifest.json",
        "adapter_artifact_index_path": "adapter/artifact_index.json", "evaluation_contract_path": "contract.json",
        "merged_artifact_index_path": "merged/artifact_index.json" if merged else None}) + "\n")


make_bundle("adapter", False)
make_bundle("merged", True)


def openssl(*args): subprocess.run(["openssl", *map(str, args)], check=True)


if not (out / "key.pem").exists():
    openssl("genpkey", "-algorithm", "ed25519", "-out", out / "key.pem")
    openssl("genpkey", "-algorithm", "ed25519", "-out", out / "other.pem")
    openssl("pkey", "-in", out / "other.pem", "-pubout", "-out", out / "other.pub.pem")
    (out / "other.pem").unlink()
openssl("pkey", "-in", out / "key.pem", "-pubout", "-out", out / "key.pub.pem")
openssl("pkeyutl", "-sign", "-inkey", out / "key.pem", "-rawin", "-in", out / "adapter/reproducibility-bundle.json", "-out", out / "adapter.sig")
