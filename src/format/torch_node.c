#include "format/torch_node.h"

#include "format/little_endian.h"

#include <stdlib.h>
#include <string.h>

node *torch_node_create(unpickler *u, ag_torch_kind kind)
{
    node *x = ag_arena_alloc(u->arena, sizeof *x);
    x->value.kind = kind;
    return x;
}

void torch_items_push(ag_arena *arena, ag_torch_value *container, size_t at, ag_torch_value *item, bool is_whole)
{
    if (at == container->room) {
        size_t room = container->room ? 2 * container->room : 4;
        ag_torch_value **items = ag_arena_array(arena, room, sizeof *items);
        if (at) memcpy(items, container->items, at * sizeof *items);
        container->items = items;
        container->room = room;
    }
    container->items[at] = item;
    container->n += is_whole;
}

/* ---- names ---------------------------------------------------------------------------------------------------------------- */

static bool same(const char *text, const char *bytes, size_t n) { return strlen(text) == n && memcmp(text, bytes, n) == 0; }

node *torch_node_opaque(unpickler *u, const char *text)
{
    node *x = torch_node_create(u, AG_TORCH_OPAQUE);
    x->value.text = text;
    x->value.n_text = strlen(text);
    return x;
}

static node *create_global(unpickler *u, int global)
{
    node *x = torch_node_create(u, AG_TORCH_NONE);
    x->what = NODE_GLOBAL;
    x->global = global;
    return x;
}

