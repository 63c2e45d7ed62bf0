/* Text to token ids and back, exactly as the tokenizer's own library does it.
 *
 * A tokenizer is made from the bytes of a tokenizer.json (Hugging Face tokenizers; tokenizer_config.json and
 * special_tokens_map.json beside it name its special tokens) or from the tokenizer arrays of a GGUF file. All rules come from
 * the file: normalizers, pre-tokenizers, the model (BPE, Unigram, WordPiece, WordLevel), post-processor, decoder, added tokens.
 * A rule that is not known is refused by name when the tokenizer is made; nothing is approximated.
 *
 *     ag_tokenizer *t = NULL;
 *     AG_TRY(ag_tokenizer_from_json(&t, &(ag_tokenizer_files){.name = path, .tokenizer = map.bytes, .n_tokenizer = map.n},
 *                                    err));
 *     ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();   // one per thread
 *     ag_encoding e = {0};
 *     AG_TRY(ag_tokenizer_encode(t, scratch, text, n, &(ag_encode_options){.add_special = true}, &e, err));
 *     … e.ids[0 … e.n) …
 *     ag_encoding_free(&e);
 *     ag_tokenizer_scratch_free(&scratch);
 *     ag_tokenizer_free(&t);
 *
 * A tokenizer never changes after it was made: any number of threads may use one, each with a scratch of its own. It keeps
 * nothing of the bytes it was made from. Text is hostile: any bytes are taken; malformed UTF-8 counts as U+FFFD, one for each
 * maximal invalid part (as Python's errors="replace"). */
#ifndef AG_TOKENIZER_H
#define AG_TOKENIZER_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ag_tokenizer ag_tokenizer;
typedef struct ag_tokenizer_scratch ag_tokenizer_scratch;

/* ---- making one ------------------------------------------------------------------------------------------------ */
typedef struct {
    const char *name;              /* of tokenizer.json, for sentences: its path */
    const char *tokenizer;         /* bytes of tokenizer.json */
    size_t n_tokenizer;
    const char *config;            /* bytes of tokenizer_config.json, or NULL */
    size_t n_config;
    const char *special_tokens;    /* bytes of special_tokens_map.json, or NULL */
    size_t n_special_tokens;
} ag_tokenizer_files;
AG_MUST_USE ag_status ag_tokenizer_from_json(ag_tokenizer **out, const ag_tokenizer_files *files, ag_err *err);

/* A piece of text that is not NUL-terminated. */
typedef struct {
    const char *text;
    size_t n;
} ag_text;

enum { AG_TOKEN_NORMAL = 1, AG_TOKEN_UNKNOWN, AG_TOKEN_CONTROL, AG_TOKEN_USER_DEFINED, AG_TOKEN_UNUSED, AG_TOKEN_BYTE }; /* GGUF's */

/* The tokenizer.ggml.* values of a GGUF file, as plain arrays. Filled by whoever reads the file; ag_tokenizer_from_gguf borrows
 * them only while it runs. */
typedef struct {
    const char *name;              /* for sentences: the file's path */
    const char *model;             /* "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE by scores) */
    const char *pre;               /* names the split rules of "gpt2"; NULL where the file has none */
    size_t n_tokens;
    const ag_text *tokens;
    const int32_t *types;          /* AG_TOKEN_…, or NULL: all normal */
    const float *scores;           /* needed by "llama", else NULL */
    size_t n_merges;
    const ag_text *merges;         /* "a b" */
    int64_t bos_id, eos_id, pad_id, unk_id; /* -1 where the file has none */
    int add_bos, add_eos, add_space_prefix; /* 0, 1, or -1 where the file does not say: then the model's own rule */
} ag_gguf_vocab;
/* An unknown model or pre name is AG_E_UNSUPPORTED; the sentence lists the known ones. */
AG_MUST_USE ag_status ag_tokenizer_from_gguf(ag_tokenizer **out, const ag_gguf_vocab *vocab, ag_err *err);

void ag_tokenizer_free(ag_tokenizer **t);

/* ---- text to ids ----------------------------------------------------------------------------------------------- */
/* A byte range of a text. */
typedef struct {
    size_t start, end;
} ag_text_range;

typedef struct {
    bool add_special;              /* run the post-processor: BOS, EOS … */
    bool plain;                    /* special tokens written out in the text are text, not special tokens */
    const ag_text_range *plain_ranges; /* the same for parts of the text only, ascending and apart: what users wrote inside a
                                    * rendered conversation. A special token that touches such a range is text; everything
                                    * else is as without ranges. */
    size_t n_plain_ranges;
    bool ids_only;                 /* offsets and surfaces are not wanted: faster */
} ag_encode_options;

/* Parallel arrays of n tokens, owned by the encoding. Clearing it (n = 0) keeps the room for the next text. With ids_only the
 * other arrays are not filled. Offsets are [start, end) in the given text, in bytes and in code points, as Encoding.offsets of
 * tokenizers gives them (a token that is part of a character covers the whole character; tokens of the post-processor
 * have 0, 0). */
typedef struct {
    size_t n, room;
    int32_t *ids;
    uint32_t *byte_start, *byte_end;
    uint32_t *start, *end;         /* code points */
    uint32_t *surface;             /* see ag_encoding_token */
    ag_str surfaces;
} ag_encoding;

ag_tokenizer_scratch *ag_tokenizer_scratch_create(void);
void ag_tokenizer_scratch_free(ag_tokenizer_scratch **scratch);

