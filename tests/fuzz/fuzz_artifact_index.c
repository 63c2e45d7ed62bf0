/* artifact_index.json: what is accepted is sorted, without doubles, and stays below its directory. */
#include "seal/artifact_index.h"
#include "seal/portable_path.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_artifact_index index;
    ag_arena arena = {0};
    ag_err err;
    if (!ag_artifact_index_parse(&index, (const char *)data, size, "fuzz", &arena, &err)) {
        for (size_t i = 0; i < index.n; i++) {
            if (ag_portable_path_fault(index.artifacts[i].file)) abort();
            if (strlen(index.artifacts[i].sha256) != 64) abort();
            if (i > 0 && strcmp(index.artifacts[i - 1].file, index.artifacts[i].file) >= 0) abort();
            const char *inside = ag_portable_path_resolve(&arena, "", index.artifacts[i].file);
            if (!inside || strcmp(inside, index.artifacts[i].file) != 0) abort();
        }
        if (index.has_provenance && !index.provenance.revision) abort();
    }
    ag_arena_free(&arena);
    return 0;
}
