#!/usr/bin/env python3
"""The peer of tests/bench/bench_tokenizer.c: the PyPI package tokenizers on the same files, processor time of one thread.

    bench_tokenizer.py TOKENIZER.json TEXT.txt [ROUNDS]"""
import os, sys, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer, __version__


def rows(data, size=4000):
    at = 0
    while at < len(data):
        end = data.find(b"\n", min(at + size, len(data)))
        end = end + 1 if end >= 0 else len(data)
        yield data[at:end].decode("utf-8", "replace")
        at = end


def best(rounds, run):
    times, result = [], None
    for _ in range(rounds):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times), result


def main(path, text_path, rounds=3):
    seconds, t = best(rounds, lambda: Tokenizer.from_file(path))
    print(f"tokenizers {__version__}\n{'load':32} {seconds * 1e3:8.1f} ms")
    data = open(text_path, "rb").read()
    texts = list(rows(data))
    for what, run in (("rows, ids and offsets", lambda: sum(len(t.encode(x, add_special_tokens=False)) for x in texts)),
                      ("rows, encode_batch_fast", lambda: sum(len(e) for e in t.encode_batch_fast(texts, add_special_tokens=False)))):
        seconds, n = best(rounds, run)
        print(f"{what:32} {len(data) / 1e6 / seconds:8.1f} MB/s  {n} tokens")


if len(sys.argv) < 3: sys.exit(__doc__)
main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
