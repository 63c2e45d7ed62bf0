#include "seal/bundle_report.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define X(code, name) name,
    AG_BUNDLE_CODES(X)
#undef X
};

const char *ag_bundle_code_name(ag_bundle_code code) { return names[code]; }

void ag_bundle_report_free(ag_bundle_report *r)
{
    ag_arena_free(&r->arena);
    *r = (ag_bundle_report){0};
}

void ag_bundle_report_add(ag_bundle_report *r, ag_bundle_code code, const char *path, const char *format, ...)
{
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 16;
        ag_bundle_failure *failures = ag_arena_array(&r->arena, room, sizeof *failures);
        if (r->n) memcpy(failures, r->failures, r->n * sizeof *failures);
        r->failures = failures;
        r->room = room;
    }
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->failures[r->n++] = (ag_bundle_failure){.code = code, .path = path ? ag_arena_strdup(&r->arena, path) : NULL,
                                              .message = ag_arena_strdup(&r->arena, text)};
}

static int by_code_path_message(const void *a, const void *b)
{
    const ag_bundle_failure *x = a, *y = b;
    int order = strcmp(names[x->code], names[y->code]);
    if (!order) order = strcmp(x->path ? x->path : "", y->path ? y->path : "");
    return order ? order : strcmp(x->message, y->message);
}

void ag_bundle_report_sort(ag_bundle_report *r)
{
    if (r->n) qsort(r->failures, r->n, sizeof *r->failures, by_code_path_message);
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */
static const char *signature_text(ag_signature_state state)
{
    static const char *const texts[] = {"absent", "not checked", "verified", "failed"};
    return texts[state];
}

void ag_bundle_report_write_json(const ag_bundle_report *r, ag_str *out)
{
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "schema_version", AG_BUNDLE_VERDICT_VERSION);
    ag_jw_string(&w, "verdict", ag_bundle_passes(r) ? "pass" : "fail");
    ag_jw_string(&w, "bundle_path", r->bundle_path);
    ag_jw_string(&w, "bundle_schema_version", r->schema_version);
    ag_jw_array(&w, "failures");
    for (size_t i = 0; i < r->n; i++) {
        ag_jw_object(&w, NULL);
        ag_jw_string(&w, "code", names[r->failures[i].code]);
        ag_jw_string(&w, "message", r->failures[i].message);
        if (r->failures[i].path) ag_jw_string(&w, "path", r->failures[i].path);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    if (r->signature != AG_SIGNATURE_ABSENT) ag_jw_string(&w, "signature", signature_text(r->signature));
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
}

/* Unicode's controls, and the format characters that turn the direction of text or hide. */
static bool is_invisible(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

static void add_escaped(ag_str *out, const char *text)
{
    const size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        const uint32_t c = ag_utf8_next(text, n, &at);
        if (c == '\n')
            ag_str_add(out, "\\n");
        else if (c == '\t')
            ag_str_add(out, "\\t");
        else if (c == '\r')
            ag_str_add(out, "\\r");
        else if (is_invisible(c))
            ag_str_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c);
        else
            ag_str_add_code_point(out, c);
    }
}

static void add_row(ag_str *out, int width, const char *label, const char *value)
{
    ag_str_printf(out, "%-*s", width, label);
    add_escaped(out, value);
    ag_str_add_char(out, '\n');
}

void ag_bundle_report_write_table(const ag_bundle_report *r, ag_str *out)
{
    static const char longest[] = "bundle_schema_version";
    const int width = (int)sizeof longest; /* the longest label and one space */
    char count[32];
    snprintf(count, sizeof count, "%zu", r->n);
    add_row(out, width, "verdict", ag_bundle_passes(r) ? "pass" : "fail");
    add_row(out, width, "bundle", r->bundle_path);
    add_row(out, width, longest, r->schema_version ? r->schema_version : "-");
    add_row(out, width, "failures", count);
    if (r->signature != AG_SIGNATURE_ABSENT) add_row(out, width, "signature", signature_text(r->signature));
    for (size_t i = 0; i < r->n; i++) {
        const ag_bundle_failure *f = &r->failures[i];
        ag_str_printf(out, "  %s: ", names[f->code]);
        if (f->path) {
            add_escaped(out, f->path);
            ag_str_add(out, ": ");
        }
        add_escaped(out, f->message);
        ag_str_add_char(out, '\n');
    }
}
