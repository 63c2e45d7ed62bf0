#!/usr/bin/env python3
"""Our reading of GGUF vocabularies against the vectors that llama.cpp keeps beside them (ids by Hugging Face's own tokenizers).

    tokenizer_vocabs.py CONFORM_TOKENIZER FOLDER      FOLDER holds ggml-vocab-NAME.gguf, .gguf.inp and .gguf.out (llama.cpp's models/)"""
import json, pathlib, subprocess, sys, tempfile

MARK = "\n__ggml_vocab_test__\n"


def main(program, folder):
    bad = 0
    for vocab in sorted(pathlib.Path(folder).glob("ggml-vocab-*.gguf")):
        inp, out = pathlib.Path(str(vocab) + ".inp"), pathlib.Path(str(vocab) + ".out")
        if not inp.exists() or not out.exists():
            print(f"{vocab.name:40} no vectors")
            continue
        texts = inp.read_bytes().decode().split(MARK)
        rows = [[int(x) for x in l.split()] for l in out.read_text().split("\n")]
        pairs = list(zip(texts, rows))
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            (d / "s").write_text("".join(json.dumps(s) + "\n" for s, _ in pairs))
            (d / "e").write_text("".join(json.dumps({"ids": r}) + "\n" for _, r in pairs))
            p = subprocess.run([program, str(vocab), str(d / "s"), str(d / "e")], capture_output=True, text=True, errors="replace")
        found = [l for l in p.stdout.splitlines() if "equal" in l]
        print(f"{vocab.name:40} {found[0] if found else p.stderr.strip()[:110]}", flush=True)
        if found and p.returncode:
            bad = 1
            print("\n".join(l for l in p.stdout.splitlines()[1:] if "differ" in l or "wanted" in l or "found" in l)[:1500])
    return bad


if len(sys.argv) != 3: sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
