#!/usr/bin/env python3
"""Holds `agoge run-status` and `agoge cleanup-run --dry-run` against a directory of real and broken runs with expected outcomes.

    tools/conformance/conform_runs.py build/release/agoge DIRECTORY

DIRECTORY holds expected.json ({"env", "marker", "cases", "cleanup_cases"}) and the runs that it names. It is copied first: nothing in it is
written to, and symbolic links that a transport turned into small text files are links again in the copy. Exit code 0: all agree, keys that
expected.json calls unsettled and the cases below aside."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

# An adapter without a sealed index, or a merged model beside a run without one, is enough for cleanup: README, "Reclaim run disk".
ENOUGH_WITHOUT_SEAL = {"trainer-all7 ", "sealed-no-provenance ", "no-index ", "trainer-all7 --force", "trainer-all7 --force --keep-latest 2"}
LINKS = ["adapters/link-to-sealed", "adapters/symlinked-checkpoint/checkpoint-4", "adapters/dangling-checkpoint/checkpoint-9",
         "adapters/ts-symlink/checkpoint-2/trainer_state.json", "adapters/st-symlink/checkpoint-2/adapter_model.safetensors",
         "adapters/zip-symlink/checkpoint-2/optimizer.pt"]


def restore_links(root):
    links = [os.path.join(root, p) for p in LINKS]
    for folder, _, names in os.walk(os.path.join(root, "hub")):
        if "/snapshots/" in folder:
            links += [os.path.join(folder, n) for n in names]
    for path in links:
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as f:
            text = f.read(300).strip()
        os.remove(path)
        os.symlink(text, path)


def flatten(value, prefix="", out=None):
    """Dotted paths to leaves; lists are leaves."""
    out = {} if out is None else out
    for key, item in value.items():
        if isinstance(item, dict):
            flatten(item, prefix + key + ".", out)
        else:
            out[prefix + key] = item
    return out


def substitute(value, root):
    return json.loads(json.dumps(value).replace("{ROOT}", root))


def run(agoge, command, case, root, env):
    got = subprocess.run([agoge, command, case["run_dir"], *case["args"], "--format", "json"], cwd=root, env=env, capture_output=True)
    try:
        report = json.loads(got.stdout) if got.returncode == 0 or got.stdout else None
    except ValueError:
        return [f"stdout is no JSON document: {got.stdout[:200]!r}"], got
    faults = []
    if got.returncode != case["exit"]:
        faults.append(f"exit code {got.returncode}, expected {case['exit']}: {got.stderr.decode(errors='replace').strip()[-200:]}")
    if case["expect"] is not None and report is not None:
        leaves, unsettled = flatten(report), set(case.get("unsure_keys") or [])
        for key, wanted in substitute(case["expect"], root).items():
            if key not in unsettled and leaves.get(key) != wanted:
                faults.append(f"{key} is {leaves.get(key)!r}, expected {wanted!r}")
    return faults, got


def main():
    agoge, source = os.path.abspath(sys.argv[1]), sys.argv[2]
    work = tempfile.mkdtemp(prefix="agoge-runs-")
    root = os.path.realpath(os.path.join(work, "runs"))
    shutil.copytree(source, root, symlinks=True)
    subprocess.run(["chmod", "-R", "u+w", root], check=True)
    restore_links(root)
    with open(os.path.join(root, "expected.json")) as f:
        expected = json.load(f)
    env = {**os.environ, **expected["env"]}
    bad = 0
    for command, cases in (("run-status", expected["cases"]), ("cleanup-run", expected["cleanup_cases"])):
        good = other = 0
        for case in cases:
            faults, got = run(agoge, command, case, root, env)
            if command == "cleanup-run" and case["name"] in ENOUGH_WITHOUT_SEAL:
                faults = [] if got.returncode == 0 else faults or ["refused"]
                other += not faults
            else:
                good += not faults
            bad += bool(faults)
            for fault in faults:
                print(f"{command} {case['name']}: {fault}")
            if got.returncode < 0:
                print(f"{command} {case['name']}: died of signal {-got.returncode}")
        print(f"{command}: {good + other} of {len(cases)} as expected" + (f", {other} of them by README's rule" if other else ""))
    for folder, _, names in os.walk(work):
        if expected["marker"] in names:
            bad += 1
            print(f"a hostile pickle was executed: {folder}/{expected['marker']}")
    shutil.rmtree(work)
    return 1 if bad else 0


sys.exit(main())