/* What torch's weights_only unpickler allows, and NumPy's for generator states. */
static node *find_listed(unpickler *u, const char *module, size_t n_module, const char *name, size_t n_name)
{
    static const struct {
        const char *module, *name;
        int global;
        bool is_numpy;
    } known[] = {
        {"torch._utils", "_rebuild_tensor_v2", GLOBAL_REBUILD_TENSOR, false},
        {"torch._utils", "_rebuild_tensor", GLOBAL_REBUILD_OLD, false},
        {"torch._utils", "_rebuild_tensor_v3", GLOBAL_REBUILD_V3, false},
        {"torch._utils", "_rebuild_parameter", GLOBAL_REBUILD_PARAMETER, false},
        {"torch._utils", "_rebuild_parameter_with_state", GLOBAL_REBUILD_PARAMETER, false},
        {"torch._tensor", "_rebuild_from_type_v2", GLOBAL_REBUILD_FROM_TYPE, false},
        {"torch._utils", "_rebuild_sparse_tensor", GLOBAL_OPAQUE, false},
        {"torch._utils", "_rebuild_qtensor", GLOBAL_OPAQUE, false},
        {"torch._utils", "_rebuild_meta_tensor_no_storage", GLOBAL_OPAQUE, false},
        {"torch._utils", "_rebuild_wrapper_subclass", GLOBAL_OPAQUE, false},
        {"torch.serialization", "_get_layout", GLOBAL_OPAQUE, false},
        {"torch", "device", GLOBAL_OPAQUE, false},
        {"torch", "Size", GLOBAL_SIZE, false},
        {"torch", "Tensor", GLOBAL_CLASS, false},
        {"torch.nn.parameter", "Parameter", GLOBAL_CLASS, false},
        {"torch.storage", "UntypedStorage", GLOBAL_UNTYPED, false},
        {"torch", "UntypedStorage", GLOBAL_UNTYPED, false},
        {"collections", "OrderedDict", GLOBAL_ORDERED_DICT, false},
        {"collections", "Counter", GLOBAL_COUNTER, false},
        {"__builtin__", "set", GLOBAL_OPAQUE, false},
        {"__builtin__", "complex", GLOBAL_OPAQUE, false},
        {"__builtin__", "bytearray", GLOBAL_BYTEARRAY, false},
        {"builtins", "set", GLOBAL_OPAQUE, false},
        {"builtins", "complex", GLOBAL_OPAQUE, false},
        {"builtins", "bytearray", GLOBAL_BYTEARRAY, false},
        {"_codecs", "encode", GLOBAL_ENCODE, false},
        {"numpy._core.multiarray", "_reconstruct", GLOBAL_RECONSTRUCT, true},
        {"numpy.core.multiarray", "_reconstruct", GLOBAL_RECONSTRUCT, true}, /* before NumPy 2 */
        {"numpy", "ndarray", GLOBAL_NDARRAY, true},
        {"numpy", "dtype", GLOBAL_DTYPE, true},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (same(known[i].module, module, n_module) && same(known[i].name, name, n_name))
            return known[i].is_numpy && !(u->flags & AG_TORCH_NUMPY) ? NULL : create_global(u, known[i].global);
    return NULL;
}

node *torch_global_find(unpickler *u, const char *module, size_t n_module, const char *name, size_t n_name)
{
    static const char *const schemes[] = {"per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
                                          "per_channel_affine_float_qparams"};
    const bool in_torch = same("torch", module, n_module);
    for (int dtype = 0; dtype < AG_TORCH_N_DTYPES; dtype++) {
        const char *storage = ag_torch_dtype_storage((ag_torch_dtype)dtype);
        if (storage && same(storage, name, n_name) && (in_torch || same("torch.cuda", module, n_module)))
            return create_global(u, GLOBAL_STORAGE + dtype);
        if (in_torch && same(ag_torch_dtype_name((ag_torch_dtype)dtype), name, n_name)) {
            node *x = torch_node_opaque(u, ag_torch_dtype_name((ag_torch_dtype)dtype));
            x->global = GLOBAL_DTYPE_NAME + dtype;
            return x;
        }
    }
    for (size_t i = 0; in_torch && i < sizeof schemes / sizeof *schemes; i++)
        if (same(schemes[i], name, n_name)) return torch_node_opaque(u, schemes[i]);
    return find_listed(u, module, n_module, name, n_name);
}

/* ---- tensors -------------------------------------------------------------------------------------------------------------- */

static node *node_of(ag_torch_value *value) { return (node *)value; }

static bool is_plain(ag_torch_value *value, ag_torch_kind kind) { return node_of(value)->what == NODE_VALUE && value->kind == kind; }

/* The persistent id ("storage", torch.FloatStorage, "0", "cpu", 128) → the member data/0, which must have exactly those bytes. */
ag_status torch_node_storage(unpickler *u, node **storage, node *id, ag_err *err)
{
    ag_torch_value **part = id->value.items;
    if (!is_plain(&id->value, AG_TORCH_TUPLE) || id->value.n != 5 || !is_plain(part[0], AG_TORCH_STRING) ||
        strcmp(part[0]->text, "storage") || node_of(part[1])->what != NODE_GLOBAL || node_of(part[1])->global < GLOBAL_UNTYPED ||
        !is_plain(part[2], AG_TORCH_STRING) || !is_plain(part[3], AG_TORCH_STRING) || !is_plain(part[4], AG_TORCH_INT))
        return ag_fail(err, AG_E_FORMAT, "data.pkl refers to something that is no storage of a tensor");
    const char *key = part[2]->text;
    ag_str name = {0};
    ag_str_printf(&name, "data/%s", key);
    const ag_torch_member *m = ag_torch_zip_find(u->zip, name.text, name.n);
    ag_str_free(&name);
    if (!m || strlen(key) != part[2]->n_text)
        return ag_fail(err, AG_E_FORMAT, "storage data/%.40s is missing from the archive", key);
    node_storage *s = ag_arena_alloc(u->arena, sizeof *s);
    const bool untyped = node_of(part[1])->global == GLOBAL_UNTYPED;
    *s = (node_storage){.bytes = m->bytes, .n_elements = part[4]->integer, .untyped = untyped,
                        .dtype = untyped ? AG_TORCH_U8 : (ag_torch_dtype)(node_of(part[1])->global - GLOBAL_STORAGE)};
    uint64_t bytes;
    if (s->n_elements < 0 || __builtin_mul_overflow((uint64_t)s->n_elements, (uint64_t)ag_torch_dtype_bytes(s->dtype), &bytes) || bytes != m->n)
        return ag_fail(err, AG_E_FORMAT, "storage data/%.40s of the archive has %zu bytes, which are not %lld elements of %s", key, m->n,
                       (long long)s->n_elements, ag_torch_dtype_storage(s->dtype));
    *storage = torch_node_create(u, AG_TORCH_NONE);
    (*storage)->what = NODE_STORAGE;
    (*storage)->storage = s;
    return AG_OK;
}

static bool read_extents(int64_t *out, int *rank, ag_torch_value *tuple)
{
    if (!is_plain(tuple, AG_TORCH_TUPLE) || tuple->n > AG_TORCH_MAX_RANK) return false;
    for (uint32_t i = 0; i < tuple->n; i++) {
        if (!is_plain(tuple->items[i], AG_TORCH_INT) || tuple->items[i]->integer < 0) return false;
        out[i] = tuple->items[i]->integer;
    }
    *rank = (int)tuple->n;
    return true;
}

/* Whether every element that the view reaches lies in the storage. */
static bool is_inside(const ag_torch_view *v, int64_t offset, int64_t n_storage)
{
    if (offset < 0 || offset > n_storage) return false;
    int64_t last = offset, count = 1;
    for (int i = 0; i < v->rank; i++)
        if (v->dim[i] == 0) return true;
    for (int i = 0; i < v->rank; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(count, v->dim[i], &count)) return false;
        if (__builtin_mul_overflow(v->dim[i] - 1, v->stride[i], &reach) || __builtin_add_overflow(last, reach, &last)) return false;
    }
    return last < n_storage;
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]); _rebuild_tensor has the first four, _v3 the dtype in
 * place of metadata, for those that have no storage of their own. */
