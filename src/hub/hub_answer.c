#define _GNU_SOURCE
#include "hub/hub_answer.h"

#include "base/json.h"
#include "hub/hub_names.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the list of files ------------------------------------------------------------------------------------------------------- */
static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static ag_status read_files(ag_hub_listing *out, const json_t *siblings, const char *name, ag_arena *arena, ag_err *err)
{
    const size_t n = json_array_size(siblings);
    if (n > AG_HUB_MAX_FILES)
        return ag_fail(err, AG_E_FORMAT, "%s: the repository has %zu files; at most %d are taken", name, n, AG_HUB_MAX_FILES);
    out->files = ag_arena_array(arena, n + 1, sizeof *out->files);
    for (size_t i = 0; i < n; i++) {
        const char *file = NULL;
        const json_t *item = json_array_get(siblings, i);
        if (!json_is_object(item)) return ag_fail(err, AG_E_FORMAT, "%s: 'siblings' holds something that is no file", name);
        AG_TRY(ag_json_get_string(item, "rfilename", &file, name, err));
        if (!file) return ag_fail(err, AG_E_FORMAT, "%s: a file of 'siblings' has no 'rfilename'", name);
        AG_TRY(ag_hub_file_check(file, err));
        out->files[i] = ag_arena_strdup(arena, file);
    }
    qsort(out->files, n, sizeof *out->files, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(out->files[i], out->files[i - 1]) != 0) out->files[out->n_files++] = out->files[i];
    return AG_OK;
}

ag_status ag_hub_listing_parse(ag_hub_listing *out, const char *bytes, size_t n, const char *name, ag_arena *arena, ag_err *err)
{
    json_t *root;
    const char *commit = NULL;
    *out = (ag_hub_listing){0};
    AG_TRY(ag_json_parse(&root, bytes, n, name, err));
    const json_t *siblings = json_object_get(root, "siblings");
    ag_status status = AG_OK;
    if (!json_is_object(root))
        status = ag_fail(err, AG_E_FORMAT, "%s: the server's answer is no object; is HF_ENDPOINT the address of a hub?", name);
    if (!status) status = ag_json_get_string(root, "sha", &commit, name, err);
    if (!status && (!commit || !ag_hub_is_commit(commit)))
        status = ag_fail(err, AG_E_FORMAT, "%s: the server names no commit ('sha'); is HF_ENDPOINT the address of a hub?", name);
    if (!status && !json_is_array(siblings))
        status = ag_fail(err, AG_E_FORMAT, "%s: the server lists no files ('siblings')", name);
    if (!status) status = read_files(out, siblings, name, arena, err);
    if (!status) memcpy(out->commit, commit, sizeof out->commit);
    ag_json_free(&root);
    return status;
}

/* ---- heads of answers ----------------------------------------------------------------------------------------------------------- */
void ag_hub_head_begin(ag_hub_head *h)
{
    if (!h->has_linked_etag) h->etag[0] = 0;
    if (!h->has_linked_size) h->size = -1;
    h->content_length = h->range_first = h->range_total = -1;
    h->error_code[0] = h->error_message[0] = 0;
    ag_str_clear(&h->location);
}

void ag_hub_head_free(ag_hub_head *h)
{
    ag_str_free(&h->location);
    *h = (ag_hub_head){0};
}

typedef struct {
    const char *text;
    size_t n;
} span;

static bool is_named(span name, const char *known) { return name.n == strlen(known) && strncasecmp(name.text, known, name.n) == 0; }

static span trimmed(span s)
{
    while (s.n > 0 && (unsigned char)s.text[0] <= ' ') s.text++, s.n--;
    while (s.n > 0 && (unsigned char)s.text[s.n - 1] <= ' ') s.n--;
    return s;
}

/* Digits only, at most 18 of them; -1 else. */
static int64_t number_of(span s)
{
    int64_t value = 0;
    if (s.n == 0 || s.n > 18) return -1;
    for (size_t i = 0; i < s.n; i++) {
        if (s.text[i] < '0' || s.text[i] > '9') return -1;
        value = 10 * value + (s.text[i] - '0');
    }
    return value;
}

static void take_printable(char *out, size_t room, span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n && n + 1 < room; i++)
        if (s.text[i] >= ' ' && s.text[i] < 0x7f) out[n++] = s.text[i];
    out[n] = 0;
}

/* W/"…" and "…" without their signs; "" where the rest is no blob's name. */
static void take_etag(char out[65], span s)
{
    if (s.n >= 2 && s.text[0] == 'W' && s.text[1] == '/') s.text += 2, s.n -= 2;
    while (s.n > 0 && s.text[0] == '"') s.text++, s.n--;
    while (s.n > 0 && s.text[s.n - 1] == '"') s.n--;
    char name[65] = "";
    if (s.n < sizeof name) memcpy(name, s.text, s.n);
    memcpy(out, ag_hub_is_blob_name(name) ? name : "", ag_hub_is_blob_name(name) ? strlen(name) + 1 : 1);
}

