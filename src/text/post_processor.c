#include "text/post_processor.h"

#include "base/arena.h"
#include "text/normalizer.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_AFFIX = 64, MAX_STEPS = 64 };

static ag_status push_id(int32_t **ids, size_t *n, int64_t id, const char *name, ag_err *err)
{
    if (*n == MAX_AFFIX)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the post-processor adds more than %d tokens", name, MAX_AFFIX);
    *ids = realloc(*ids, (*n + 1) * sizeof **ids);
    if (!*ids) ag_out_of_memory(sizeof **ids);
    (*ids)[(*n)++] = (int32_t)id;
    return AG_OK;
}

static ag_status read_pair(ag_post_step *step, const json_t *value, const char *name, ag_err *err)
{
    const json_t *cls = json_array_get(json_object_get(value, "cls"), 1),
                 *sep = json_array_get(json_object_get(value, "sep"), 1);
    if (!json_is_integer(cls) || !json_is_integer(sep) || json_integer_value(cls) < 0 || json_integer_value(cls) > INT32_MAX ||
        json_integer_value(sep) < 0 || json_integer_value(sep) > INT32_MAX)
        return ag_fail(err, AG_E_FORMAT, "%s: 'cls' and 'sep' of the post-processor %s must be [text, id]", name,
                       ag_rule_type(value));
    AG_TRY(push_id(&step->before, &step->n_before, json_integer_value(cls), name, err));
    return push_id(&step->after, &step->n_after, json_integer_value(sep), name, err);
}

static ag_status read_template(ag_post_step *step, const json_t *value, const char *name, ag_err *err)
{
    const json_t *single = json_object_get(value, "single"), *special = json_object_get(value, "special_tokens");
    bool seen = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *token = json_object_get(item, "SpecialToken");
        const char *key = json_string_value(json_object_get(token, "id"));
        if (!token) {
            const char *sequence = json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));
            if (!sequence || strcmp(sequence, "A") != 0 || seen)
                return ag_fail(err, AG_E_UNSUPPORTED,
                               "%s: the single template of TemplateProcessing must hold the sequence A once", name);
            seen = true;
            continue;
        }
        const json_t *ids = json_object_get(key ? json_object_get(special, key) : NULL, "ids");
        if (!json_is_array(ids))
            return ag_fail(err, AG_E_FORMAT, "%s: TemplateProcessing uses '%s', which its special_tokens do not explain", name,
                           key ? key : "");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            json_int_t id = json_integer_value(json_array_get(ids, k));
            if (!json_is_integer(json_array_get(ids, k)) || id < 0 || id > INT32_MAX)
                return ag_fail(err, AG_E_FORMAT, "%s: the ids of '%s' in TemplateProcessing must be token ids", name, key);
            AG_TRY(seen ? push_id(&step->after, &step->n_after, id, name, err)
                        : push_id(&step->before, &step->n_before, id, name, err));
        }
    }
    if (!seen)
        return ag_fail(err, AG_E_FORMAT, "%s: the single template of TemplateProcessing must hold the sequence A once", name);
    return AG_OK;
}

static ag_status push_step(ag_post_processor *z, ag_post_step **step, const char *name, ag_err *err)
{
    if (z->n == MAX_STEPS) return ag_fail(err, AG_E_UNSUPPORTED, "%s: more than %d post-processors", name, MAX_STEPS);
    if (!z->steps) z->steps = calloc(MAX_STEPS, sizeof *z->steps);
    if (!z->steps) ag_out_of_memory(sizeof *z->steps);
    *step = &z->steps[z->n++];
    return AG_OK;
}

static ag_status read_step(ag_post_processor *z, const json_t *value, const char *name, ag_err *err)
{
    const char *type = ag_rule_type(value);
    bool byte_level = strcmp(type, "ByteLevel") == 0, roberta = strcmp(type, "RobertaProcessing") == 0;
    ag_post_step *step;
    if (byte_level || roberta) {
        bool trims = true, prefix = true;
        AG_TRY(ag_json_get_bool(value, "trim_offsets", &trims, name, err));
        AG_TRY(ag_json_get_bool(value, "add_prefix_space", &prefix, name, err));
        if (trims) {
            AG_TRY(push_step(z, &step, name, err));
            step->trims = true, step->add_prefix_space = prefix;
        }
        if (byte_level) return AG_OK;
    }
    AG_TRY(push_step(z, &step, name, err));
    if (roberta || strcmp(type, "BertProcessing") == 0) return read_pair(step, value, name, err);
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(step, value, name, err);
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: the post-processor '%s' is not known; known are ByteLevel, RobertaProcessing, "
                   "BertProcessing, TemplateProcessing and Sequence",
                   name, type);
}

static ag_status read_steps(ag_post_processor *z, const json_t *value, const char *name, ag_err *err)
{
    size_t n;
    AG_TRY(ag_rule_list(&n, value, "processors", name, err));
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return n ? read_step(z, value, name, err) : AG_OK;
    for (size_t i = 0; i < n; i++) AG_TRY(read_steps(z, ag_rule_at(value, "processors", i), name, err));
    return AG_OK;
}

ag_status ag_post_processor_init(ag_post_processor *z, const json_t *value, const char *name, ag_err *err)
{
    *z = (ag_post_processor){0};
    ag_status status = read_steps(z, value, name, err);
    if (status) ag_post_processor_deinit(z);
    return status;
}

void ag_post_processor_deinit(ag_post_processor *z)
{
    for (size_t i = 0; i < z->n; i++) {
        free(z->steps[i].before);
        free(z->steps[i].after);
    }
    free(z->steps);
    *z = (ag_post_processor){0};
}

static bool trimmed(uint32_t c) { return c == 256 + ' ' || ag_unicode_kinds()[c] & AG_CHAR_SPACE; }

void ag_post_trim(ag_text token, bool first, bool add_prefix_space, uint32_t start, uint32_t end, uint32_t *new_start,
                  uint32_t *new_end)
{
    const unsigned char *text = (const unsigned char *)token.text;
    uint32_t leading = 0, trailing = 0;
    size_t bytes;
    for (size_t at = 0; at < token.n && trimmed(ag_utf8_peek(text, at, &bytes)); at += bytes) leading++;
    for (size_t at = token.n; at > 0 && trimmed(ag_utf8_before(text, at, &bytes)); at -= bytes) trailing++;
    /* The one space that the pre-tokenizer put there is not in the text. */
    if (leading == 1 && add_prefix_space && (first || start == 0)) leading = 0;
    if (leading > 0) start = start + leading < end ? start + leading : end;
    if (trailing > 0 && end >= trailing) end = end - trailing > start ? end - trailing : start;
    *new_start = start;
    *new_end = end;
}