static ag_status rebuild_tensor(unpickler *u, node **result, int global, const ag_torch_value *args, ag_err *err)
{
    ag_torch_value **arg = args->items;
    const uint32_t least = global == GLOBAL_REBUILD_OLD ? 4 : global == GLOBAL_REBUILD_V3 ? 7 : 6;
    const uint32_t most = global == GLOBAL_REBUILD_OLD ? 4 : global == GLOBAL_REBUILD_V3 ? 8 : 7;
    ag_torch_view *v = ag_arena_alloc(u->arena, sizeof *v);
    int n_strides = 0;
    if (args->n < least || args->n > most || node_of(arg[0])->what != NODE_STORAGE || !is_plain(arg[1], AG_TORCH_INT) ||
        !read_extents(v->dim, &v->rank, arg[2]) || !read_extents(v->stride, &n_strides, arg[3]) || n_strides != v->rank)
        return ag_fail(err, AG_E_FORMAT, "data.pkl has a tensor whose storage, shape or strides make no sense (at most %d dimensions, "
                       "none negative)", AG_TORCH_MAX_RANK);
    const node_storage *s = node_of(arg[0])->storage;
    v->dtype = s->dtype;
    int64_t n_elements = s->n_elements;
    if (global == GLOBAL_REBUILD_V3) {
        const node *dtype = node_of(arg[6]);
        if (!is_plain(arg[6], AG_TORCH_OPAQUE) || dtype->global < GLOBAL_DTYPE_NAME || !s->untyped)
            return ag_fail(err, AG_E_FORMAT, "data.pkl has an untyped tensor without a type");
        v->dtype = (ag_torch_dtype)(dtype->global - GLOBAL_DTYPE_NAME);
        n_elements /= ag_torch_dtype_bytes(v->dtype);
    }
    int64_t offset = arg[1]->integer;
    if (!is_inside(v, offset, n_elements))
        return ag_fail(err, AG_E_FORMAT, "data.pkl has a tensor that reaches outside its storage of %lld elements (offset %lld)",
                       (long long)n_elements, (long long)offset);
    v->data = s->bytes + (size_t)offset * (size_t)ag_torch_dtype_bytes(v->dtype);
    *result = torch_node_create(u, AG_TORCH_TENSOR);
    (*result)->value.tensor = v;
    return AG_OK;
}