/* "bytes 5-9/10" */
static void take_range(ag_hub_head *h, span s)
{
    if (s.n < 6 || strncasecmp(s.text, "bytes ", 6) != 0) return;
    const char *end = s.text + s.n, *first = s.text + 6;
    const char *dash = memchr(first, '-', (size_t)(end - first)), *slash = memchr(first, '/', (size_t)(end - first));
    if (!dash || !slash || dash > slash) return;
    h->range_first = number_of(trimmed((span){first, (size_t)(dash - first)}));
    h->range_total = number_of(trimmed((span){slash + 1, (size_t)(end - slash - 1)}));
}

void ag_hub_head_add(ag_hub_head *h, const char *line, size_t n)
{
    h->n_bytes += n;
    const char *colon = memchr(line, ':', n);
    if (!colon) return;
    const span name = trimmed((span){line, (size_t)(colon - line)});
    const span value = trimmed((span){colon + 1, n - (size_t)(colon - line) - 1});
    if (is_named(name, "X-Repo-Commit")) {
        char commit[64] = "";
        take_printable(commit, sizeof commit, value);
        if (ag_hub_is_commit(commit)) memcpy(h->commit, commit, sizeof h->commit);
    } else if (is_named(name, "X-Linked-Etag")) {
        take_etag(h->etag, value);
        h->has_linked_etag = true;
    } else if (is_named(name, "ETag")) {
        if (!h->has_linked_etag) take_etag(h->etag, value);
    } else if (is_named(name, "X-Linked-Size")) {
        h->size = number_of(value);
        h->has_linked_size = h->size >= 0;
    } else if (is_named(name, "Content-Length")) {
        h->content_length = number_of(value);
        if (!h->has_linked_size) h->size = h->content_length;
    } else if (is_named(name, "Content-Range")) {
        take_range(h, value);
    } else if (is_named(name, "Location")) {
        ag_str_clear(&h->location);
        ag_str_add_n(&h->location, value.text, value.n);
    } else if (is_named(name, "X-Error-Code")) {
        take_printable(h->error_code, sizeof h->error_code, value);
    } else if (is_named(name, "X-Error-Message")) {
        take_printable(h->error_message, sizeof h->error_message, value);
    }
}

/* ---- failures ---------------------------------------------------------------------------------------------------------------------- */
ag_status ag_hub_answer_fail(ag_err *err, long http_status, const ag_hub_head *head, const char *what, bool has_token)
{
    static const char get_token[] = "set HF_TOKEN to a token that may read it, or put the token into $HF_HOME/token";
    const char *code = head->error_code, *words = head->error_message;
    const char *says = *words ? "; the server says: " : "";
    if (strcmp(code, "GatedRepo") == 0)
        return ag_fail(err, AG_E_CONFIG, "%s is gated: its page on the hub has conditions to accept first%s%s%s%s", what,
                       has_token ? ", and the account of your token has not (or has no access yet)" : "; then ", has_token ? "" : get_token,
                       says, words);
    if (strcmp(code, "RevisionNotFound") == 0)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: the hub has no such revision; name a branch, a tag or a commit that is there", what);
    if (strcmp(code, "EntryNotFound") == 0) return ag_fail(err, AG_E_NOT_FOUND, "%s: the hub has no such file", what);
    if (strcmp(code, "RepoNotFound") == 0 || http_status == 404)
        return ag_fail(err, AG_E_NOT_FOUND, "%s: the hub has no such repository%s%s", what, has_token ? ", or your token may not see it"
                       : "; check the name, and if it is private, ", has_token ? "" : get_token);
    if (http_status == 401)
        return ag_fail(err, AG_E_CONFIG, "%s: the hub wants to know who asks (401)%s%s%s%s", what,
                       has_token ? "; it does not take your token: make a new one" : ": the repository is private, gated or not there; ",
                       has_token ? "" : get_token, says, words);
    if (http_status == 403)
        return ag_fail(err, AG_E_CONFIG, "%s: the hub does not allow this (403)%s%s%s%s", what,
                       has_token ? "; your token may not read it" : "; ", has_token ? "" : get_token, says, words);
    if (http_status == 429)
        return ag_fail(err, AG_E_IO, "%s: the hub gets too many requests from here (429)%s; try again later", what,
                       has_token ? "" : ", and has no token that would allow more");
    if (http_status >= 500)
        return ag_fail(err, AG_E_IO, "%s: the hub is out of order (HTTP %ld)%s%s; try again later", what, http_status, says, words);
    return ag_fail(err, AG_E_IO, "%s: the hub answers with HTTP %ld%s%s", what, http_status, says, words);
}
