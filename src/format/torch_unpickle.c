#include "format/torch_pickle.h"

#include "format/little_endian.h"
#include "format/torch_node.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_STACKED = 256, MOST_STACKED = 1 << 20, MOST_MARKS = 1024, MEMO_SLACK = 256, LONGEST_NAME = 128, MEMORY_BYTES = 256 << 20, PROTOCOL = 2
};

/* ---- the stack ------------------------------------------------------------------------------------------------------------ */

static ag_status damaged(unpickler *u, const char *why, ag_err *err)
{
    (void)ag_fail(err, AG_E_FORMAT, "data.pkl is damaged at byte %zu: %s", u->at, why);
    return AG_E_FORMAT; /* so that the compiler knows that it is a failure */
}

static ag_status push(unpickler *u, node *x, ag_err *err)
{
    if (u->n_stack == MOST_STACKED) return damaged(u, "too many values are stacked", err);
    if (u->n_stack == u->stack_room) {
        u->stack_room *= 2;
        u->stack = realloc(u->stack, u->stack_room * sizeof *u->stack);
        if (!u->stack) ag_out_of_memory(u->stack_room * sizeof *u->stack);
    }
    u->stack[u->n_stack++] = x;
    return AG_OK;
}

/* Values above the innermost mark, or above the bottom. */
static size_t n_free(const unpickler *u) { return u->n_stack - (u->n_marks ? u->marks[u->n_marks - 1] : 0); }

static ag_status pop(unpickler *u, node **x, ag_err *err)
{
    if (n_free(u) == 0) return damaged(u, "a value is missing", err);
    *x = u->stack[--u->n_stack];
    return AG_OK;
}

static ag_status top(unpickler *u, node **x, ag_err *err)
{
    if (n_free(u) == 0) return damaged(u, "a value is missing", err);
    *x = u->stack[u->n_stack - 1];
    return AG_OK;
}

static ag_status push_mark(unpickler *u, ag_err *err)
{
    if (u->n_marks == MOST_MARKS) return damaged(u, "it nests too deep", err);
    u->marks[u->n_marks++] = u->n_stack;
    return AG_OK;
}

/* The values above the innermost mark, which goes. They stay in place until the next push. */
static ag_status pop_mark(unpickler *u, node ***items, size_t *n, ag_err *err)
{
    if (u->n_marks == 0) return damaged(u, "a mark is missing", err);
    size_t mark = u->marks[--u->n_marks];
    *items = u->stack + mark;
    *n = u->n_stack - mark;
    u->n_stack = mark;
    return AG_OK;
}

static ag_status take(unpickler *u, size_t n, const unsigned char **bytes, ag_err *err)
{
    if (n > u->n - u->at) return damaged(u, "it ends too early", err);
    *bytes = u->bytes + u->at;
    u->at += n;
    return AG_OK;
}

static ag_status take_number(unpickler *u, int n_bytes, uint64_t *number, ag_err *err)
{
    const unsigned char *bytes;
    AG_TRY(take(u, (size_t)n_bytes, &bytes, err));
    *number = ag_little_read(bytes, n_bytes);
    return AG_OK;
}

/* ---- scalars and texts ---------------------------------------------------------------------------------------------------- */

static ag_status push_int(unpickler *u, int64_t integer, ag_err *err)
{
    node *x = torch_node_create(u, AG_TORCH_INT);
    x->value.integer = integer;
    return push(u, x, err);
}

static ag_status push_bool(unpickler *u, bool boolean, ag_err *err)
{
    node *x = torch_node_create(u, AG_TORCH_BOOLEAN);
    x->value.boolean = boolean;
    return push(u, x, err);
}

static ag_status read_long1(unpickler *u, ag_err *err)
{
    uint64_t n, word = 0;
    AG_TRY(take_number(u, 1, &n, err));
    if (n > 8) return damaged(u, "an integer is larger than 64 bits", err);
    AG_TRY(take_number(u, (int)n, &word, err));
    if (n > 0 && n < 8 && (word >> (8 * n - 1) & 1)) word |= UINT64_MAX << 8 * n; /* the sign */
    return push_int(u, (int64_t)word, err);
}

static ag_status read_float(unpickler *u, ag_err *err)
{
    const unsigned char *bytes;
    AG_TRY(take(u, 8, &bytes, err));
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i]; /* the one big-endian number of a pickle */
    node *x = torch_node_create(u, AG_TORCH_FLOAT);
    memcpy(&x->value.real, &bits, sizeof bits);
    return push(u, x, err);
}

/* n_bytes: of the length in front. */
static ag_status read_text(unpickler *u, int n_bytes, ag_err *err)
{
    uint64_t n;
    const unsigned char *bytes;
    AG_TRY(take_number(u, n_bytes, &n, err));
    AG_TRY(take(u, n, &bytes, err));
    if (!ag_utf8_valid((const char *)bytes, n)) return damaged(u, "a text is no valid UTF-8", err);
    node *x = torch_node_create(u, AG_TORCH_STRING);
    x->value.text = ag_arena_strndup(u->arena, (const char *)bytes, n);
    x->value.n_text = n;
    return push(u, x, err);
}

