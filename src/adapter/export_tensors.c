#include "adapter/export_tensors.h"

#include "base/fs.h"
#include "base/log.h"
#include "model/description_gguf.h"

#include <math.h>
#include <string.h>

/* Floats of a block of rows: enough for threads to share, small beside any model. */
enum { BLOCK_FLOATS = 1 << 20 };
/* Bytes that a weight takes at most in a type that is written. */
enum { MAX_BYTES_PER_WEIGHT = 4 };

bool ag_export_has_no_tokenizer(const ag_export_options *options, ag_arena *arena)
{
    const char *dir = options->base->path;
    if (options->text_path || options->base->source != AG_SOURCE_HF || ag_path_is_file(ag_path_join(arena, dir, "tokenizer.json")) ||
        ag_path_is_file(ag_path_join(arena, dir, "tokenizer.model")))
        return false;
    ag_log(AG_LOG_WARN, "%s has no tokenizer, so what is exported has none either", dir);
    return true;
}

/* ---- the list ------------------------------------------------------------------------------------------------------------ */
typedef struct {
    ag_export_tensor *tensors;
    int64_t n;
    ag_export_form form;
    const ag_export_options *options;
    const ag_family *family;
    ag_arena *arena;
} list;

const char *ag_export_kind_name(int kind)
{
    static const char *const others[] = {"embed_tokens", "lm_head", "norms", "biases"};
    return kind < AG_N_PROJ ? ag_projection_name((ag_projection)kind) : others[kind - AG_N_PROJ];
}

static ag_export_tensor *add(list *l, int kind, const char *hf_name, const char *gguf_name, const ag_weight *w)
{
    ag_export_tensor *t = &l->tensors[l->n++];
    *t = (ag_export_tensor){.hf_name = hf_name, .gguf_name = gguf_name, .w = *w, .kind = kind, .n_parts = 1};
    t->parts[0] = (ag_export_part){.w = *w, .kind = kind};
    return t;
}

static ag_export_tensor *add_vector(list *l, int kind, const char *hf_name, const char *gguf_name, const float *numbers, int64_t n)
{
    ag_export_tensor *t = add(l, kind, hf_name, gguf_name, &(ag_weight){.type = AG_W_F32, .N = n, .K = 1, .data = numbers});
    t->is_vector = true;
    return t;
}

static void add_norm(list *l, const char *hf_name, const char *gguf_name, const float *numbers, int64_t n)
{
    add_vector(l, AG_EXPORT_KIND_NORM, hf_name, gguf_name, numbers, n)->plus = l->form == AG_EXPORT_AS_HF && l->family->norms_from_one ? -1 : 0;
}

/* The projections [first, first + n) of layer i as one tensor. */
static void add_linear(list *l, int64_t i, const char *path, const char *gguf_part, ag_projection first, int n)
{
    const ag_layer *layer = &l->options->base->layers[i];
    const char *hf = ag_arena_printf(l->arena, "model.layers.%lld.%s", (long long)i, path);
    const char *gguf = ag_arena_printf(l->arena, "blk.%lld.%s", (long long)i, gguf_part);
    const bool is_rotated = n == 1 && (first == AG_PROJ_Q || first == AG_PROJ_K);
    ag_export_tensor *t = add(l, (int)first, ag_arena_printf(l->arena, "%s.weight", hf), ag_arena_printf(l->arena, "%s.weight", gguf),
                              &layer->proj[first]);
    t->is_rotated = is_rotated;
    t->n_parts = n;
    if (n > 1) t->w = (ag_weight){.K = layer->proj[first].K};
    for (int part = 0; part < n; part++) {
        const ag_projection p = first + (ag_projection)part;
        const ag_lora_view *pair = l->options->lora ? &l->options->lora[i].pair[p] : NULL;
        t->parts[part] = (ag_export_part){.w = layer->proj[p], .pair = pair && pair->R > 0 ? pair : NULL, .kind = (int)p};
        if (n > 1) t->w.N += layer->proj[p].N;
    }
    if (!layer->bias[first]) return;
    add_vector(l, AG_EXPORT_KIND_BIAS, ag_arena_printf(l->arena, "%s.bias", hf), ag_arena_printf(l->arena, "%s.bias", gguf), layer->bias[first],
               t->w.N)->is_rotated = is_rotated;
}

static void add_linears(list *l, int64_t i)
{
    const ag_family *f = l->family;
    const bool is_split = l->form == AG_EXPORT_AS_GGUF && !f->gguf_is_fused;
    for (int m = 0; m < f->n_modules; m++) {
        const ag_linear_module *module = &f->modules[m];
        if (!is_split || module->n_parts == 1) {
            add_linear(l, i, module->path, ag_linear_gguf_name(module), module->first, module->n_parts);
            continue;
        }
        for (int part = 0; part < module->n_parts; part++) {
            const ag_projection p = module->first + (ag_projection)part;
            add_linear(l, i, ag_projection_path(p), ag_projection_gguf_name(p), p, 1);
        }
    }
}

