#!/usr/bin/env python3
"""Tokenizers against tokenizers and transformers, on large vectors that are not in the tree. Prints a table; fails where anything differs.

    tokenizer.py CONFORM_TOKENIZER GOLDEN [SMOLLM2.gguf]

CONFORM_TOKENIZER is the program built from tests/conformance/conform_tokenizer.c. GOLDEN holds strings.jsonl, tokenizers/NAME/ and
encodings/NAME.jsonl, NAME.decode.jsonl (encodings/smollm2-135m.jsonl belongs to the .gguf). Then what we write is read by others: every
tokenizer through a .gguf file and back into a folder, loaded by tokenizers and by transformers, must give the same ids."""
import json, pathlib, subprocess, sys, tempfile

from tokenizers import Tokenizer, __version__
import transformers


# What a GGUF file cannot hold: white space taken along by added tokens, single words; a mark in front of the first word only.
LOSSY = {"added", "metaspace"}


def run(*args):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, errors="replace")
    return p.returncode, [l for l in p.stdout.splitlines() if l.strip()], p.stderr.strip()


def lines(path): return [json.loads(l) for l in path.read_text(encoding="utf-8").split("\n") if l]


def loaded_elsewhere(folder, strings, wanted, special):
    """How many texts tokenizers and transformers give the wanted ids for, from a folder that we wrote."""
    t = Tokenizer.from_file(str(folder / "tokenizer.json"))
    hf = transformers.AutoTokenizer.from_pretrained(str(folder))
    a = sum(t.encode(s, add_special_tokens=special).ids == w for s, w in zip(strings, wanted))
    b = sum(hf(s, add_special_tokens=special)["input_ids"] == w for s, w in zip(strings, wanted))
    return a, b


def main(program, golden, gguf=None):
    golden, bad = pathlib.Path(golden), 0
    strings = lines(golden / "strings.jsonl")
    print(f"tokenizers {__version__}, transformers {transformers.__version__}, {len(strings)} texts")
    names = sorted(p.name for p in (golden / "tokenizers").iterdir()) + (["smollm2-135m"] if gguf else [])
    for name in names:
        source = gguf if name == "smollm2-135m" else golden / "tokenizers" / name
        enc = golden / "encodings" / (name + ".jsonl")
        code, out, err = run(program, source, golden / "strings.jsonl", enc, golden / "encodings" / (name + ".decode.jsonl"))
        found = [l for l in out if "equal" in l]
        row = [name, *(l.split(": ")[1] for l in found)] if not err else [name, err]
        bad |= code
        with tempfile.TemporaryDirectory() as d:
            d, wanted = pathlib.Path(d), [r["ids"] for r in lines(enc)]
            code, _, err = run(program, source, "--write", d / "v.gguf")
            if code: row.append("no GGUF: " + err.split(";")[0][:80])
            else:
                code, _, err = run(program, d / "v.gguf", "--write", d / "out")
                a, b = loaded_elsewhere(d / "out", strings, wanted, True) if not code else (err, "")
                row.append(f"through GGUF and back: {a} tokenizers, {b} transformers")
                if name in LOSSY: row[-1] += " (GGUF cannot say it all)"
                else: bad |= a != len(strings) or b != len(strings)
            code, _, err = run(program, source, "--write", d / "direct")
            a, b = loaded_elsewhere(d / "direct", strings, wanted, True) if not code else (err, "")
            row.append(f"written: {a} tokenizers, {b} transformers")
            bad |= a != len(strings) or b != len(strings)
        print(" | ".join(str(x) for x in row), flush=True)
    return bad


if len(sys.argv) < 3: sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