/* ---- containers ----------------------------------------------------------------------------------------------------------- */

static ag_status push_tuple(unpickler *u, node **items, size_t n, ag_err *err)
{
    node *x = torch_node_create(u, AG_TORCH_TUPLE);
    x->value.n = (uint32_t)n; /* at most MOST_STACKED */
    x->value.room = n;
    x->value.items = ag_arena_array(u->arena, n, sizeof *x->value.items);
    for (size_t i = 0; i < n; i++) x->value.items[i] = &items[i]->value;
    return push(u, x, err);
}

static ag_status read_tuple(unpickler *u, ag_err *err)
{
    node **items;
    size_t n;
    AG_TRY(pop_mark(u, &items, &n, err));
    return push_tuple(u, items, n, err);
}

static ag_status read_short_tuple(unpickler *u, size_t n, ag_err *err)
{
    if (n_free(u) < n) return damaged(u, "a value is missing", err);
    u->n_stack -= n;
    return push_tuple(u, u->stack + u->n_stack, n, err);
}

static ag_status grow(unpickler *u, ag_torch_kind kind, node **items, size_t n, ag_err *err)
{
    node *container;
    AG_TRY(top(u, &container, err));
    if (container->what != NODE_VALUE || container->value.kind != kind)
        return damaged(u, "items are added to what is no container for them", err);
    size_t per_item = kind == AG_TORCH_DICT ? 2 : 1;
    if (n % per_item) return damaged(u, "a key has no value", err);
    for (size_t i = 0; i < n; i++) torch_items_push(u->arena, &container->value, per_item * container->value.n + i % per_item, &items[i]->value,
                                                    i % per_item == per_item - 1);
    return AG_OK;
}

static ag_status read_items(unpickler *u, ag_torch_kind kind, ag_err *err)
{
    node **items;
    size_t n;
    AG_TRY(pop_mark(u, &items, &n, err));
    return grow(u, kind, items, n, err);
}

static ag_status read_item(unpickler *u, ag_torch_kind kind, size_t n, ag_err *err)
{
    if (n_free(u) < n + 1) return damaged(u, "a value is missing", err);
    u->n_stack -= n;
    return grow(u, kind, u->stack + u->n_stack, n, err);
}

/* ---- memo ----------------------------------------------------------------------------------------------------------------- */

static ag_status memo_put(unpickler *u, int n_bytes, ag_err *err)
{
    uint64_t i;
    node *x;
    AG_TRY(take_number(u, n_bytes, &i, err));
    AG_TRY(top(u, &x, err));
    /* Writers number values one by one; a table is not made large because a file names a large number. */
    if (i > u->n_memo + MEMO_SLACK) return damaged(u, "it numbers its values out of order", err);
    if (i >= u->memo_room) {
        size_t room = u->memo_room ? 2 * u->memo_room : 2 * MEMO_SLACK;
        while (room <= i) room *= 2;
        u->memo = realloc(u->memo, room * sizeof *u->memo);
        if (!u->memo) ag_out_of_memory(room * sizeof *u->memo);
        memset(u->memo + u->memo_room, 0, (room - u->memo_room) * sizeof *u->memo);
        u->memo_room = room;
    }
    u->memo[i] = x;
    if (i >= u->n_memo) u->n_memo = (size_t)i + 1;
    return AG_OK;
}

static ag_status memo_get(unpickler *u, int n_bytes, ag_err *err)
{
    uint64_t i;
    AG_TRY(take_number(u, n_bytes, &i, err));
    if (i >= u->n_memo || !u->memo[i]) return damaged(u, "it refers to a value that it does not have", err);
    return push(u, u->memo[i], err);
}

/* ---- names, calls, storages ----------------------------------------------------------------------------------------------- */

/* The bytes up to a line feed, which is skipped. */
static ag_status take_line(unpickler *u, const char **text, size_t *n, ag_err *err)
{
    size_t left = u->n - u->at, most = left < LONGEST_NAME ? left : LONGEST_NAME;
    const unsigned char *end = memchr(u->bytes + u->at, '\n', most);
    if (!end) return damaged(u, left < LONGEST_NAME ? "it ends too early" : "a name is too long", err);
    *text = (const char *)u->bytes + u->at;
    *n = (size_t)(end - u->bytes) - u->at;
    u->at += *n + 1;
    return ag_utf8_valid(*text, *n) ? AG_OK : damaged(u, "a name is no valid UTF-8", err);
}

static ag_status read_global(unpickler *u, ag_err *err)
{
    const char *module, *name;
    size_t n_module, n_name;
    AG_TRY(take_line(u, &module, &n_module, err));
    AG_TRY(take_line(u, &name, &n_name, err));
    node *x = torch_global_find(u, module, n_module, name, n_name);
    if (!x)
        return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl asks for %.*s.%.*s, which is not on the list of names that are read; "
                       "do not load this file with anything that runs it", (int)n_module, module, (int)n_name, name);
    return push(u, x, err);
}

