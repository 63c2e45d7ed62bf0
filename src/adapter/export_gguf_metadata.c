/* Keys: ggml docs/gguf.md and llama.cpp's convert_hf_to_gguf.py, in the converter's order. */
#include "adapter/export_gguf_metadata.h"

#include "adapter/export_gguf_model.h"
#include "base/fs.h"
#include "base/str.h"
#include "data/model_text.h"
#include "model/description_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUANTIZATION_VERSION = 2 };

static void put_file_type(ag_gguf_writer *w, ag_gguf_recipe recipe)
{
    ag_gguf_put_u32(w, "general.file_type", ag_gguf_recipe_file_type(recipe));
    ag_gguf_put_u32(w, "general.quantization_version", QUANTIZATION_VERSION);
}

/* ---- from another GGUF file ------------------------------------------------------------------------------------------------- */
/* What tells how the old file was quantized, aligned and cut up. */
static bool is_of_the_old_file(const char *key)
{
    return strcmp(key, "general.file_type") == 0 || strcmp(key, "general.quantization_version") == 0 ||
           strcmp(key, "general.alignment") == 0 || ag_str_starts(key, "split.") || ag_str_starts(key, "quantize.imatrix.");
}

static ag_status carry_over(ag_gguf_writer *w, ag_gguf_recipe recipe, const ag_export_options *options, ag_err *err)
{
    ag_gguf g;
    AG_TRY(ag_gguf_open(&g, options->base->path, err));
    for (size_t i = 0; i < g.n_pairs; i++)
        if (!is_of_the_old_file(g.pairs[i].key)) ag_gguf_put_pair(w, &g.pairs[i]);
    ag_gguf_close(&g);
    put_file_type(w, recipe);
    return AG_OK;
}

/* ---- from a Hugging Face folder ----------------------------------------------------------------------------------------------- */
const char *ag_export_gguf_architecture(const ag_description *d) { return ag_family_of(d)->gguf; }

int ag_export_gguf_rope_pairs(const ag_description *d) { return ag_family_of(d)->gguf_in_pairs ? (int)d->D : 0; }

static void put_texts(ag_gguf_writer *w, const char *key, const ag_text *items, size_t n, ag_arena *arena)
{
    ag_gguf_text *texts = ag_arena_array(arena, n, sizeof *texts);
    for (size_t i = 0; i < n; i++) texts[i] = (ag_gguf_text){.text = items[i].text, .n = items[i].n};
    ag_gguf_put_texts(w, key, texts, n);
}

static void put_id(ag_gguf_writer *w, const char *key, int64_t id)
{
    if (id >= 0) ag_gguf_put_u32(w, key, (uint32_t)id);
}

/* The ids that end an answer: the tokenizer's own eos, then what generation_config.json and config.json list beside it, as eot
 * and eom, which llama.cpp stops at, too. */
static void put_ends(ag_gguf_writer *w, const ag_description *d, int64_t eos_of_tokenizer)
{
    static const char *const further[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    const int64_t eos = eos_of_tokenizer >= 0 ? eos_of_tokenizer : d->eos_id;
    put_id(w, "tokenizer.ggml.eos_token_id", eos);
    size_t n = 0;
    for (int i = 0; i < d->n_eos_ids && n < sizeof further / sizeof *further; i++)
        if (d->eos_ids[i] != eos) put_id(w, further[n++], d->eos_ids[i]);
}

static void put_vocab(ag_gguf_writer *w, const ag_gguf_vocab *v, const ag_description *d, ag_arena *arena)
{
    ag_gguf_put_text(w, "tokenizer.ggml.model", v->model);
    if (v->pre) ag_gguf_put_text(w, "tokenizer.ggml.pre", v->pre);
    put_texts(w, "tokenizer.ggml.tokens", v->tokens, v->n_tokens, arena);
    if (v->scores) ag_gguf_put_f32s(w, "tokenizer.ggml.scores", v->scores, v->n_tokens);
    if (v->types) ag_gguf_put_i32s(w, "tokenizer.ggml.token_type", v->types, v->n_tokens);
    if (v->n_merges > 0) put_texts(w, "tokenizer.ggml.merges", v->merges, v->n_merges, arena);
    put_id(w, "tokenizer.ggml.bos_token_id", v->bos_id >= 0 ? v->bos_id : d->bos_id);
    put_ends(w, d, v->eos_id);
    put_id(w, "tokenizer.ggml.unknown_token_id", v->unk_id);
    put_id(w, "tokenizer.ggml.padding_token_id", v->pad_id >= 0 ? v->pad_id : d->pad_id);
    if (v->add_bos >= 0) ag_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos);
    if (v->add_eos >= 0) ag_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", v->add_eos);
    if (v->add_space_prefix >= 0) ag_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
}

static ag_status put_tokenizer(ag_gguf_writer *w, const ag_export_options *options, ag_arena *arena, ag_err *err)
{
    const ag_description *d = &options->base->d;
    ag_model_text *text = NULL;
    ag_gguf_vocab_owner *owner = NULL;
    ag_gguf_vocab vocab = {0};
    if (ag_export_has_no_tokenizer(options, arena)) {
        ag_gguf_put_text(w, "tokenizer.ggml.model", "none"); /* llama.cpp's word for it */
        return AG_OK;
    }
    ag_status status = ag_model_text_open(&text, options->text_path ? options->text_path : options->base->path, err);
    if (!status) status = ag_tokenizer_to_gguf(text->tokenizer, d->V, &vocab, &owner, err);
    if (!status) {
        put_vocab(w, &vocab, d, arena);
        if (text->chat_source) ag_gguf_put_text(w, "tokenizer.chat_template", text->chat_source);
    }
    ag_gguf_vocab_owner_free(&owner);
    ag_model_text_close(&text);
    return status;
}

ag_status ag_export_gguf_metadata(ag_gguf_writer *w, ag_gguf_recipe recipe, const ag_export_options *options, ag_arena *arena, ag_err *err)
{
    if (options->base->source == AG_SOURCE_GGUF) return carry_over(w, recipe, options, err);
    ag_gguf_put_text(w, "general.architecture", ag_export_gguf_architecture(&options->base->d));
    ag_gguf_put_text(w, "general.type", "model");
    ag_gguf_put_text(w, "general.name", options->name ? options->name : ag_path_base(options->base->path));
    AG_TRY(ag_export_gguf_put_model(w, &options->base->d, err));
    put_file_type(w, recipe);
    return put_tokenizer(w, options, arena, err);
}
