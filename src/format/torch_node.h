/* Values while a pickle is walked: besides what a tree may hold in the end there are names, storages and halves of NumPy arrays.
 * Shared by torch_unpickle.c (the stack machine) and torch_node.c (what its calls mean). */
#ifndef AG_TORCH_NODE_H
#define AG_TORCH_NODE_H

#include "format/torch_pickle.h"

typedef enum {
    NODE_VALUE,
    NODE_GLOBAL,  /* an allowed name: .global */
    NODE_STORAGE, /* .storage */
    NODE_DTYPE,   /* numpy.dtype('u4'); .value.boolean once its byte order is known */
    NODE_ARRAY    /* a NumPy array before its BUILD */
} node_kind;

typedef enum {
    GLOBAL_REBUILD_TENSOR, GLOBAL_REBUILD_OLD, GLOBAL_REBUILD_V3, GLOBAL_REBUILD_PARAMETER, GLOBAL_REBUILD_FROM_TYPE, GLOBAL_ORDERED_DICT,
    GLOBAL_COUNTER, GLOBAL_SIZE, GLOBAL_BYTEARRAY, GLOBAL_ENCODE, GLOBAL_RECONSTRUCT, GLOBAL_NDARRAY, GLOBAL_DTYPE,
    GLOBAL_CLASS,   /* a class of tensors, which only stands in arguments */
    GLOBAL_OPAQUE,  /* a call of it gives a value that nothing here needs */
    GLOBAL_UNTYPED, /* the storage of bytes */
    GLOBAL_STORAGE, /* + dtype */
    GLOBAL_DTYPE_NAME = GLOBAL_STORAGE + AG_TORCH_N_DTYPES /* + dtype: torch.float32 */
} node_global;

typedef struct {
    const unsigned char *bytes;
    int64_t n_elements; /* bytes where untyped */
    ag_torch_dtype dtype;
    bool untyped;
} node_storage;

typedef struct node node;
struct node {
    ag_torch_value value; /* first, so that a pointer to it is one to the node */
    union {
        int global; /* node_global */
        const node_storage *storage;
        uint64_t n_unfolded; /* of a checked container: its nodes if every shared one stood alone */
    };
    unsigned char what; /* node_kind */
    unsigned char check; /* of torch_node_check: 0 unseen, 1 being looked into, 2 done */
    unsigned char height;
};

typedef struct {
    const unsigned char *bytes;
    size_t n, at;
    const ag_torch_zip *zip;
    unsigned flags;
    ag_arena *arena;
    size_t bytes_before; /* arena's count at the start */
    node **stack;
    size_t n_stack, stack_room;
    size_t *marks, n_marks;
    node **memo;
    size_t n_memo, memo_room;
} unpickler;

node *torch_node_create(unpickler *u, ag_torch_kind kind);
node *torch_node_opaque(unpickler *u, const char *text); /* the text stays */
/* items[at] = item; *container counts one more where `is_whole`. */
void torch_items_push(ag_arena *arena, ag_torch_value *container, size_t at, ag_torch_value *item, bool is_whole);
/* Whether the name is on the list; NumPy's only with AG_TORCH_NUMPY. A name that is a value in itself (torch.float32, torch.per_tensor_affine)
 * comes as one that is opaque. NULL: it is not on the list. */
node *torch_global_find(unpickler *u, const char *module, size_t n_module, const char *name, size_t n_name);
AG_MUST_USE ag_status torch_node_call(unpickler *u, node **result, int global, const ag_torch_value *args, ag_err *err);
/* NEWOBJ: only what a call of the class without arguments would give. */
AG_MUST_USE ag_status torch_node_new(unpickler *u, node **result, int global, const ag_torch_value *args, ag_err *err);
AG_MUST_USE ag_status torch_node_build(unpickler *u, node *x, node *state, ag_err *err);
AG_MUST_USE ag_status torch_node_storage(unpickler *u, node **storage, node *id, ag_err *err);
/* The finished tree: values only, at most AG_TORCH_MAX_DEPTH deep, no cycle, bounded when unfolded, keys strings or ints, none twice. */
AG_MUST_USE ag_status torch_node_check(node *root, ag_err *err);

#endif