/* _rebuild_from_type_v2(function, class, arguments, state): a tensor with attributes, or of a subclass, that is what the function gives. */
static ag_status rebuild_from_type(unpickler *u, node **result, const ag_torch_value *args, ag_err *err)
{
    ag_torch_value **arg = args->items;
    if (args->n != 4 || node_of(arg[0])->what != NODE_GLOBAL || node_of(arg[0])->global > GLOBAL_REBUILD_PARAMETER ||
        node_of(arg[1])->what != NODE_GLOBAL || node_of(arg[1])->global != GLOBAL_CLASS || !is_plain(arg[2], AG_TORCH_TUPLE))
        return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl makes a tensor of a class in a way that torch does not");
    return torch_node_call(u, result, node_of(arg[0])->global, arg[2], err);
}

/* ---- NumPy's array of uint32, as numpy.random.get_state() holds it ---------------------------------------------------------- */

static ag_status wrong_array(ag_err *err)
{
    return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl has a NumPy array other than a one-dimensional one of uint32");
}

/* _codecs.encode(text, "latin1"): how protocol 2 writes bytes. */
static ag_status encode_latin1(unpickler *u, node **result, const ag_torch_value *args, ag_err *err)
{
    ag_torch_value **arg = args->items;
    if (args->n != 2 || !is_plain(arg[0], AG_TORCH_STRING) || !is_plain(arg[1], AG_TORCH_STRING) || (strcmp(arg[1]->text, "latin1") && strcmp(arg[1]->text, "latin-1")))
        return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl encodes something else than a text as latin1");
    char *bytes = ag_arena_alloc(u->arena, arg[0]->n_text + 1);
    size_t n = 0;
    for (size_t at = 0; at < arg[0]->n_text;) {
        uint32_t c = ag_utf8_next(arg[0]->text, arg[0]->n_text, &at);
        if (c > 0xff) return ag_fail(err, AG_E_FORMAT, "data.pkl encodes a character beyond latin1");
        bytes[n++] = (char)(unsigned char)c;
    }
    *result = torch_node_create(u, AG_TORCH_BYTES);
    (*result)->value.text = bytes;
    (*result)->value.n_text = n;
    return AG_OK;
}

static ag_status reconstruct(unpickler *u, node **result, const ag_torch_value *args, ag_err *err)
{
    ag_torch_value **arg = args->items;
    if (args->n != 3 || node_of(arg[0])->what != NODE_GLOBAL || node_of(arg[0])->global != GLOBAL_NDARRAY) return wrong_array(err);
    *result = torch_node_create(u, AG_TORCH_U32_ARRAY);
    (*result)->what = NODE_ARRAY;
    return AG_OK;
}

static ag_status numpy_dtype(unpickler *u, node **result, const ag_torch_value *args, ag_err *err)
{
    if (args->n < 1 || !is_plain(args->items[0], AG_TORCH_STRING) || strcmp(args->items[0]->text, "u4")) return wrong_array(err);
    *result = torch_node_create(u, AG_TORCH_BOOLEAN);
    (*result)->what = NODE_DTYPE;
    return AG_OK;
}

/* dtype's state (3, '<', None, None, None, -1, -1, 0): little-endian. */
static ag_status build_dtype(node *x, const ag_torch_value *state, ag_err *err)
{
    if (state->n < 2 || !is_plain(state->items[1], AG_TORCH_STRING) || strcmp(state->items[1]->text, "<")) return wrong_array(err);
    x->value.boolean = true;
    return AG_OK;
}

