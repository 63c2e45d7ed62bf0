#include "data/examples.h"

#include "base/arena.h"
#include "data/row_encoder.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 64 }; /* rows that a thread takes at a time */

/* What one chunk of rows gave, or the error of its first wrong row. */
typedef struct {
    int32_t *ids;
    uint8_t *target;
    size_t n, room;
    uint32_t length[CHUNK_ROWS];
    int64_t n_cut, n_cut_tokens, first_cut_line, n_chat, n_plain_chat;
} chunk;

typedef struct {
    const ag_rows *rows;
    const ag_examples_options *options;
    chunk *chunks;
    size_t n_chunks;
    size_t bad_row; /* the lowest wrong row so far; rows->n: none */
    ag_err bad;     /* its error */
} job;

static void append(chunk *c, const ag_row_encoder *encoder, size_t n)
{
    if (c->room - c->n < n) {
        c->room = 2 * c->room + n + 4096;
        c->ids = realloc(c->ids, c->room * sizeof *c->ids);
        c->target = realloc(c->target, c->room);
        if (!c->ids || !c->target) ag_out_of_memory(c->room * sizeof *c->ids);
    }
    memcpy(c->ids + c->n, encoder->ids, n * sizeof *c->ids);
    memcpy(c->target + c->n, encoder->target, n);
    c->n += n;
}

static ag_status check_row(const ag_row_encoder *encoder, const ag_row *row, size_t n, ag_err *err)
{
    const ag_examples_options *o = encoder->options;
    for (size_t i = 0; o->n_vocab > 0 && i < n; i++)
        if (encoder->ids[i] < 0 || encoder->ids[i] >= o->n_vocab)
            return ag_row_encoder_fail(encoder, row, err,
                                       "the tokenizer gives id %d, and the model has embeddings for ids below %lld; the "
                                       "tokenizer belongs to another model",
                                       (int)encoder->ids[i], (long long)o->n_vocab);
    if (o->allow_no_target || memchr(encoder->target, 1, n)) return AG_OK;
    if (n < encoder->n && memchr(encoder->target, 1, encoder->n))
        return ag_row_encoder_fail(encoder, row, err,
                                   "the row has %zu tokens, and none of the first %zu, which 'max_seq_length' keeps, "
                                   "carries loss; raise the limit or shorten the row",
                                   encoder->n, n);
    return ag_row_encoder_fail(encoder, row, err, "no token of the row carries loss%s",
                               o->assistant_only ? ": it has no assistant message" : ": one token alone predicts nothing");
}

static ag_status add_row(const job *j, ag_row_encoder *encoder, ag_row *row, chunk *c, size_t r, ag_err *err)
{
    const ag_examples_options *o = j->options;
    ag_row_rules rules = {
        .text_field = o->text_field, .completion_only = o->completion_only, .assistant_only = o->assistant_only};
    AG_TRY(ag_row_read(row, j->rows, r, &rules, err));
    AG_TRY(ag_row_encode(encoder, row, err));
    size_t n = encoder->n;
    if ((uint64_t)n > (uint64_t)o->max_seq_length) n = (size_t)o->max_seq_length;
    if (n > UINT32_MAX) return ag_row_encoder_fail(encoder, row, err, "the row has %zu tokens, more than can be counted", n);
    AG_TRY(check_row(encoder, row, n, err));
    if (n < encoder->n) {
        if (c->n_cut++ == 0) c->first_cut_line = (int64_t)row->number;
        c->n_cut_tokens += (int64_t)(encoder->n - n);
    }
    c->n_chat += row->form == AG_ROW_MESSAGES;
    c->n_plain_chat += encoder->plain_chat;
    append(c, encoder, n);
    c->length[r % CHUNK_ROWS] = (uint32_t)n;
    return AG_OK;
}

/* Rows of one chunk, up to its first wrong one. A chunk behind a wrong row that is known already is left out: the error that
 * is reported is the lowest row's, whoever found it first. */
static void run_chunk(job *j, ag_row_encoder *encoder, size_t at)
{
    size_t first = at * CHUNK_ROWS, end = first + CHUNK_ROWS < j->rows->n ? first + CHUNK_ROWS : j->rows->n, bad_row;
#pragma omp atomic read
    bad_row = j->bad_row;
    if (bad_row < first) return;
    for (size_t r = first; r < end; r++) {
        ag_row row = {0};
        ag_err err = {0};
        ag_status status = add_row(j, encoder, &row, &j->chunks[at], r, &err);
        ag_row_clear(&row);
        if (!status) continue;
#pragma omp critical(ag_examples_bad_row)
        if (r < j->bad_row) {
#pragma omp atomic write
            j->bad_row = r;
            j->bad = err;
        }
        return;
    }
}

static void run(job *j)
{
    int n_threads = j->options->n_threads > 0 ? j->options->n_threads : 1;
    if ((size_t)n_threads > j->n_chunks) n_threads = (int)j->n_chunks;
#pragma omp parallel num_threads(n_threads)
    {
        ag_row_encoder encoder;
        ag_row_encoder_init(&encoder, j->options, j->rows->path);
#pragma omp for schedule(dynamic, 1)
        for (size_t at = 0; at < j->n_chunks; at++) run_chunk(j, &encoder, at);
        ag_row_encoder_deinit(&encoder);
    }
}

