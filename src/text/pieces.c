#include "text/pieces.h"

#include "base/arena.h"
#include "text/tokenizer.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

static void *grow(void *old, size_t *room, size_t need, size_t size)
{
    if (need <= *room) return old;
    size_t wider = *room ? *room : 64;
    while (wider < need) wider *= 2;
    void *grown = realloc(old, wider * size);
    if (!grown) ag_out_of_memory(wider * size);
    *room = wider;
    return grown;
}

static void aligned_reserve(ag_aligned *a, size_t more)
{
    size_t need = a->n + more, room = a->room;
    if (need <= room) return;
    a->text = grow(a->text, &room, need, 1);
    room = a->room;
    a->from = grow(a->from, &room, need, sizeof *a->from);
    room = a->room;
    a->to = grow(a->to, &room, need, sizeof *a->to);
    a->room = room;
}

static void push_piece(ag_piece **list, size_t *n, size_t *room, ag_piece piece)
{
    *list = grow(*list, room, *n + 1, sizeof **list);
    (*list)[(*n)++] = piece;
}

static void aligned_free(ag_aligned *a)
{
    free(a->text);
    free(a->from);
    free(a->to);
}

void ag_pieces_free(ag_pieces *p)
{
    aligned_free(&p->now);
    aligned_free(&p->next);
    free(p->pieces);
    free(p->next_pieces);
    free(p->spans);
    *p = (ag_pieces){0};
}

/* ---- filling --------------------------------------------------------------------------------------------------- */
void ag_pieces_begin(ag_pieces *p)
{
    p->now.n = p->n_pieces = 0;
    p->too_long = false;
}

void ag_pieces_add_original(ag_pieces *p, const unsigned char *text, size_t n, uint32_t origin, int32_t token)
{
    ag_aligned *a = &p->now;
    if (a->n + n > AG_TEXT_MAX) {
        p->too_long = true;
        return;
    }
    aligned_reserve(a, n);
    size_t start = a->n;
    memcpy(a->text + start, text, n);
    for (size_t at = 0; at < n;) {
        size_t bytes;
        ag_utf8_peek(text, at, &bytes);
        for (size_t k = 0; k < bytes; k++) {
            a->from[start + at + k] = origin + (uint32_t)at;
            a->to[start + at + k] = origin + (uint32_t)(at + bytes);
        }
        at += bytes;
    }
    a->n += n;
    push_piece(&p->pieces, &p->n_pieces, &p->room_pieces, (ag_piece){(uint32_t)start, (uint32_t)(start + n), origin, token});
}

/* ---- rewriting ------------------------------------------------------------------------------------------------- */
void ag_rewrite_begin(ag_pieces *p) { p->next.n = p->n_next = 0; }

static void copy_source(ag_pieces *p, size_t start, size_t n)
{
    ag_aligned *to = &p->next, *from = &p->now;
    if (to->n + n > AG_TEXT_MAX) {
        p->too_long = true;
        return;
    }
    aligned_reserve(to, n);
    memcpy(to->text + to->n, from->text + start, n);
    memcpy(to->from + to->n, from->from + start, n * sizeof *to->from);
    memcpy(to->to + to->n, from->to + start, n * sizeof *to->to);
    to->n += n;
}

bool ag_rewrite_piece(ag_pieces *p, size_t i)
{
    const ag_piece *piece = &p->pieces[i];
    uint32_t start = (uint32_t)p->next.n;
    push_piece(&p->next_pieces, &p->n_next, &p->room_next, (ag_piece){start, start, piece->origin, piece->token});
    p->source = piece;
    p->idx = 0;
    if (piece->token < 0) return true;
    copy_source(p, piece->start, piece->end - piece->start);
    ag_rewrite_piece_end(p);
    return false;
}

void ag_rewrite_drop(ag_pieces *p, size_t n_bytes)
{
    size_t left = p->source->end - p->source->start - p->idx;
    p->idx += n_bytes < left ? n_bytes : left;
}

static void drop_char(ag_pieces *p)
{
    if (p->idx >= p->source->end - p->source->start) return;
    size_t bytes;
    ag_utf8_peek(ag_piece_text(p, p->source), p->idx, &bytes);
    p->idx += bytes;
}

