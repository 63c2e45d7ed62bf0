#include "format/torch_pickle.h"

#include "format/little_endian.h"

#include <string.h>

static void add_number(ag_str *out, uint64_t value, int n_bytes)
{
    unsigned char bytes[8];
    ag_little_write(bytes, value, n_bytes);
    ag_str_add_n(out, (const char *)bytes, (size_t)n_bytes);
}

static void add_text(ag_str *out, const char *text, size_t n)
{
    AG_ASSERT(n <= UINT32_MAX);
    ag_str_add_char(out, 'X'); /* BINUNICODE */
    add_number(out, n, 4);
    ag_str_add_n(out, text, n);
}

static void add_int(ag_str *out, int64_t value)
{
    if (value >= INT32_MIN && value <= INT32_MAX) {
        ag_str_add_char(out, 'J'); /* BININT */
        add_number(out, (uint64_t)value, 4);
    } else {
        ag_str_add(out, "\x8a\x08"); /* LONG1 of 8 bytes */
        add_number(out, (uint64_t)value, 8);
    }
}

static void add_float(ag_str *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    ag_str_add_char(out, 'G'); /* BINFLOAT: big-endian */
    for (int i = 7; i >= 0; i--) ag_str_add_char(out, (char)(unsigned char)(bits >> 8 * i));
}

static void add_extents(ag_str *out, const int64_t *values, int n)
{
    ag_str_add_char(out, '(');
    for (int i = 0; i < n; i++) add_int(out, values[i]);
    ag_str_add_char(out, 't');
}

static size_t keep_view(ag_torch_views *views, const ag_torch_view *view)
{
    if (views->n == views->room) {
        size_t room = views->room ? 2 * views->room : 64;
        const ag_torch_view **grown = ag_arena_array(views->arena, room, sizeof *grown);
        if (views->n) memcpy(grown, views->views, views->n * sizeof *grown);
        views->views = grown;
        views->room = room;
    }
    views->views[views->n] = view;
    return views->n++;
}

/* torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), the storage by its persistent id */
static void add_tensor(ag_str *out, const ag_torch_view *view, ag_torch_views *views)
{
    AG_ASSERT(ag_torch_is_contiguous(view));
    ag_str key = {0};
    ag_str_printf(&key, "%zu", keep_view(views, view));
    ag_str_add(out, "ctorch._utils\n_rebuild_tensor_v2\n((");
    add_text(out, "storage", 7);
    ag_str_printf(out, "ctorch\n%s\n", ag_torch_dtype_storage(view->dtype));
    add_text(out, key.text, key.n);
    add_text(out, "cpu", 3);
    add_int(out, ag_torch_count(view));
    ag_str_add(out, "tQ");
    add_int(out, 0);
    add_extents(out, view->dim, view->rank);
    add_extents(out, view->stride, view->rank);
    ag_str_add(out, "\x89" "ccollections\nOrderedDict\n(tRtR");
    ag_str_free(&key);
}

static void add_value(ag_str *out, const ag_torch_value *value, ag_torch_views *views)
{
    switch (value->kind) {
    case AG_TORCH_NONE: ag_str_add_char(out, 'N'); return;
    case AG_TORCH_BOOLEAN: ag_str_add(out, value->boolean ? "\x88" : "\x89"); return;
    case AG_TORCH_INT: add_int(out, value->integer); return;
    case AG_TORCH_FLOAT: add_float(out, value->real); return;
    case AG_TORCH_STRING: add_text(out, value->text, value->n_text); return;
    case AG_TORCH_TENSOR: add_tensor(out, value->tensor, views); return;
    case AG_TORCH_LIST:
    case AG_TORCH_TUPLE:
        ag_str_add(out, value->kind == AG_TORCH_LIST ? "](" : "(");
        for (uint32_t i = 0; i < value->n; i++) add_value(out, value->items[i], views);
        ag_str_add_char(out, value->kind == AG_TORCH_LIST ? 'e' : 't');
        return;
    case AG_TORCH_DICT:
        ag_str_add(out, "}(");
        for (size_t i = 0; i < 2 * (size_t)value->n; i++) add_value(out, value->items[i], views);
        ag_str_add_char(out, 'u');
        return;
    case AG_TORCH_BYTES:
    case AG_TORCH_OPAQUE:
    case AG_TORCH_U32_ARRAY: break;
    }
    AG_ASSERT(!"bytes, NumPy arrays and the like are only read");
}

void ag_torch_pickle(ag_str *out, const ag_torch_value *value, ag_torch_views *views)
{
    ag_str_add(out, "\x80\x02"); /* PROTO 2 */
    add_value(out, value, views);
    ag_str_add_char(out, '.'); /* STOP */
}
