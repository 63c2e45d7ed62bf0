/* What a tokenizer consists of; for the files of this folder. */
#ifndef AG_TOKENIZER_PARTS_H
#define AG_TOKENIZER_PARTS_H

#include "base/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/token_decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

typedef enum { AG_MODEL_BPE, AG_MODEL_UNIGRAM, AG_MODEL_WORDPIECE, AG_MODEL_WORDLEVEL } ag_model_kind;
enum { AG_FAST_SCANNERS = 4 };
/* Every place of a text is tried against whole tokens: their length bounds the time. */
enum { AG_ADDED_MAX_BYTES = 4096, AG_UNIGRAM_MAX_BYTES = 4096, AG_WORDPIECE_MAX_CHARS = 1000 };

struct ag_tokenizer {
    uint64_t serial; /* no two tokenizers of a process share it: caches know by it whose words they hold */
    char *name;
    bool from_gguf;

    ag_model_kind kind;
    ag_token_vocab vocab;
    ag_bpe bpe;
    ag_unigram unigram;
    ag_wordpiece wordpiece;
    char *unk_token;            /* of the model; NULL: none */

    ag_added_set added;
    ag_token_vocab added_texts; /* text to index of added.tokens */
    int32_t highest_added;      /* id; -1: none */
    int32_t n_ids;              /* highest id + 1 */
    int32_t *added_of_id;       /* index into added.tokens, or -1 */

    ag_normalizer normalizer;
    ag_pretokenizer pretokenizer;
    ag_post_processor post;
    ag_decoder decoder;
    char *normalizer_json, *pretokenizer_json, *post_json, *decoder_json, *model_json; /* as read; model without vocab and merges */

    int32_t special_id[AG_N_SPECIAL];
    char *special_text[AG_N_SPECIAL];

    char *bytes_blob;           /* what ids stand for inside a text */
    uint32_t *bytes_start;      /* by id, n_ids + 1 */
    uint32_t *bytes_length;
    bool byte_fallback_decoder; /* the decoder has ByteFallback */
    bool byte_level_decoder;    /* the only decoder is ByteLevel: texts are the bytes, end to end */

    /* The fast path of encode_fast.c: byte-level BPE behind scanners, with no rewriting but NFC. */
    bool fast, fast_nfc;
    struct {
        ag_split_scanner *scan; /* NULL: digits as the Digits pre-tokenizer sees them */
        bool contiguous;        /* Digits that are not individual */
    } scanners[AG_FAST_SCANNERS];
    size_t n_scanners;
};

struct ag_tokenizer_scratch {
    uint64_t serial;            /* of the tokenizer whose words the cache holds */
    struct ag_cache_entry *cache;
    ag_pieces pieces;
    ag_bpe_work bpe;
    ag_word_tokens word;
    ag_str repaired;            /* the text with malformed parts replaced */
    uint32_t *repaired_at;      /* by byte of it: where that stood in the given text */
    size_t room_repaired;
};

/* ---- loading (tokenizer_load.c) ----------------------------------------------------------------------------------- */
/* The four rule values of a tokenizer.json and its added tokens; the model and vocabulary must be there. */
AG_MUST_USE ag_status ag_tokenizer_set_rules(ag_tokenizer *t, const json_t *root, ag_err *err);
/* Adds one token outside the model as tokenizers does; -1 as its id asks for the next free one. The text is copied. */
AG_MUST_USE ag_status ag_tokenizer_add_token(ag_tokenizer *t, ag_added_token token, ag_err *err);
/* With the id it has, whatever that is; a text that was added before is AG_E_FORMAT. */
AG_MUST_USE ag_status ag_tokenizer_add_token_as(ag_tokenizer *t, ag_added_token token, ag_err *err);
void ag_tokenizer_index_ids(ag_tokenizer *t); /* from here on ids can be looked up */
/* When everything is in: tries, tables by id, the fast path. */
AG_MUST_USE ag_status ag_tokenizer_finish(ag_tokenizer *t, ag_err *err);
ag_tokenizer *ag_tokenizer_new(const char *name);

/* ---- encoding ------------------------------------------------------------------------------------------------------ */
/* The text as a whole, of which encode works on parts; and how far its code points have been counted. */
typedef struct {
    const ag_tokenizer *t;
    ag_tokenizer_scratch *s;
    const unsigned char *text; /* valid UTF-8 */
    size_t n;
    const ag_encode_options *options;
    ag_encoding *e;
    bool offsets;
    bool ascii;                /* every byte is a code point */
    size_t cursor_byte;
    uint32_t cursor_char;      /* code points before cursor_byte */
} ag_encode_run;
void ag_encoding_reserve(ag_encoding *e, size_t more);
/* Code points before a byte that starts a character. */
uint32_t ag_encode_char_at(ag_encode_run *r, size_t byte);
/* One token that covers text[start, end), whole characters; surface NULL: shown as the vocabulary's text. */
void ag_encode_push(ag_encode_run *r, int32_t id, size_t start, size_t end, const char *surface, size_t n_surface);
/* encode_fast.c: the tokens of text[start, end), in which there are no added tokens. */
void ag_encode_fast(ag_encode_run *r, size_t start, size_t end);
void ag_encode_fast_free(ag_tokenizer_scratch *s);

#endif