void ag_rewrite_put(ag_pieces *p, uint32_t c, int change)
{
    ag_aligned *to = &p->next;
    if (to->n + 4 > AG_TEXT_MAX) {
        p->too_long = true;
        return;
    }
    aligned_reserve(to, 4);
    size_t length = p->source->end - p->source->start, idx = p->idx;
    uint32_t from = p->source->origin, end = p->source->origin; /* new at the very start: stands for nothing */
    if (change > 0 || idx >= length) idx = idx > 0 ? idx - 1 : length;
    if (idx < length) from = p->now.from[p->source->start + idx], end = p->now.to[p->source->start + idx];
    size_t bytes = ag_utf8_put(to->text + to->n, c);
    for (size_t k = 0; k < bytes; k++) to->from[to->n + k] = from, to->to[to->n + k] = end;
    to->n += bytes;
    if (change <= 0) drop_char(p);
    for (; change < 0; change++) drop_char(p);
}

void ag_rewrite_keep(ag_pieces *p, size_t n_bytes)
{
    copy_source(p, p->source->start + p->idx, n_bytes);
    p->idx += n_bytes;
}

void ag_rewrite_piece_end(ag_pieces *p) { p->next_pieces[p->n_next - 1].end = (uint32_t)p->next.n; }

static void swap_pieces(ag_pieces *p)
{
    ag_piece *list = p->pieces;
    size_t room = p->room_pieces;
    p->pieces = p->next_pieces, p->room_pieces = p->room_next, p->n_pieces = p->n_next;
    p->next_pieces = list, p->room_next = room;
}

void ag_rewrite_end(ag_pieces *p)
{
    ag_aligned a = p->now;
    p->now = p->next;
    p->next = a;
    swap_pieces(p);
}

/* ---- cutting --------------------------------------------------------------------------------------------------- */
void ag_split_begin(ag_pieces *p) { p->n_next = 0; }

void ag_split_keep(ag_pieces *p, size_t i) { push_piece(&p->next_pieces, &p->n_next, &p->room_next, p->pieces[i]); }

void ag_spans_clear(ag_pieces *p) { p->n_spans = 0; }

void ag_spans_add(ag_pieces *p, size_t start, size_t end, bool match)
{
    p->spans = grow(p->spans, &p->room_spans, p->n_spans + 1, sizeof *p->spans);
    p->spans[p->n_spans++] = (ag_span){(uint32_t)start, (uint32_t)end, match};
}

void ag_split_part(ag_pieces *p, size_t i, size_t start, size_t end, int32_t token)
{
    if (start == end) return;
    const ag_piece *piece = &p->pieces[i];
    uint32_t at = piece->start + (uint32_t)start;
    push_piece(&p->next_pieces, &p->n_next, &p->room_next,
               (ag_piece){at, piece->start + (uint32_t)end, p->now.from[at], token});
}

/* The parts are made in place of the spans: a span is merged into its neighbour or stands for itself. */
static size_t merge_spans(ag_span *spans, size_t n, ag_split behavior)
{
    size_t out = 0;
    bool previous = false;
    if (behavior == AG_SPLIT_MERGED_WITH_NEXT) {
        size_t first = n; /* from the back: spans[first, n) are the parts */
        for (size_t k = n; k-- > 0;) {
            ag_span span = spans[k];
            if (span.match && !previous && first < n)
                spans[first].start = span.start;
            else
                spans[--first] = span;
            previous = span.match;
        }
        for (size_t k = first; k < n; k++) spans[out++] = spans[k];
        return out;
    }
    for (size_t k = 0; k < n; k++) {
        ag_span span = spans[k];
        bool joins = behavior == AG_SPLIT_CONTIGUOUS ? span.match == previous : span.match && !previous;
        if (joins && out > 0)
            spans[out - 1].end = span.end;
        else
            spans[out++] = span;
        previous = span.match;
    }
    return out;
}

void ag_split_apply(ag_pieces *p, size_t i, ag_split behavior)
{
    size_t n = p->n_spans;
    if (behavior == AG_SPLIT_CONTIGUOUS || behavior == AG_SPLIT_MERGED_WITH_PREVIOUS || behavior == AG_SPLIT_MERGED_WITH_NEXT)
        n = merge_spans(p->spans, n, behavior);
    for (size_t k = 0; k < n; k++)
        if (behavior != AG_SPLIT_REMOVED || !p->spans[k].match) ag_split_part(p, i, p->spans[k].start, p->spans[k].end, -1);
}

void ag_split_end(ag_pieces *p) { swap_pieces(p); }
