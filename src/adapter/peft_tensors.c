#include "adapter/peft_tensors.h"

#include "adapter/peft_io.h"
#include "base/fs.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------------------------- */
/* What wrappers put in front of a model's own paths: PEFT, DistributedDataParallel, torch.compile. */
static const char *const prefixes[] = {"base_model.model.", "module.", "_orig_mod."};

static const char *without_prefixes(const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (ag_str_starts(name, prefixes[i])) return without_prefixes(name + strlen(prefixes[i]));
    return name;
}

/* Takes `part`, which begins with a dot, out of `name` where it stands between dots or at the end. */
static void cut_out(char *name, const char *part)
{
    const size_t n = strlen(part);
    for (char *at = strstr(name, part); at; at = strstr(at + 1, part))
        if (at[n] == '.' || at[n] == '\0') {
            memmove(at, at + n, strlen(at + n) + 1);
            return;
        }
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* Every layout that PEFT and its users have saved, as PEFT saves it today. NULL: a tensor that no one uses. */
static const char *canonical(const char *found, ag_arena *arena)
{
    static const char *const of_pairs[] = {".lora_A", ".lora_B", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector"};
    const char *bare = without_prefixes(found);
    if (strstr(bare, ".original_module.")) return NULL;
    const bool has_model = ag_str_starts(bare, "model.") || ag_str_starts(bare, "lm_head");
    char *name = ag_arena_printf(arena, "%s%s", has_model ? "" : "model.", bare); /* saved from the model without its head */
    const bool is_saved = strstr(name, ".modules_to_save.") != NULL;
    cut_out(name, ".modules_to_save");
    bool is_of_pair = is_saved;
    for (size_t i = 0; i < sizeof of_pairs / sizeof *of_pairs; i++) is_of_pair = is_of_pair || strstr(name, of_pairs[i]);
    if (is_of_pair) cut_out(name, ".default"); /* the adapter's name */
    if (ends_with(name, ".lora_magnitude_vector.weight")) name[strlen(name) - strlen(".weight")] = '\0';
    return name;
}

/* ---- files -------------------------------------------------------------------------------------------------------------------- */
static ag_peft_tensor *add(ag_peft_tensors *out, const char *found)
{
    const char *name = canonical(found, &out->arena);
    if (!name) return NULL;
    ag_peft_tensor *t = &out->tensors[out->n++];
    t->name = name;
    t->found = found;
    return t;
}

static ag_status wrong_type(const ag_peft_tensors *out, const char *name, const char *type, ag_err *err)
{
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' is %s; adapters are read in F32, F16 and BF16", out->path, name, type);
}

static ag_status take_safetensors(ag_peft_tensors *out, ag_err *err)
{
    AG_TRY(ag_safetensors_open(&out->st, out->path, err));
    out->tensors = ag_arena_array(&out->arena, out->st.n_tensors, sizeof *out->tensors);
    for (size_t i = 0; i < out->st.n_tensors; i++) {
        const ag_st_tensor *from = &out->st.tensors[i];
        ag_peft_tensor *t = add(out, from->name);
        if (!t) continue;
        if (from->dtype != AG_ST_F32 && from->dtype != AG_ST_F16 && from->dtype != AG_ST_BF16)
            return wrong_type(out, from->name, ag_st_dtype_name(from->dtype), err);
        t->dtype = from->dtype;
        t->rank = from->rank;
        memcpy(t->dim, from->dim, sizeof from->dim);
        t->data = from->data;
    }
    return AG_OK;
}

static ag_status take_torch(ag_peft_tensors *out, ag_err *err)
{
    AG_TRY(ag_torch_open(&out->torch, out->path, 0, err));
    const ag_torch_value *root = out->torch.root;
    out->tensors = ag_arena_array(&out->arena, root->n, sizeof *out->tensors);
    for (uint32_t i = 0; i < root->n; i++) {
        const ag_torch_value *key = root->items[2 * i], *value = root->items[2 * i + 1];
        if (!ag_torch_is(key, AG_TORCH_STRING) || !ag_torch_is(value, AG_TORCH_TENSOR))
            return ag_fail(err, AG_E_FORMAT, "%s: must hold tensors by name, found %s under %s", out->path, ag_torch_describe(&out->arena, value),
                           ag_torch_describe(&out->arena, key));
        const ag_torch_view *from = value->tensor;
        ag_peft_tensor *t = add(out, key->text);
        if (!t) continue;
        if (from->dtype != AG_TORCH_F32 && from->dtype != AG_TORCH_F16 && from->dtype != AG_TORCH_BF16)
            return wrong_type(out, key->text, ag_torch_describe(&out->arena, value), err);
        if (!ag_torch_is_contiguous(from)) return ag_fail(err, AG_E_UNSUPPORTED, "%s: tensor '%s' is not contiguous", out->path, key->text);
        t->dtype = from->dtype == AG_TORCH_F32 ? AG_ST_F32 : from->dtype == AG_TORCH_F16 ? AG_ST_F16 : AG_ST_BF16;
        t->rank = from->rank;
        for (int d = 0; d < from->rank; d++) t->dim[d] = from->dim[d];
        t->data = from->data;
    }
    return AG_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const ag_peft_tensor *)a)->name, ((const ag_peft_tensor *)b)->name); }

