#!/usr/bin/env python3
"""Golden for frozen splits, from an implementation of the algorithm that shares nothing with ours.

    python3 tools/golden/make_split.py tests/golden/split

Writes source.jsonl (rows in many spellings), split_manifest.json and splits/*.jsonl as sha256-atomic-bucket-v1 makes them.
"""
import hashlib
import json
import pathlib
import random
import sys

REVISION = "0123456789abcdef0123456789abcdef01234567"
SEED, SALT, WEIGHTS = 7, "salt-v1", {"train": 60, "validation": 20, "held_out": 20}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def make_source():
    rng = random.Random(11)
    lines = []
    for i in range(60):
        row = {"text": f"Fix é{i}: x = {i}\n→ y", "canonical_id": f" repo/task-{rng.randrange(10**6):06d}-{i} ", "completion_start_char": 5,
               "n": rng.choice([1, 1.50, 1e22, 123456789012345678901234567890, None, [True, {"b": 1, "a": 2}]])}
        if i % 3:
            row["lineage_id"] = f"lineage-{rng.randrange(25)}"
        if i % 5 == 0:
            row["group_id"] = f"g{rng.randrange(6)}"
        if i in (20, 41):
            row["text"] = "the same text"
        style = i % 4
        if style == 0:
            line = canonical(row)
        elif style == 1:
            line = json.dumps(row)
        elif style == 2:
            line = "  " + json.dumps(row, indent=None, ensure_ascii=False) + "\r"
        else:
            line = json.dumps(dict(reversed(row.items())), separators=(" , ", " : "))
        lines.append(line)
        if i % 17 == 4:
            lines.append(" \t")
    return "\n".join(lines).encode()  # no newline behind the last row


def components(records):
    parent = list(range(len(records)))

    def find(i):
        while parent[i] != i:
            i = parent[i]
        return i

    for key in ("lineage_id", "group_id", "content_sha256"):
        first = {}
        for i, record in enumerate(records):
            value = record[key]
            if value is None:
                continue
            if value in first:
                parent[find(i)] = find(first[value])
            else:
                first[value] = i
    groups = {}
    for i in range(len(records)):
        groups.setdefault(find(i), []).append(i)
    return groups.values()


def main(out):
    out = pathlib.Path(out)
    (out / "splits").mkdir(parents=True, exist_ok=True)
    source = make_source()
    (out / "source.jsonl").write_bytes(source)
    records = []
    for number, raw in enumerate(source.split(b"\n"), 1):
        if not raw.strip():
            continue
        row = json.loads(raw)
        canonical_id = row["canonical_id"].strip()
        records.append({
            "row": row, "canonical_id": canonical_id, "lineage_id": (row.get("lineage_id") or canonical_id).strip(),
            "group_id": row.get("group_id"), "source_coordinate": f"data/rows.jsonl:{number}",
            "content_sha256": sha(canonical({"text": row["text"]})), "raw_line_sha256": sha(raw),
            "materialized_line_sha256": sha(canonical(row))})
    splits = {name: [] for name in WEIGHTS}
    for members in components(records):
        found = [records[i]["group_id"] for i in members if records[i]["group_id"]]
        anchor = "group:" + min(found) if found else "lineage:" + min(records[i]["lineage_id"] for i in members)
        bucket = int(sha("\0".join(["sha256-atomic-bucket-v1", str(SEED), SALT, anchor])), 16) % sum(WEIGHTS.values())
        name = "train" if bucket < WEIGHTS["train"] else "validation" if bucket < WEIGHTS["train"] + WEIGHTS["validation"] else "held_out"
        splits[name] += [records[i] for i in members]
    manifest = {
        "schema_version": "agoge.split-manifest.v1",
        "source": {"repository": "org/data", "revision": REVISION, "dataset_version": "v1", "path": "data/rows.jsonl", "sha256": sha(source),
                   "record_count": len(records)},
        "canonical_identity": {"canonical_id_field": "canonical_id", "lineage_id_field": "lineage_id", "group_id_field": "group_id",
                               "missing_lineage": "canonical_id", "content_hash_policy": "normalized-training-payload-v1",
                               "source_coordinate_policy": "source-path-plus-one-based-line"},
        "split_policy": {"algorithm_version": "sha256-atomic-bucket-v1", "seed": SEED, "salt": SALT, "weights": WEIGHTS},
        "splits": {},
        "leakage_audit": {"status": "passed", "exact_content_cross_split": 0, "canonical_id_cross_split": 0,
                          "source_coordinate_cross_split": 0, "lineage_cross_split": 0, "declared_group_cross_split": 0,
                          "deterministic_guarantees": [
                              "no canonical id stands in two splits", "no declared group stands in two splits",
                              "no exact training payload stands in two splits", "no lineage stands in two splits",
                              "no source row stands in two splits"]},
        "token_statistics": {"artifact_schema_version": "agoge.token-stats.v1", "storage": "immutable-sidecar",
                             "invariant": "must-not-modify-source-split-digests",
                             "required_keys": ["model_id", "model_revision", "tokenizer_id", "tokenizer_revision", "tokenizer_sha256",
                                               "serializer_id", "serializer_version", "serializer_sha256"]},
        "exclusions": [],
        "limitations": ["semantic near-duplicates are not looked for: rows that say the same in other words may stand in two splits"],
    }
    for name, members in splits.items():
        members.sort(key=lambda record: record["canonical_id"])
        data = "".join(canonical(record["row"]) + "\n" for record in members).encode()
        (out / "splits" / f"{name}.jsonl").write_bytes(data)
        manifest["splits"][name] = {
            "path": f"splits/{name}.jsonl", "sha256": sha(data), "record_count": len(members),
            "members": [{key: record[key] for key in ("canonical_id", "lineage_id", "group_id", "source_coordinate", "content_sha256",
                                                      "raw_line_sha256", "materialized_line_sha256")} for record in members]}
    (out / "split_manifest.json").write_bytes((canonical(manifest) + "\n").encode())


main(sys.argv[1])