/* ---- putting it together ------------------------------------------------------------------------------------------- */

static void place(ag_examples *x, ag_layout *l)
{
    x->ids = ag_layout_place(l, (size_t)x->n_tokens * sizeof *x->ids);
    x->target_bits = ag_layout_place(l, ((size_t)x->n_tokens + 63) / 64 * sizeof *x->target_bits);
    x->offset = ag_layout_place(l, ((size_t)x->n + 1) * sizeof *x->offset);
    x->line = ag_layout_place(l, (size_t)x->n * sizeof *x->line);
}

static void add_chunk(ag_examples *x, const ag_rows *rows, const chunk *c, size_t first)
{
    int64_t at = x->offset[first];
    size_t end = first + CHUNK_ROWS < rows->n ? first + CHUNK_ROWS : rows->n;
    if (c->n) memcpy(x->ids + at, c->ids, c->n * sizeof *x->ids);
    for (size_t t = 0; t < c->n; t++) {
        x->target_bits[(at + (int64_t)t) >> 6] |= (uint64_t)c->target[t] << ((at + (int64_t)t) & 63);
        x->n_targets += c->target[t];
    }
    for (size_t r = first; r < end; r++) {
        int64_t n = c->length[r - first];
        x->offset[r + 1] = x->offset[r] + n;
        x->line[r] = rows->line[r].number < UINT32_MAX ? (uint32_t)rows->line[r].number : UINT32_MAX;
        x->longest = n > x->longest ? n : x->longest;
        x->shortest = r == 0 || n < x->shortest ? n : x->shortest;
    }
    if (x->n_cut == 0) x->first_cut_line = c->first_cut_line;
    x->n_cut += c->n_cut;
    x->n_cut_tokens += c->n_cut_tokens;
    x->n_chat += c->n_chat;
    x->n_plain_chat += c->n_plain_chat;
}

static ag_status join(ag_examples **out, const job *j, ag_err *err)
{
    ag_examples sizes = {.n = (int64_t)j->rows->n};
    for (size_t at = 0; at < j->n_chunks; at++) sizes.n_tokens += (int64_t)j->chunks[at].n;
    ag_layout l = {0};
    size_t at_self = sizeof(ag_examples);
    (void)ag_layout_place(&l, at_self);
    place(&sizes, &l);
    void *block;
    AG_TRY(ag_pages_alloc(&block, l.bytes, "the tokenized dataset", err));
    ag_examples *x = block;
    *x = (ag_examples){.n = sizes.n, .n_tokens = sizes.n_tokens, .bytes = l.bytes};
    l = (ag_layout){.base = block};
    (void)ag_layout_place(&l, at_self);
    place(x, &l);
    for (size_t at = 0; at < j->n_chunks; at++) {
        add_chunk(x, j->rows, &j->chunks[at], at * CHUNK_ROWS);
        free(j->chunks[at].ids);
        free(j->chunks[at].target);
        j->chunks[at].ids = NULL;
        j->chunks[at].target = NULL;
    }
    *out = x;
    return AG_OK;
}

/* Over the rows in order, so in one thread; rows are read again rather than kept. */
static ag_status digest_prepared(ag_examples *x, const ag_rows *rows, const ag_examples_options *o, ag_err *err)
{
    ag_row_rules rules = {.text_field = o->text_field, .completion_only = true};
    ag_sha256_state *sha = ag_sha256_begin();
    ag_str text = {0};
    ag_status status = AG_OK;
    for (int64_t r = 0; !status && r < x->n; r++) {
        ag_row row = {0};
        status = ag_row_read(&row, rows, (size_t)r, &rules, err);
        if (status) break;
        ag_str_clear(&text);
        ag_completion_write(&row, x, r, &text);
        ag_sha256_add(sha, text.text, text.n);
        ag_row_clear(&row);
    }
    x->prepared = ag_sha256_end(sha);
    ag_str_free(&text);
    return status;
}

ag_status ag_examples_make(ag_examples **out, const ag_rows *rows, const ag_examples_options *options, ag_err *err)
{
    AG_ASSERT(options->max_seq_length > 0 && !(options->completion_only && options->assistant_only));
    job j = {.rows = rows, .options = options, .n_chunks = (rows->n - 1) / CHUNK_ROWS + 1, .bad_row = rows->n};
    *out = NULL;
    j.chunks = calloc(j.n_chunks, sizeof *j.chunks);
    if (!j.chunks) ag_out_of_memory(j.n_chunks * sizeof *j.chunks);
    run(&j);
    ag_status status = AG_OK;
    if (j.bad_row < rows->n) {
        if (err) *err = j.bad;
        status = j.bad.code;
    }
    if (!status) status = join(out, &j, err);
    for (size_t at = 0; at < j.n_chunks; at++) {
        free(j.chunks[at].ids);
        free(j.chunks[at].target);
    }
    free(j.chunks);
    if (!status && options->completion_only) status = digest_prepared(*out, rows, options, err);
    if (status) ag_examples_free(out);
    return status;
}

void ag_examples_free(ag_examples **examples)
{
    if (!*examples) return;
    ag_pages_free(*examples, (*examples)->bytes);
    *examples = NULL;
}
