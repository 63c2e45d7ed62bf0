/* Text to ids: added tokens first, then every part between them by the fast path where it serves, else step by step. */
#include "text/tokenizer_parts.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* ---- the encoding ---------------------------------------------------------------------------------------------- */
static void *resized(void *old, size_t n, size_t size)
{
    void *grown = realloc(old, n * size);
    if (!grown) ag_out_of_memory(n * size);
    return grown;
}

void ag_encoding_reserve(ag_encoding *e, size_t more)
{
    if (e->n + more > e->room) {
        size_t room = e->room ? e->room : 256;
        while (room < e->n + more) room *= 2;
        e->ids = resized(e->ids, room, sizeof *e->ids);
        e->byte_start = resized(e->byte_start, room, sizeof *e->byte_start);
        e->byte_end = resized(e->byte_end, room, sizeof *e->byte_end);
        e->start = resized(e->start, room, sizeof *e->start);
        e->end = resized(e->end, room, sizeof *e->end);
        e->surface = resized(e->surface, room, sizeof *e->surface);
        e->room = room;
    }
}

void ag_encoding_clear(ag_encoding *e)
{
    e->n = 0;
    ag_str_clear(&e->surfaces);
}

void ag_encoding_free(ag_encoding *e)
{
    free(e->ids);
    free(e->byte_start);
    free(e->byte_end);
    free(e->start);
    free(e->end);
    free(e->surface);
    ag_str_free(&e->surfaces);
    *e = (ag_encoding){0};
}

ag_text ag_encoding_token(const ag_tokenizer *t, const ag_encoding *e, size_t i)
{
    if (!e->surface[i]) return ag_tokenizer_token_text(t, e->ids[i]);
    uint32_t n;
    const char *at = e->surfaces.text + e->surface[i] - 1;
    memcpy(&n, at, sizeof n);
    return (ag_text){at + sizeof n, n};
}

ag_tokenizer_scratch *ag_tokenizer_scratch_create(void)
{
    ag_tokenizer_scratch *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    return s;
}

void ag_tokenizer_scratch_free(ag_tokenizer_scratch **scratch)
{
    ag_tokenizer_scratch *s = *scratch;
    if (!s) return;
    ag_encode_fast_free(s);
    ag_pieces_free(&s->pieces);
    ag_bpe_work_free(&s->bpe);
    free(s->word.tokens);
    ag_str_free(&s->repaired);
    free(s->repaired_at);
    free(s);
    *scratch = NULL;
}

/* ---- offsets --------------------------------------------------------------------------------------------------- */
uint32_t ag_encode_char_at(ag_encode_run *r, size_t byte)
{
    if (r->ascii) return (uint32_t)byte;
    for (; r->cursor_byte < byte; r->cursor_byte++) r->cursor_char += (r->text[r->cursor_byte] & 0xc0) != 0x80;
    while (r->cursor_byte > byte) r->cursor_char -= (r->text[--r->cursor_byte] & 0xc0) != 0x80;
    return r->cursor_char;
}

void ag_encode_push(ag_encode_run *r, int32_t id, size_t start, size_t end, const char *surface, size_t n_surface)
{
    ag_encoding *e = r->e;
    ag_encoding_reserve(e, 1);
    size_t i = e->n++;
    e->ids[i] = id;
    if (!r->offsets) return;
    e->byte_start[i] = (uint32_t)start;
    e->byte_end[i] = (uint32_t)end;
    e->start[i] = ag_encode_char_at(r, start);
    e->end[i] = ag_encode_char_at(r, end);
    e->surface[i] = 0;
    if (!surface || e->surfaces.n > UINT32_MAX / 2) return;
    uint32_t n = (uint32_t)n_surface;
    e->surface[i] = (uint32_t)e->surfaces.n + 1;
    ag_str_add_n(&e->surfaces, (const char *)&n, sizeof n);
    ag_str_add_n(&e->surfaces, surface, n_surface);
}

/* An added token that covers text[start, end), shown as `shown`. */
static void push_added(ag_encode_run *r, int32_t index, size_t start, size_t end, const unsigned char *shown, size_t n)
{
    const ag_added_token *token = &r->t->added.tokens[index];
    bool same = token->n == n && memcmp(token->text, shown, n) == 0;
    ag_encode_push(r, token->id, start, end, same ? NULL : (const char *)shown, n);
}

/* ---- step by step ---------------------------------------------------------------------------------------------- */
static void find_normalized_added(ag_encode_run *r, ag_pieces *p)
{
    ag_split_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        ag_added_scan scan = {.set = &r->t->added,
                              .trie = &r->t->added.normalized,
                              .text = ag_piece_text(p, piece),
                              .n = piece->end - piece->start,
                              .from = p->now.from + piece->start,
                              .to = p->now.to + piece->start,
                              .options = r->options};
        while (ag_added_scan_next(&scan)) ag_split_part(p, i, scan.start, scan.end, scan.token);
    }
    ag_split_end(p);
}