/* PEFT itself saves the bias of a saved module under two names. */
static bool is_same(const ag_peft_tensor *a, const ag_peft_tensor *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank || memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) != 0) return false;
    return memcmp(a->data, b->data, ag_peft_tensor_count(a) * (a->dtype == AG_ST_F32 ? 4 : 2)) == 0;
}

static ag_status take(ag_peft_tensors *out, const char *dir, bool allow_pickle, ag_err *err)
{
    const char *pickled = ag_path_join(&out->arena, dir, AG_PEFT_PICKLED_FILE);
    const bool has_pickled = ag_path_is_file(pickled);
    out->path = ag_path_join(&out->arena, dir, AG_PEFT_WEIGHTS_FILE);
    if (ag_path_is_file(out->path)) {
        AG_TRY(take_safetensors(out, err));
    } else if (has_pickled && allow_pickle) {
        out->path = pickled;
        AG_TRY(take_torch(out, err));
    } else {
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no %s%s", dir, AG_PEFT_WEIGHTS_FILE,
                       has_pickled ? "; adapter_model.bin can hold code and is not read without --allow-unsafe-serialization, save the adapter as "
                                     "safetensors" : "");
    }
    qsort(out->tensors, out->n, sizeof *out->tensors, by_name);
    size_t n = 0;
    for (size_t i = 0; i < out->n; i++) {
        const ag_peft_tensor *t = &out->tensors[i], *before = n > 0 ? &out->tensors[n - 1] : NULL;
        if (before && strcmp(t->name, before->name) == 0) {
            if (is_same(t, before)) continue;
            return ag_fail(err, AG_E_FORMAT, "%s: tensors '%s' and '%s' are two for one place", out->path, before->found, t->found);
        }
        out->tensors[n++] = *t;
    }
    out->n = n;
    return AG_OK;
}

ag_status ag_peft_tensors_open(ag_peft_tensors *out, const char *dir, bool allow_pickle, ag_err *err)
{
    *out = (ag_peft_tensors){0};
    const ag_status status = take(out, dir, allow_pickle, err);
    if (status) ag_peft_tensors_close(out);
    return status;
}

void ag_peft_tensors_close(ag_peft_tensors *t)
{
    ag_safetensors_close(&t->st);
    ag_torch_close(&t->torch);
    ag_arena_free(&t->arena);
    *t = (ag_peft_tensors){0};
}

ag_peft_tensor *ag_peft_tensors_find(const ag_peft_tensors *t, const char *name)
{
    const ag_peft_tensor wanted = {.name = name};
    return t->n > 0 ? bsearch(&wanted, t->tensors, t->n, sizeof wanted, by_name) : NULL;
}

const char *ag_peft_tensor_shape(ag_arena *arena, const ag_peft_tensor *t)
{
    ag_st_tensor shape = {.dtype = t->dtype, .rank = t->rank};
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    return ag_st_shape_text(arena, &shape);
}

float ag_peft_tensor_number(const ag_peft_tensor *t, size_t i)
{
    float x;
    uint16_t half;
    if (t->dtype == AG_ST_F32) {
        memcpy(&x, t->data + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, t->data + 2 * i, sizeof half);
    return t->dtype == AG_ST_F16 ? ag_f16_to_f32(half) : ag_bf16_to_f32(half);
}

size_t ag_peft_tensor_count(const ag_peft_tensor *t)
{
    size_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= (size_t)t->dim[d];
    return n;
}