static ag_status read_call(unpickler *u, bool is_new, ag_err *err)
{
    node *args, *function, *result;
    AG_TRY(pop(u, &args, err));
    AG_TRY(pop(u, &function, err));
    if (function->what != NODE_GLOBAL || args->what != NODE_VALUE || args->value.kind != AG_TORCH_TUPLE)
        return damaged(u, "something is called that is no function", err);
    if (is_new) AG_TRY(torch_node_new(u, &result, function->global, &args->value, err));
    else AG_TRY(torch_node_call(u, &result, function->global, &args->value, err));
    return push(u, result, err);
}

static ag_status read_build(unpickler *u, ag_err *err)
{
    node *state, *x;
    AG_TRY(pop(u, &state, err));
    AG_TRY(top(u, &x, err));
    return torch_node_build(u, x, state, err);
}

static ag_status read_storage(unpickler *u, ag_err *err)
{
    node *id, *storage;
    AG_TRY(pop(u, &id, err));
    AG_TRY(torch_node_storage(u, &storage, id, err));
    return push(u, storage, err);
}

/* ---- the machine ---------------------------------------------------------------------------------------------------------- */

static ag_status run_opcode(unpickler *u, unsigned char opcode, ag_err *err)
{
    uint64_t number;
    switch (opcode) {
    case 'N': return push(u, torch_node_create(u, AG_TORCH_NONE), err);
    case 0x88: return push_bool(u, true, err);
    case 0x89: return push_bool(u, false, err);
    case 'J': AG_TRY(take_number(u, 4, &number, err)); return push_int(u, (int32_t)(uint32_t)number, err);
    case 'K': AG_TRY(take_number(u, 1, &number, err)); return push_int(u, (int64_t)number, err);
    case 'M': AG_TRY(take_number(u, 2, &number, err)); return push_int(u, (int64_t)number, err);
    case 0x8a: return read_long1(u, err);
    case 'G': return read_float(u, err);
    case 'X': return read_text(u, 4, err);
    case 'U': return read_text(u, 1, err);
    case '(': return push_mark(u, err);
    case ']': return push(u, torch_node_create(u, AG_TORCH_LIST), err);
    case '}': return push(u, torch_node_create(u, AG_TORCH_DICT), err);
    case 0x8f: return push(u, torch_node_opaque(u, "set"), err);
    case ')': return push_tuple(u, NULL, 0, err);
    case 't': return read_tuple(u, err);
    case 0x85: return read_short_tuple(u, 1, err);
    case 0x86: return read_short_tuple(u, 2, err);
    case 0x87: return read_short_tuple(u, 3, err);
    case 'a': return read_item(u, AG_TORCH_LIST, 1, err);
    case 'e': return read_items(u, AG_TORCH_LIST, err);
    case 's': return read_item(u, AG_TORCH_DICT, 2, err);
    case 'u': return read_items(u, AG_TORCH_DICT, err);
    case 'q': return memo_put(u, 1, err);
    case 'r': return memo_put(u, 4, err);
    case 'h': return memo_get(u, 1, err);
    case 'j': return memo_get(u, 4, err);
    case 'c': return read_global(u, err);
    case 'R': return read_call(u, false, err);
    case 0x81: return read_call(u, true, err);
    case 'b': return read_build(u, err);
    case 'Q': return read_storage(u, err);
    default:
        return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl has opcode 0x%02x at byte %zu, which torch does not write and is not read", opcode,
                       u->at - 1);
    }
}

static ag_status run(unpickler *u, const ag_torch_value **root, ag_err *err)
{
    if (u->n < 2 || u->bytes[0] != 0x80 || u->bytes[1] != PROTOCOL)
        return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl is no pickle of protocol 2, the one that torch writes");
    u->at = 2;
    for (;;) {
        const unsigned char *opcode;
        AG_TRY(take(u, 1, &opcode, err));
        if (*opcode == '.') break;
        AG_TRY(run_opcode(u, *opcode, err));
        if (u->arena->total_bytes - u->bytes_before > MEMORY_BYTES)
            return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl makes more values than %d MiB hold", MEMORY_BYTES >> 20);
    }
    if (u->n_stack != 1 || u->n_marks != 0) return damaged(u, "values are left over at its end", err);
    if (u->at != u->n) return damaged(u, "bytes follow its end", err);
    *root = &u->stack[0]->value;
    return torch_node_check(u->stack[0], err);
}

ag_status ag_torch_unpickle(const ag_torch_value **root, const unsigned char *bytes, size_t n, const ag_torch_zip *zip, unsigned flags,
                            ag_arena *arena, ag_err *err)
{
    unpickler u = {.bytes = bytes, .n = n, .zip = zip, .flags = flags, .arena = arena, .bytes_before = arena->total_bytes};
    u.marks = ag_arena_array(arena, MOST_MARKS, sizeof *u.marks);
    u.stack_room = FIRST_STACKED;
    u.stack = malloc(u.stack_room * sizeof *u.stack); /* from the start: a mark on an empty stack points to its bottom */
    if (!u.stack) ag_out_of_memory(u.stack_room * sizeof *u.stack);
    *root = NULL;
    ag_status status = run(&u, root, err);
    free(u.stack);
    free(u.memo);
    return status;
}