/* ndarray's state (1, (n,), dtype, is_fortran, bytes) */
static ag_status build_array(node *x, const ag_torch_value *state, ag_err *err)
{
    ag_torch_value **part = state->items;
    if (state->n != 5 || !is_plain(part[1], AG_TORCH_TUPLE) || part[1]->n != 1 || !is_plain(part[1]->items[0], AG_TORCH_INT) ||
        node_of(part[2])->what != NODE_DTYPE || !part[2]->boolean || !is_plain(part[4], AG_TORCH_BYTES))
        return wrong_array(err);
    int64_t n = part[1]->items[0]->integer;
    if (n < 0 || n > INT64_MAX / 4 || (uint64_t)n * 4 != part[4]->n_text)
        return ag_fail(err, AG_E_FORMAT, "data.pkl has a NumPy array of %lld words with %zu bytes", (long long)n, part[4]->n_text);
    x->what = NODE_VALUE;
    x->value.words = (const unsigned char *)part[4]->text;
    x->value.n_words = (size_t)n;
    return AG_OK;
}

/* ---- REDUCE and BUILD ------------------------------------------------------------------------------------------------------- */

/* OrderedDict() or OrderedDict([…]), Counter({…}), Size((2, 3)): the container that is given, or an empty dict. */
static bool take_container(unpickler *u, node **result, int global, const ag_torch_value *args)
{
    if (args->n == 0 && global != GLOBAL_SIZE) {
        *result = torch_node_create(u, AG_TORCH_DICT);
        return true;
    }
    const ag_torch_kind wanted = global == GLOBAL_SIZE ? AG_TORCH_TUPLE : AG_TORCH_DICT;
    if (args->n != 1 || !is_plain(args->items[0], wanted)) return false;
    *result = node_of(args->items[0]);
    return true;
}

ag_status torch_node_call(unpickler *u, node **result, int global, const ag_torch_value *args, ag_err *err)
{
    switch (global) {
    case GLOBAL_REBUILD_TENSOR:
    case GLOBAL_REBUILD_OLD:
    case GLOBAL_REBUILD_V3: return rebuild_tensor(u, result, global, args, err);
    case GLOBAL_REBUILD_FROM_TYPE: return rebuild_from_type(u, result, args, err);
    case GLOBAL_REBUILD_PARAMETER: /* (tensor, requires_grad, hooks[, state]): the tensor itself is what counts */
        if (args->n < 3 || args->n > 4 || !is_plain(args->items[0], AG_TORCH_TENSOR)) break;
        *result = node_of(args->items[0]);
        return AG_OK;
    case GLOBAL_ORDERED_DICT:
    case GLOBAL_COUNTER:
    case GLOBAL_SIZE:
        if (!take_container(u, result, global, args)) break;
        return AG_OK;
    case GLOBAL_OPAQUE: *result = torch_node_opaque(u, "value that is not looked into"); return AG_OK;
    case GLOBAL_BYTEARRAY: /* (bytes) or (text, "latin-1") */
        if (args->n == 1 && is_plain(args->items[0], AG_TORCH_BYTES)) {
            *result = node_of(args->items[0]);
            return AG_OK;
        }
        return encode_latin1(u, result, args, err);
    case GLOBAL_ENCODE: return encode_latin1(u, result, args, err);
    case GLOBAL_RECONSTRUCT: return reconstruct(u, result, args, err);
    case GLOBAL_DTYPE: return numpy_dtype(u, result, args, err);
    default: break;
    }
    return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl calls an allowed name in a way that torch does not");
}

ag_status torch_node_new(unpickler *u, node **result, int global, const ag_torch_value *args, ag_err *err)
{
    if ((global == GLOBAL_ORDERED_DICT || global == GLOBAL_COUNTER) && args->n == 0) return torch_node_call(u, result, global, args, err);
    if (global == GLOBAL_SIZE || global == GLOBAL_OPAQUE) return torch_node_call(u, result, global, args, err);
    return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl makes a new object of an allowed name in a way that torch does not");
}

