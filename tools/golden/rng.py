#!/usr/bin/env python3
"""Goldens of the random numbers: what torch's CPU generator gives. Writes tests/golden/rng/ (run from the repository's root).

    python3 tools/golden/rng.py            # needs torch; last run with 2.15.0
"""
import hashlib
import pathlib

import torch

OUT = pathlib.Path("tests/golden/rng")
SEEDS = [0, 1, 42, 2147483647, 2**32 + 5, 2**63 + 11]


def words(seed, n):
    g = torch.Generator().manual_seed(seed)
    # the full range of int32 takes one word a value and drops its top bit
    return torch.empty(n, dtype=torch.int32).random_(generator=g).tolist()


def u64s(seed, n):
    g = torch.Generator().manual_seed(seed)
    # the full range of int64 takes two words and drops the top bit
    return torch.empty(n, dtype=torch.int64).random_(generator=g).tolist()


def uniforms(seed, n):
    g = torch.Generator().manual_seed(seed)
    return torch.empty(n).uniform_(0, 1, generator=g).view(torch.int32).tolist()


def permutation(seed, n):
    g = torch.Generator().manual_seed(seed)
    p = torch.randperm(n, generator=g)
    return p, torch.empty(1, dtype=torch.int32).random_(generator=g).item()


def c_list(values, suffix=""):
    return "{" + ", ".join(f"{v}{suffix}" for v in values) + "}"


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f"/* Made by tools/golden/rng.py with torch {torch.__version__.split('+')[0]}. */",
             "#ifndef AG_GOLDEN_RNG_H", "#define AG_GOLDEN_RNG_H", "", "#include <stdint.h>", ""]
    lines += ["static const struct {", "    uint64_t seed;", "    uint32_t low31[8];    /* of the words */",
              "    int64_t low63[4];     /* of the 64-bit words */", "    uint32_t uniform_bits[8];", "} golden_streams[] = {"]
    for seed in SEEDS:
        lines.append("    {%du, %s, %s,\n     %s}," % (seed, c_list(words(seed, 8), "u"), c_list(u64s(seed, 4)),
                                                       c_list([v & 0xFFFFFFFF for v in uniforms(seed, 8)], "u")))
    lines += ["};", "", "/* sha256 of the permutation as little-endian int64, its first values, and the word drawn after it */",
              "static const struct {", "    uint64_t seed;", "    int64_t n, first[8];", "    uint32_t low31_after;",
              "    const char *sha256;", "} golden_permutations[] = {"]
    for seed, n in [(0, 1), (0, 2), (1, 7), (42, 10), (42, 623), (42, 624), (42, 625), (7, 5000), (2**32 + 5, 300000)]:
        p, after = permutation(seed, n)
        first = p[:8].tolist()
        lines.append('    {%du, %d, %s, %du,\n     "%s"},' % (seed, n, c_list(first), after, hashlib.sha256(p.numpy().tobytes()).hexdigest()))
    lines += ["};", "", "#endif", ""]
    (OUT / "rng_golden.h").write_text("\n".join(lines))

    # Generator states: fresh; in the middle of a twist; with a cached normal.
    g = torch.Generator().manual_seed(42)
    (OUT / "state_fresh.bin").write_bytes(g.get_state().numpy().tobytes())
    torch.empty(700).uniform_(generator=g)
    (OUT / "state_after_700.bin").write_bytes(g.get_state().numpy().tobytes())
    torch.empty(1).normal_(generator=g)
    (OUT / "state_cached_normal.bin").write_bytes(g.get_state().numpy().tobytes())


main()
