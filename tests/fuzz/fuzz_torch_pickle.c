/* The pickle of a torch archive, beside one storage of 64 bytes. What was accepted is walked: every byte that a tensor reaches is read. */
#include "format/torch_pickle.h"
#include "format/torch_zip.h"
#include "fuzz/torch_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static volatile unsigned sink;
    static const unsigned char storage[64];
    ag_torch_member member = {.name = "x/data/0", .n_name = 8, .bytes = storage, .n = sizeof storage};
    ag_torch_zip zip = {.members = &member, .n = 1, .n_root = 2, .n_storages = 1};
    ag_arena arena = {0};
    ag_err err;
    const ag_torch_value *root;
    int left = 100000;
    if (ag_torch_unpickle(&root, data, size, &zip, AG_TORCH_NUMPY, &arena, &err) == AG_OK) sink += torch_walk(root, 1, &left);
    ag_arena_free(&arena);
    return 0;
}
