/* A text on its way to tokens: rewritten step by step and cut into pieces, with for every byte the range of the original text
 * that it stands for. This is the general path, which follows tokenizers' NormalizedString and PreTokenizedString step by step
 * so that offsets come out the same; encode_fast.c goes around it where nothing is rewritten. */
#ifndef AG_PIECES_H
#define AG_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t start, end; /* bytes of the text */
    uint32_t origin;     /* where its original starts, in bytes of the original text */
    int32_t token;       /* an added token's id; -1: text still to be tokenized */
} ag_piece;

/* What a pattern found: the text is cut into spans that are matches or lie between them. */
typedef struct {
    uint32_t start, end;
    bool match;
} ag_span;

typedef struct {
    unsigned char *text;
    uint32_t *from, *to; /* by byte of text: bytes of the original */
    size_t n, room;
} ag_aligned;

typedef struct {
    ag_aligned now, next; /* next is what a rewriting step writes */
    ag_piece *pieces, *next_pieces;
    size_t n_pieces, room_pieces, n_next, room_next;
    ag_span *spans;
    size_t n_spans, room_spans;
    size_t idx;           /* of the source, while a piece is rewritten: bytes read of it */
    const ag_piece *source;
    bool too_long;        /* the text grew over AG_TEXT_MAX: what follows is not to be used */
} ag_pieces;

void ag_pieces_free(ag_pieces *p);

/* ---- filling --------------------------------------------------------------------------------------------------- */
void ag_pieces_begin(ag_pieces *p);
/* A piece of the original, aligned with itself; token as in ag_piece. text is the original's bytes from `origin`. */
void ag_pieces_add_original(ag_pieces *p, const unsigned char *text, size_t n, uint32_t origin, int32_t token);

/* ---- rewriting: every piece without a token, one after the other -------------------------------------------------
 *     ag_rewrite_begin(p);
 *     for each piece i:  if (ag_rewrite_piece(p, i)) { … ag_rewrite_put(p, c, change) … ag_rewrite_piece_end(p); }
 *     ag_rewrite_end(p); */
void ag_rewrite_begin(ag_pieces *p);
/* Starts on piece i; false where it has a token and was copied as it is. */
bool ag_rewrite_piece(ag_pieces *p, size_t i);
/* Skips n source bytes that nothing stands for. */
void ag_rewrite_drop(ag_pieces *p, size_t n_bytes);
/* One character of the new text. change 0: it stands for the next character of the source; > 0: it is new and shares the range
 * of the character before; < 0: it stands for the next one and -change more that are gone. */
void ag_rewrite_put(ag_pieces *p, uint32_t c, int change);
/* n source bytes as they are. */
void ag_rewrite_keep(ag_pieces *p, size_t n_bytes);
void ag_rewrite_piece_end(ag_pieces *p);
void ag_rewrite_end(ag_pieces *p);

/* ---- cutting ----------------------------------------------------------------------------------------------------- */
typedef enum { AG_SPLIT_REMOVED, AG_SPLIT_ISOLATED, AG_SPLIT_MERGED_WITH_PREVIOUS, AG_SPLIT_MERGED_WITH_NEXT, AG_SPLIT_CONTIGUOUS } ag_split;
void ag_split_begin(ag_pieces *p);
/* Copies piece i as it is. */
void ag_split_keep(ag_pieces *p, size_t i);
void ag_spans_clear(ag_pieces *p);
void ag_spans_add(ag_pieces *p, size_t start, size_t end, bool match);
/* Cuts piece i by the spans (relative to it); empty parts vanish. */
void ag_split_apply(ag_pieces *p, size_t i, ag_split behavior);
/* A part [start, end) of piece i, relative to it, with a token or -1. */
void ag_split_part(ag_pieces *p, size_t i, size_t start, size_t end, int32_t token);
void ag_split_end(ag_pieces *p);

static inline const unsigned char *ag_piece_text(const ag_pieces *p, const ag_piece *piece) { return p->now.text + piece->start; }

#endif