static ag_status model_piece(ag_encode_run *r, const unsigned char *text, size_t n, ag_err *err)
{
    const ag_tokenizer *t = r->t;
    ag_word_tokens *word = &r->s->word;
    word->n = 0;
    if (t->kind == AG_MODEL_UNIGRAM) return ag_unigram_piece(&t->unigram, text, n, word, err);
    if (t->kind != AG_MODEL_BPE) return ag_wordpiece_word(&t->wordpiece, text, n, word, err);
    ag_bpe_work *w = &r->s->bpe;
    uint32_t at = 0;
    ag_bpe_word(&t->bpe, w, text, n);
    for (size_t k = 0; k < w->n; k++) {
        ag_word_tokens_push(word, (ag_word_token){w->ids[k], at, at + w->lengths[k], false});
        at += w->lengths[k];
    }
    return AG_OK;
}

static ag_status encode_pieces(ag_encode_run *r, size_t start, size_t end, ag_err *err)
{
    const ag_tokenizer *t = r->t;
    ag_pieces *p = &r->s->pieces;
    ag_pieces_begin(p);
    ag_pieces_add_original(p, r->text + start, end - start, (uint32_t)start, -1);
    AG_TRY(ag_normalizer_apply(&t->normalizer, p, err));
    if (t->added.normalized.n_patterns) find_normalized_added(r, p);
    AG_TRY(ag_pretokenizer_apply(&t->pretokenizer, p, err));
    if (p->too_long)
        return ag_fail(err, AG_E_DATA, "the text of %zu bytes grows over %zu bytes when %s normalizes it", r->n, AG_TEXT_MAX,
                       t->name);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        const unsigned char *text = ag_piece_text(p, piece);
        const uint32_t *from = p->now.from + piece->start, *to = p->now.to + piece->start;
        size_t n = piece->end - piece->start;
        if (n == 0) continue;
        if (piece->token >= 0) {
            push_added(r, piece->token, from[0], to[n - 1], text, n);
            continue;
        }
        AG_TRY(model_piece(r, text, n, err));
        for (size_t k = 0; k < r->s->word.n; k++) {
            ag_word_token w = r->s->word.tokens[k];
            ag_encode_push(r, w.id, from[w.start], to[w.end - 1], w.surface ? (const char *)text + w.start : NULL,
                           w.end - w.start);
        }
    }
    return AG_OK;
}

