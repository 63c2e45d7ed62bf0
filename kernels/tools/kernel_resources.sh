#!/usr/bin/env bash
# kernel_resources.sh NVCC TABLE [--update]: registers, static shared memory, stack and spills of every kernel, as ptxas tells them for
# sm_90a and sm_120a, compared with the table in the tree (or written to it). Exit 1: they differ, or a kernel spills; 77: no nvcc.
set -euo pipefail
nvcc=$1 table=$(realpath -m "$2") update=${3:-}
[[ -x $nvcc ]] || { echo "SKIP: nvcc is not here ($nvcc)"; exit 77; }
kernels=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cd "$kernels" # so that a compiler cache sees the same call from anywhere
cache=$(command -v ccache || true)

measured() { # ARCH FILE
    $cache "$nvcc" -std=c++17 -O3 -I"$kernels/include" -gencode "arch=compute_$1,code=sm_$1" -Xptxas -v -c "$2" -o "$scratch/$1.o" 2>&1 |
        awk -v arch="sm_$1" '
            /Compiling entry function/ { match($0, /\047[^\047]+\047/); name = substr($0, RSTART + 1, RLENGTH - 2) }
            /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
            /Used [0-9]+ registers/ {
                shared = 0; if (match($0, /[0-9]+ bytes smem/)) { split(substr($0, RSTART, RLENGTH), s, " "); shared = s[1] }
                match($0, /Used [0-9]+/); printf "%s\t%s\t%d\t%d\t%d\t%d\n", name, arch, substr($0, RSTART + 5, RLENGTH - 5), shared, stack, stores + loads
            }'
}

{
    printf 'kernel\tarch\tregisters\tstatic_shared_bytes\tstack_bytes\tspill_bytes\n'
    for file in "$kernels"/src/*.cu; do
        case $(basename "$file") in api.cu | runtime.cu) continue ;; esac
        for arch in 90a 120a; do measured "$arch" "$file"; done
    done | c++filt | sed -E 's/^void //; s/\([^\t]*\)\t/\t/; s/\((int|bool)\)//g' | LC_ALL=C sort
} >"$scratch/table"
(( $(wc -l <"$scratch/table") > 10 )) || { echo "ptxas said almost nothing: this check looked at nothing"; exit 1; }

spilling=$(awk -F'\t' 'NR > 1 && ($5 > 0 || $6 > 0)' "$scratch/table")
[[ -z $spilling ]] || { echo "kernels with a stack or spills:"; echo "$spilling"; exit 1; }
if [[ $update == --update ]]; then
    cp "$scratch/table" "$table"
    echo "wrote $(($(wc -l <"$table") - 1)) rows to $table"
elif version=$("$nvcc" --version | sed -nE 's/.*release ([0-9.]+),.*/\1/p'); [[ $version != 13.0 ]]; then
    echo "SKIP: the table was made with nvcc 13.0, this is $version; no kernel spills"
    exit 77
else
    diff -u "$table" "$scratch/table" || { echo "update it: $0 NVCC $table --update"; exit 1; }
    echo "$(($(wc -l <"$table") - 1)) rows agree, no spills"
fi
