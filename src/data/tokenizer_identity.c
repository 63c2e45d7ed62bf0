#include "data/tokenizer_identity.h"

#include "base/canonical_json.h"

ag_status ag_tokenizer_fingerprint(ag_sha256 *out, const ag_tokenizer *t, ag_err *err)
{
    ag_str files[3] = {{0}, {0}, {0}};
    static const char *const names[] = {"tokenizer", "tokenizer_config", "special_tokens_map"};
    json_t *all = json_object();
    ag_status status = ag_tokenizer_write_json(t, &files[0], err);
    if (!status) ag_tokenizer_write_config(t, NULL, 0, &files[1], &files[2]);
    for (int i = 0; i < 3 && !status; i++) {
        json_t *value;
        status =
            ag_json_parse_exact(&value, files[i].text ? files[i].text : "null", files[i].text ? files[i].n : 4, names[i], err);
        if (!status) json_object_set_new(all, names[i], value);
    }
    if (!status) *out = ag_json_canonical_digest(all);
    json_decref(all);
    for (int i = 0; i < 3; i++) ag_str_free(&files[i]);
    return status;
}