static ag_status encode_part(ag_encode_run *r, size_t start, size_t end, ag_err *err)
{
    const ag_tokenizer *t = r->t;
    if (!t->fast || (t->fast_nfc && !ag_nfc_surely(r->text + start, end - start))) return encode_pieces(r, start, end, err);
    if (!t->added.normalized.n_patterns) return ag_encode_fast(r, start, end), AG_OK;
    ag_added_scan scan = {.set = &t->added,
                          .trie = &t->added.normalized,
                          .text = r->text + start,
                          .n = end - start,
                          .origin = start,
                          .options = r->options};
    while (ag_added_scan_next(&scan)) {
        if (scan.token < 0)
            ag_encode_fast(r, start + scan.start, start + scan.end);
        else
            push_added(r, scan.token, start + scan.start, start + scan.end, scan.text + scan.start, scan.end - scan.start);
    }
    return AG_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */
static void push_affix(ag_encode_run *r, const int32_t *ids, size_t n)
{
    ag_encoding_reserve(r->e, n);
    for (size_t i = 0; i < n; i++) {
        size_t k = r->e->n++;
        r->e->ids[k] = ids[i];
        r->e->byte_start[k] = r->e->byte_end[k] = r->e->start[k] = r->e->end[k] = r->e->surface[k] = 0;
    }
}

static uint32_t moved(const ag_encode_run *r, uint32_t byte, uint32_t chars, bool back)
{
    while (chars > 0) {
        if (back) byte--;
        if (!back) byte++;
        if (byte == 0 || byte >= r->n || (r->text[byte] & 0xc0) != 0x80) chars--;
    }
    return byte;
}

/* The steps of the post-processor that trim, over the tokens from `first` on. */
static void trim_offsets(ag_encode_run *r, size_t first)
{
    const ag_post_processor *post = &r->t->post;
    ag_encoding *e = r->e;
    size_t in_front = 0;
    for (size_t s = 0; s < post->n; s++) {
        if (r->options->add_special) in_front += post->steps[s].n_before;
        if (!post->steps[s].trims) continue;
        for (size_t i = first; i < e->n; i++) {
            ag_text token = ag_encoding_token(r->t, e, i);
            uint32_t start, end;
            ag_post_trim(token, i == first && in_front == 0, post->steps[s].add_prefix_space, e->start[i], e->end[i], &start,
                         &end);
            e->byte_start[i] = moved(r, e->byte_start[i], start - e->start[i], false);
            e->byte_end[i] = moved(r, e->byte_end[i], e->end[i] - end, true);
            e->start[i] = start;
            e->end[i] = end;
        }
    }
}

static ag_status encode_valid(ag_encode_run *r, ag_err *err)
{
    const ag_tokenizer *t = r->t;
    bool affixes = r->options->add_special;
    for (size_t s = t->post.n; s-- > 0 && affixes;) push_affix(r, t->post.steps[s].before, t->post.steps[s].n_before);
    size_t first = r->e->n;
    ag_added_scan scan = {.set = &t->added, .trie = &t->added.raw, .text = r->text, .n = r->n, .options = r->options};
    while (ag_added_scan_next(&scan)) {
        if (scan.token < 0)
            AG_TRY(encode_part(r, scan.start, scan.end, err));
        else
            push_added(r, scan.token, scan.start, scan.end, r->text + scan.start, scan.end - scan.start);
    }
    if (r->offsets) trim_offsets(r, first);
    for (size_t s = 0; s < t->post.n && affixes; s++) push_affix(r, t->post.steps[s].after, t->post.steps[s].n_after);
    return AG_OK;
}

/* The text with every malformed part as U+FFFD, and where each of its bytes stood. */
static void repair(ag_tokenizer_scratch *s, const char *text, size_t n)
{
    ag_str_clear(&s->repaired);
    for (size_t at = 0; at < n;) {
        size_t from = at, before = s->repaired.n;
        ag_str_add_code_point(&s->repaired, ag_utf8_next(text, n, &at));
        if (s->repaired.n + 1 > s->room_repaired) {
            s->room_repaired = (s->repaired.n + 1) * 2;
            s->repaired_at = resized(s->repaired_at, s->room_repaired, sizeof *s->repaired_at);
        }
        for (size_t k = before; k < s->repaired.n; k++) s->repaired_at[k] = (uint32_t)from;
    }
    s->repaired_at[s->repaired.n] = (uint32_t)n;
}

static size_t place_in_repaired(const ag_tokenizer_scratch *s, size_t byte)
{
    size_t low = 0, high = s->repaired.n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->repaired_at[middle] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ag_status encode_malformed(ag_encode_run *r, ag_err *err)
{
    ag_tokenizer_scratch *s = r->s;
    repair(s, (const char *)r->text, r->n);
    r->text = (const unsigned char *)s->repaired.text;
    r->n = s->repaired.n;
    if (r->n > AG_TEXT_MAX)
        return ag_fail(err, AG_E_DATA, "the text takes more than %zu bytes once its malformed parts are replaced", AG_TEXT_MAX);
    ag_encode_options options = *r->options;
    size_t n_ranges = options.n_plain_ranges, first = r->e->n;
    ag_text_range *ranges = resized(NULL, n_ranges + 1, sizeof *ranges);
    for (size_t i = 0; i < n_ranges; i++)
        ranges[i] = (ag_text_range){place_in_repaired(s, options.plain_ranges[i].start),
                                    place_in_repaired(s, options.plain_ranges[i].end)};
    options.plain_ranges = ranges;
    r->options = &options;
    ag_status status = encode_valid(r, err);
    free(ranges);
    for (size_t i = first; i < r->e->n && r->offsets && !status; i++) {
        r->e->byte_start[i] = s->repaired_at[r->e->byte_start[i]];
        r->e->byte_end[i] = s->repaired_at[r->e->byte_end[i]];
    }
    return status;
}

static bool is_ascii(const unsigned char *text, size_t n)
{
    uint64_t any = 0, word;
    size_t at = 0;
    for (; at + 8 <= n; at += 8) {
        memcpy(&word, text + at, 8);
        any |= word;
    }
    for (; at < n; at++) any |= text[at];
    return !(any & 0x8080808080808080u);
}

ag_status ag_tokenizer_encode(const ag_tokenizer *t, ag_tokenizer_scratch *scratch, const char *text, size_t n,
                              const ag_encode_options *options, ag_encoding *e, ag_err *err)
{
    static const ag_encode_options usual = {0};
    if (n > AG_TEXT_MAX)
        return ag_fail(err, AG_E_DATA, "a text of %zu bytes is longer than the %zu that can be tokenized at once", n,
                       AG_TEXT_MAX);
    if (!options) options = &usual;
    const unsigned char *bytes = (const unsigned char *)(n ? text : "");
    ag_encode_run r = {.t = t,
                       .s = scratch,
                       .text = bytes,
                       .n = n,
                       .options = options,
                       .e = e,
                       .offsets = !options->ids_only,
                       .ascii = is_ascii(bytes, n)};
    size_t n_before = e->n, n_surfaces = e->surfaces.n;
    ag_status status = r.ascii || ag_utf8_valid(text, n) ? encode_valid(&r, err) : encode_malformed(&r, err);
    if (status) {
        e->n = n_before;
        e->surfaces.n = n_surfaces;
    }
    return status;
}
