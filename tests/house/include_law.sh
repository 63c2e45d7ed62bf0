#!/usr/bin/env bash
# The include law: base < hub, format, text, ops < data, model, seal, lab < adapter < device < train, eval < runs, serve < cli.
# A file includes headers of lower layers and of its own folder; inside one layer folders do not know each other.
# Also: file names are unique in the tree, and no file has more than 1,000 lines.
set -u
cd "$1" || exit 1
declare -A layer=([base]=0 [hub]=1 [format]=1 [text]=1 [ops]=1 [data]=2 [model]=2 [seal]=2 [lab]=2 [adapter]=3 [device]=4
                  [train]=5 [eval]=5 [runs]=6 [serve]=6 [cli]=7)
bad=0
seen=$(grep -rnE '^#include "[a-z0-9_]+/' src cli --include='*.c' --include='*.h' | wc -l)
law=$(grep -rnE '^#include "[a-z0-9_]+/' src cli --include='*.c' --include='*.h' | awk -F'[:"]' -v layers="$(for l in "${!layer[@]}"; do printf '%s=%s ' "$l" "${layer[$l]}"; done)" '
    BEGIN { n = split(layers, pairs, " "); for (i = 1; i <= n; i++) { split(pairs[i], p, "="); layer[p[1]] = p[2] } }
    { split($1, path, "/"); from = path[1] == "src" ? path[2] : path[1]; split($4, header, "/"); to = header[1]
      if (to in layer && from != to && layer[to] >= layer[from]) print $1 " includes " to "/, which is not below " from "/: " $4 }')
[[ -z $law ]] || { echo "$law"; bad=1; }
(( seen > 0 )) || { echo "no includes found: this check looked at nothing"; exit 1; }

same=$(git ls-files src cli kernels tests 2>/dev/null | grep -E '\.(c|h|cu|cuh)$' | xargs -r -n1 basename | sort | uniq -d)
[[ -z $same ]] || { echo "file names that stand twice in the tree:"; echo "$same"; bad=1; }

long=$(git ls-files src cli kernels tests 2>/dev/null | grep -E '\.(c|h|cu|cuh)$' | while read -r f; do
    [[ -f $f ]] && (( $(wc -l <"$f") > 1000 )) && echo "$f"; done)
[[ -z $long ]] || { echo "files over 1,000 lines:"; echo "$long"; bad=1; }

prints=$(grep -rnE '\b(printf|puts|exit|getenv)\(' src --include='*.c' | grep -vE 'src/base/(status|arena)\.c')
[[ -z $prints ]] || { echo "library code prints, exits or reads the environment:"; echo "$prints"; bad=1; }

(( bad == 0 )) && echo "include law: $seen includes checked"
exit $bad