/* Appends the tokens of text[0, n) to *e. options may be NULL: no special tokens added, those in the text recognised.
 * A text over AG_TEXT_MAX bytes is AG_E_DATA; a split pattern that runs into its match limit is AG_E_DATA; a character that the
 * model has no token for and no unknown token is dropped, as the original does. On failure *e is as long as before. */
#define AG_TEXT_MAX ((size_t)1 << 30)
AG_MUST_USE ag_status ag_tokenizer_encode(const ag_tokenizer *t, ag_tokenizer_scratch *scratch, const char *text, size_t n,
                                          const ag_encode_options *options, ag_encoding *e, ag_err *err);
void ag_encoding_clear(ag_encoding *e);
void ag_encoding_free(ag_encoding *e);
/* Token i as Encoding.tokens shows it: the vocabulary's text, but the text itself where an added token took white space with
 * it. Valid until *e changes. */
ag_text ag_encoding_token(const ag_tokenizer *t, const ag_encoding *e, size_t i);

/* ---- ids to text ----------------------------------------------------------------------------------------------- */
/* Appends the text of ids[0, n) to *out. Ids without a token are left out, as are special tokens with skip_special. Bytes
 * that do not make UTF-8 come out as U+FFFD. */
void ag_tokenizer_decode(const ag_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, ag_str *out);

/* One id at a time, for streaming: appends only whole characters; what may still change (an unfinished character) waits for
 * the next id or for the end. All pieces together are what ag_tokenizer_decode gives.
 *
 *     ag_decode_stream s = {.tokenizer = t, .skip_special = true};
 *     for each id: ag_decode_stream_add(&s, id, &piece);
 *     ag_decode_stream_end(&s, &piece);                       // frees it, too */
typedef struct {
    const ag_tokenizer *tokenizer;
    bool skip_special;
    int32_t *ids; /* a window: those not yet out in full, and the few before them that the decoder looks at */
    size_t n, room;
    size_t n_out; /* bytes of the window's text that are out */
    ag_str text;
} ag_decode_stream;
void ag_decode_stream_add(ag_decode_stream *s, int32_t id, ag_str *out);
void ag_decode_stream_end(ag_decode_stream *s, ag_str *out);

/* ---- what it is made of ---------------------------------------------------------------------------------------- */
/* Highest id + 1, added tokens included; holes count. An embedding with fewer rows cannot serve this tokenizer. */
int32_t ag_tokenizer_vocab_size(const ag_tokenizer *t);
/* The id of a token's exact text, as it stands in the vocabulary ("Ġthe", "<|im_end|>"); -1: none. */
int32_t ag_tokenizer_token_id(const ag_tokenizer *t, const char *token, size_t n);
/* {NULL, 0} for an id without a token. Valid as long as the tokenizer. */
ag_text ag_tokenizer_token_text(const ag_tokenizer *t, int32_t id);
/* The bytes that an id stands for inside a text, where the tokenizer is byte-level or has byte tokens; else its text. Needed by
 * constrained sampling and stop strings; special tokens give their text. */
ag_text ag_tokenizer_token_bytes(const ag_tokenizer *t, int32_t id);
bool ag_tokenizer_is_special(const ag_tokenizer *t, int32_t id);

typedef enum { AG_SPECIAL_BOS, AG_SPECIAL_EOS, AG_SPECIAL_PAD, AG_SPECIAL_UNK, AG_N_SPECIAL } ag_special;
/* -1: none. The text of it is ag_tokenizer_token_text of the id (chat templates need bos_token and eos_token). */
int32_t ag_tokenizer_special_id(const ag_tokenizer *t, ag_special which);
/* The text that tokenizer_config.json gives bos_token …, even where it is no token; NULL: none. */
const char *ag_tokenizer_special_text(const ag_tokenizer *t, ag_special which);
/* How many ids add_special puts in front of a text and behind it, and which; at most n_max of each are written. */
void ag_tokenizer_affixes(const ag_tokenizer *t, int32_t *before, size_t *n_before, int32_t *after, size_t *n_after,
                          size_t n_max);

typedef struct {
    const char *text;
    size_t n;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} ag_added_token;
/* In the file's order. */
const ag_added_token *ag_tokenizer_added_tokens(const ag_tokenizer *t, size_t *n);

/* ---- out again ------------------------------------------------------------------------------------------------- */
/* What a model folder needs: tokenizers and transformers load it and give the same ids. chat_template may be NULL.
 * Each text is appended. */
AG_MUST_USE ag_status ag_tokenizer_write_json(const ag_tokenizer *t, ag_str *tokenizer_json, ag_err *err);
void ag_tokenizer_write_config(const ag_tokenizer *t, const char *chat_template, int64_t model_max_length, ag_str *tokenizer_config,
                               ag_str *special_tokens_map);
/* The arrays of a GGUF file for this tokenizer; n_vocab (the embedding's rows, or 0) pads with unused tokens up to it. Rules
 * that no pre name stands for are AG_E_UNSUPPORTED. What *out points to belongs to the arena-like *keep; free it last. */
typedef struct ag_gguf_vocab_owner ag_gguf_vocab_owner;
AG_MUST_USE ag_status ag_tokenizer_to_gguf(const ag_tokenizer *t, int64_t n_vocab, ag_gguf_vocab *out, ag_gguf_vocab_owner **keep,
                                           ag_err *err);
void ag_gguf_vocab_owner_free(ag_gguf_vocab_owner **keep);

#endif