/* The embedding's pair as one beside a weight [V,C]: its rows are tokens, so A and B turn and change places. */
static const ag_lora_view *turned_pair(const ag_lora_view *pair, const ag_model *m, ag_arena *arena)
{
    const int64_t R = pair->R, V = m->d.V, C = m->d.C;
    float *a = ag_arena_array(arena, (size_t)(R * C), sizeof *a), *b = ag_arena_array(arena, (size_t)(V * R), sizeof *b);
    ag_lora_view *turned = ag_arena_alloc(arena, sizeof *turned);
    for (int64_t r = 0; r < R; r++) {
        for (int64_t c = 0; c < C; c++) a[r * C + c] = pair->b[c * R + r];
        for (int64_t v = 0; v < V; v++) b[v * R + r] = pair->a[r * V + v];
    }
    *turned = (ag_lora_view){.R = R, .a = a, .b = b, .scale = pair->scale};
    return turned;
}

void ag_export_tensors(ag_export_tensor **out, int64_t *n, const ag_export_options *options, ag_export_form form, ag_arena *arena)
{
    const ag_model *m = options->base;
    enum { OUTSIDE = 3 };
    list l = {.form = form, .options = options, .family = ag_family_of(&m->d), .arena = arena};
    l.tensors = ag_arena_array(arena, (size_t)(OUTSIDE + m->d.L * (AG_N_NORMS + 2 * AG_N_PROJ)), sizeof *l.tensors);
    ag_export_tensor *embed = add(&l, AG_EXPORT_KIND_EMBED, "model.embed_tokens.weight", "token_embd.weight", &m->embed);
    if (options->embed_lora) embed->parts[0].pair = turned_pair(options->embed_lora, m, arena);
    for (int64_t i = 0; i < m->d.L; i++) {
        add_linears(&l, i);
        for (int k = 0; k < AG_N_NORMS; k++) {
            const ag_norm norm = (ag_norm)k;
            if (ag_norm_width(&m->d, norm) > 0)
                add_norm(&l, ag_arena_printf(arena, "model.layers.%lld.%s.weight", (long long)i, l.family->norms[k]),
                         ag_arena_printf(arena, "blk.%lld.%s.weight", (long long)i, ag_norm_gguf_name(norm)), m->layers[i].norm[k],
                         ag_norm_width(&m->d, norm));
        }
    }
    add_norm(&l, "model.norm.weight", "output_norm.weight", m->final_norm, m->d.C);
    if (!m->d.tied) add(&l, AG_EXPORT_KIND_HEAD, "lm_head.weight", "output.weight", &m->head);
    *out = l.tensors;
    *n = l.n;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------ */
ag_status ag_export_buffer_create(ag_export_buffer *out, const ag_export_tensor *tensors, int64_t n, int64_t head_dim, ag_err *err)
{
    int64_t n_floats = BLOCK_FLOATS;
    for (int64_t i = 0; i < n; i++) {
        const int64_t least = tensors[i].w.K * (tensors[i].is_rotated ? head_dim : 1);
        if (least > n_floats) n_floats = least;
    }
    *out = (ag_export_buffer){.n_floats = n_floats};
    ag_layout l = {0};
    for (int pass = 0; pass < 2; pass++) {
        out->rows = ag_layout_place(&l, (size_t)n_floats * sizeof(float));
        out->decoded = ag_layout_place(&l, (size_t)n_floats * sizeof(float));
        out->encoded = ag_layout_place(&l, (size_t)n_floats * MAX_BYTES_PER_WEIGHT);
        if (pass == 0) {
            out->pages_bytes = l.bytes;
            AG_TRY(ag_pages_alloc(&out->pages, l.bytes, "blocks of rows to export", err));
            l = (ag_layout){.base = out->pages};
        }
    }
    return AG_OK;
}

void ag_export_buffer_free(ag_export_buffer *buffer)
{
    if (buffer->pages) ag_pages_free(buffer->pages, buffer->pages_bytes);
    *buffer = (ag_export_buffer){0};
}

typedef struct {
    const ag_export_tensor *t;
    const ag_export_part *part;
    ag_weight_type type;
    ag_weight order; /* only for ag_weight_stored_row */
    const ag_export_buffer *buffer;
    int n_threads;
    ag_export_sink *sink;
    void *user;
    ag_export_report *report;
} stream;

static ag_status does_not_fit(const stream *s, const float *row, const float *decoded, int64_t n, ag_err *err)
{
    for (int64_t k = 0; k < s->t->w.K; k++)
        if (!isfinite(decoded[k]))
            return ag_fail(err, AG_E_NUMERIC, "merged weight [%lld,%lld] of '%s' is %g, which %s cannot hold%s", (long long)n,
                           (long long)k, s->t->hf_name, (double)row[k], ag_weight_type_name(s->type),
                           isfinite(row[k]) ? "; choose another type" : "");
    return AG_OK;
}

/* Encodes a block's rows, each to its place, and decodes them again to see what rounding did. */
static ag_status encode_rows(void *user, float *rows, int64_t n0, int64_t n1, ag_err *err)
{
    const stream *s = user;
    const int64_t K = s->t->w.K, row_bytes = ag_weight_row_bytes(s->type, K);
    float *decoded = s->buffer->decoded;
    ag_status bad = AG_OK;
    if (s->t->plus != 0)
        for (int64_t n = 0; n < n1 - n0; n++) rows[n] += s->t->plus;
#pragma omp parallel for schedule(static) num_threads(s->n_threads) reduction(max : bad)
    for (int64_t n = n0; n < n1; n++) {
        unsigned char *to = s->buffer->encoded + (ag_weight_stored_row(&s->order, n) - n0) * row_bytes;
        const float *from = rows + (n - n0) * K;
        const ag_status status = ag_weight_quantize_row(to, s->type, from, K, NULL);
        bad = status > bad ? status : bad;
        const ag_weight one = {.type = s->type, .N = 1, .K = K, .data = to};
        if (!status) ag_weight_row(decoded + (n - n0) * K, &one, 0, 0, K);
    }
    for (int64_t n = n0; n < n1; n++) {
        const float *from = rows + (n - n0) * K;
        if (bad) {
            AG_TRY(does_not_fit(s, from, from, n, err));
            if (ag_weight_quantize_row(s->buffer->encoded, s->type, from, K, err))
                return ag_err_prefix(err, "merged row %lld of '%s'", (long long)n, s->t->hf_name);
            continue;
        }
        AG_TRY(does_not_fit(s, from, decoded + (n - n0) * K, n, err));
        ag_deviation_add(&s->report->rounding, decoded + (n - n0) * K, from, K);
        ag_deviation_add(&s->report->rounding_of[s->part->kind], decoded + (n - n0) * K, from, K);
    }
    return s->sink(s->user, s->buffer->encoded, (size_t)((n1 - n0) * row_bytes), err);
}

ag_status ag_export_tensor_write(const ag_export_tensor *t, ag_weight_type type, int rope_pairs_head_dim, const ag_export_buffer *buffer,
                                 int n_threads, ag_export_sink *sink, void *user, ag_export_report *report, ag_err *err)
{
    stream s = {.t = t, .type = type, .buffer = buffer, .n_threads = n_threads, .sink = sink, .user = user, .report = report};
    int64_t n_rows = buffer->n_floats / t->w.K;
    if (rope_pairs_head_dim > 0 && t->is_rotated) {
        s.order.rope_pairs_head_dim = rope_pairs_head_dim;
        n_rows -= n_rows % rope_pairs_head_dim; /* a block's rows must stay among themselves */
    }
    for (int i = 0; i < t->n_parts; i++) {
        s.part = &t->parts[i];
        AG_TRY(ag_merge_weight(&s.part->w, s.part->pair, buffer->rows, n_rows * t->w.K, n_threads, encode_rows, &s, err));
    }
    return AG_OK;
}

ag_status ag_export_measure_quantization(ag_export_report *report, const ag_export_options *options, ag_err *err)
{
    const ag_model *base = options->stored ? options->stored : options->base, *original = options->original;
    if (!original) return AG_OK;
    const bool is_same = base->d.L == original->d.L && base->d.C == original->d.C && base->d.H == original->d.H &&
                         base->d.G == original->d.G && base->d.D == original->d.D && base->d.F == original->d.F;
    if (!is_same)
        return ag_fail(err, AG_E_SHAPE, "%s and %s are not the same model: their shapes differ", base->path, original->path);
    ag_arena scratch = {0};
    const int64_t widest = base->d.F > base->d.H * base->d.D ? base->d.F : base->d.H * base->d.D;
    float *two_rows = ag_arena_array(&scratch, (size_t)(2 * (widest > base->d.C ? widest : base->d.C)), sizeof *two_rows);
    for (int64_t l = 0; l < base->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++)
            ag_deviation_add_weights(&report->quantization, &base->layers[l].proj[p], &original->layers[l].proj[p], two_rows);
    ag_arena_free(&scratch);
    return AG_OK;
}
