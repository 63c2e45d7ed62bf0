#!/usr/bin/env python3
"""Times `agoge run-status` on a run of N checkpoints whose optimizer.pt has M MiB (real files for the newest, hard links of it for the rest).

    tools/conformance/bench_run_status.py build/release/agoge CHECKPOINT BASE_PARENT [N] [M]

CHECKPOINT is a checkpoint-2 folder of the Trainer, BASE_PARENT the directory that its base model's relative name begins at. Nothing but the
optimizer's padding is made up: a storage that no tensor uses, so that the report must still take its CRC."""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile


def enlarge(path, mib):
    """The same archive with one more storage of so many MiB."""
    with zipfile.ZipFile(path) as old:
        members = [(i.filename, old.read(i)) for i in old.infolist()]
    root = members[0][0].split("/")[0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in members:
            new.writestr(name, data)
        with new.open(f"{root}/data/999999", "w") as storage:  # in pieces: a large parent would show in its children's peaks
            for _ in range(mib):
                storage.write(os.urandom(1 << 20))


def main():
    agoge, checkpoint, base = os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3])
    n, mib = int(sys.argv[4]) if len(sys.argv) > 4 else 200, int(sys.argv[5]) if len(sys.argv) > 5 else 100
    work = tempfile.mkdtemp(prefix="agoge-status-", dir=os.environ.get("TMPDIR"))
    run = os.path.join(work, "adapters", "run")
    first = os.path.join(run, "checkpoint-2")
    shutil.copytree(checkpoint, first)
    subprocess.run(["chmod", "-R", "u+w", work], check=True)
    enlarge(os.path.join(first, "optimizer.pt"), mib)
    for i in range(1, n):  # step 1 in many spellings: the newest stays the one whose files say 2
        shutil.copytree(first, os.path.join(run, "checkpoint-" + "0" * i + "1"), copy_function=os.link)
    best = []
    for _ in range(5):
        start = time.perf_counter()
        child = subprocess.Popen([agoge, "run-status", run], cwd=base, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, words = child.communicate()
        best.append(time.perf_counter() - start)
    ready = b'"ready": true' in out
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{out.count(b'checkpoint-')} paths, resume ready: {ready}, {words.decode().strip()}")
    print(f"{n} checkpoints of {mib} MiB: {min(best):.3f} s (of 5: {', '.join(f'{t:.3f}' for t in best)}), peak {peak / 1024:.1f} MiB")
    shutil.rmtree(work)


main()