ag_status torch_node_build(unpickler *u, node *x, node *state, ag_err *err)
{
    if (x->what == NODE_DTYPE && is_plain(&state->value, AG_TORCH_TUPLE)) return build_dtype(x, &state->value, err);
    if (x->what == NODE_ARRAY && is_plain(&state->value, AG_TORCH_TUPLE)) return build_array(x, &state->value, err);
    /* Attributes of an ordered dict (a module's _metadata) carry nothing that is read. */
    if (is_plain(&x->value, AG_TORCH_DICT) && is_plain(&state->value, AG_TORCH_DICT)) return AG_OK;
    if (is_plain(&x->value, AG_TORCH_OPAQUE)) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "data.pkl sets the state of something at byte %zu that torch gives none", u->at);
}

/* ---- the finished tree ------------------------------------------------------------------------------------------------------ */

static const uint64_t MOST_UNFOLDED = 1 << 26;

static int compare_keys(const void *a, const void *b)
{
    const ag_torch_value *x = *(ag_torch_value *const *)a, *y = *(ag_torch_value *const *)b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->kind == AG_TORCH_INT) return x->integer < y->integer ? -1 : x->integer > y->integer;
    size_t n = x->n_text < y->n_text ? x->n_text : y->n_text;
    int order = memcmp(x->text, y->text, n);
    return order ? order : x->n_text < y->n_text ? -1 : x->n_text > y->n_text;
}

static ag_status check_keys(const ag_torch_value *dict, ag_err *err)
{
    ag_torch_value **keys = malloc((dict->n + (size_t)1) * sizeof *keys);
    if (!keys) ag_out_of_memory(dict->n * sizeof *keys);
    ag_status status = AG_OK;
    for (uint32_t i = 0; i < dict->n && !status; i++) {
        keys[i] = dict->items[2 * i];
        if (!is_plain(keys[i], AG_TORCH_STRING) && !is_plain(keys[i], AG_TORCH_INT))
            status = ag_fail(err, AG_E_UNSUPPORTED, "data.pkl has a dict with a key that is neither a string nor an integer");
    }
    if (!status) qsort(keys, dict->n, sizeof *keys, compare_keys);
    for (uint32_t i = 1; i < dict->n && !status; i++)
        if (compare_keys(&keys[i - 1], &keys[i]) == 0) status = ag_fail(err, AG_E_FORMAT, "data.pkl has a dict with the same key twice");
    free(keys);
    return status;
}

static ag_status check_node(node *x, int depth, ag_err *err)
{
    if (x->what != NODE_VALUE) return ag_fail(err, AG_E_FORMAT, "data.pkl holds a bare name, storage or half an array among its values");
    if (x->value.kind != AG_TORCH_LIST && x->value.kind != AG_TORCH_TUPLE && x->value.kind != AG_TORCH_DICT) return AG_OK;
    if (x->check == 1) return ag_fail(err, AG_E_FORMAT, "data.pkl has a container that holds itself");
    if (depth + (x->check == 2 ? x->height : 1) > AG_TORCH_MAX_DEPTH)
        return ag_fail(err, AG_E_FORMAT, "data.pkl nests deeper than %d levels", AG_TORCH_MAX_DEPTH);
    if (x->check == 2) return AG_OK;
    x->check = 1;
    if (x->value.kind == AG_TORCH_DICT) AG_TRY(check_keys(&x->value, err));
    size_t n_items = x->value.kind == AG_TORCH_DICT ? 2 * (size_t)x->value.n : x->value.n;
    uint64_t n_unfolded = 1;
    int height = 1;
    for (size_t i = 0; i < n_items; i++) {
        node *item = node_of(x->value.items[i]);
        AG_TRY(check_node(item, depth + 1, err));
        bool is_container = item->check == 2;
        if (is_container && item->height + 1 > height) height = item->height + 1;
        n_unfolded += is_container ? item->n_unfolded : 1;
        if (n_unfolded > MOST_UNFOLDED)
            return ag_fail(err, AG_E_FORMAT, "data.pkl repeats its values more than %llu times", (unsigned long long)MOST_UNFOLDED);
    }
    x->n_unfolded = n_unfolded;
    x->height = (unsigned char)height;
    x->check = 2;
    return AG_OK;
}

ag_status torch_node_check(node *root, ag_err *err) { return check_node(root, 0, err); }
