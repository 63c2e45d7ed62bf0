/* What a hub's server says: lists of files, heads of answers, and the names and patterns in them. The first byte chooses. */
#include "hub/hub_answer.h"
#include "hub/hub_names.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_listing(const char *text, size_t n)
{
    ag_hub_listing listing;
    ag_arena arena = {0};
    ag_err err;
    if (ag_hub_listing_parse(&listing, text, n, "fuzz", &arena, &err) == AG_OK) {
        if (!ag_hub_is_commit(listing.commit)) abort();
        for (size_t i = 0; i < listing.n_files; i++) {
            const char *name = listing.files[i];
            if (name[0] == '/' || strcmp(name, "..") == 0 || ag_str_starts(name, "../") || strstr(name, "/../") || ag_str_ends(name, "/..")) abort();
            if (i > 0 && strcmp(name, listing.files[i - 1]) <= 0) abort();
        }
    }
    ag_arena_free(&arena);
}

static void read_head(const char *text, size_t n)
{
    ag_hub_head head = {0};
    ag_err err;
    ag_hub_head_begin(&head);
    for (const char *line = text, *end = text + n; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const size_t length = newline ? (size_t)(newline - line) + 1 : (size_t)(end - line);
        if (length > 5 && memcmp(line, "HTTP/", 5) == 0) ag_hub_head_begin(&head);
        ag_hub_head_add(&head, line, length);
        line += length;
    }
    if (head.commit[0] && !ag_hub_is_commit(head.commit)) abort();
    if (head.etag[0] && !ag_hub_is_blob_name(head.etag)) abort();
    if (head.size < -1 || head.range_first < -1 || head.range_total < -1) abort();
    if (ag_hub_answer_fail(&err, 400 + (long)(n % 200), &head, "fuzz", n % 2) == AG_OK) abort();
    for (const char *c = err.text; *c; c++)
        if (*c < ' ' || *c == 0x7f) abort();
    ag_hub_head_free(&head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const size_t n = size - 1;
    char *text = malloc(n + 1);
    if (!text) abort();
    memcpy(text, data + 1, n);
    text[n] = 0;
    if (data[0] == 'j') {
        read_listing(text, n);
    } else if (data[0] == 'h') {
        read_head(text, n);
    } else {
        const char *second = text + strlen(text) + (strlen(text) < n); /* behind a NUL, or empty */
        (void)ag_hub_glob_match(text, second);
        (void)ag_hub_is_id(text);
        ag_err err;
        if (ag_hub_revision_check(text, &err) == AG_OK && strstr(text, "..")) abort();
    }
    free(text);
    return 0;
}
