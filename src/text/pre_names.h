/* GGUF names the split rules of a byte-level BPE by one word, tokenizer.ggml.pre; this table says which rules that are, in the
 * words of tokenizer.json, and finds the word for given rules. The rules stand in llama.cpp's src/llama-vocab.cpp and in the
 * tokenizer.json of the models that use them. */
#ifndef AG_PRE_NAMES_H
#define AG_PRE_NAMES_H

#include "text/tokenizer_parts.h"

typedef struct {
    const char *name;
    const char *pretokenizer;  /* JSON */
    const char *normalizer;    /* JSON */
    bool ignore_merges, add_bos;
} ag_pre_name;

/* NULL: not known. */
const ag_pre_name *ag_pre_name_find(const char *name);
/* The known names, in one line. */
void ag_pre_names_list(ag_str *out);
/* The name for this tokenizer's rules, or NULL. */
const char *ag_pre_name_for(const ag_tokenizer *t);

#endif
