/* Oniguruma's regular expressions (Ruby syntax, UTF-8) in the words of PCRE2. */
#include "text/pattern.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 12 };

typedef struct {
    const char *at, *name, *whole;
    ag_str *out;
    ag_err *err;
    uint32_t sets[MAX_SETS]; /* of categories that were looked into, and what was found */
    ag_str newer[MAX_SETS];
    int n_sets;
} translation;

static ag_status refuse(const translation *t, const char *what)
{
    return ag_fail(t->err, AG_E_UNSUPPORTED, "%s: the pattern \"%.300s\" uses %s, which is not supported", t->name, t->whole,
                   what);
}

/* The characters with (or without) a flag as ranges of a character class. */
static void add_ranges(ag_str *out, unsigned flag, bool negated)
{
    const uint16_t *kinds = ag_unicode_kinds();
    for (uint32_t c = 0; c < AG_CODE_POINTS;) {
        if (!(kinds[c] & flag) != negated || (c >= 0xd800 && c < 0xe000)) {
            c++;
            continue;
        }
        uint32_t first = c;
        while (c < AG_CODE_POINTS && !(kinds[c] & flag) == negated && !(c >= 0xd800 && c < 0xe000)) c++;
        if (c - first == 1)
            ag_str_printf(out, "\\x{%x}", first);
        else
            ag_str_printf(out, "\\x{%x}-\\x{%x}", first, c - 1);
    }
}

/* Categories by name: "L", "Lu" …; 0: not one of them. */
static uint32_t categories(const char *name, size_t n)
{
    static const char names[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
                                    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    uint32_t set = 0;
    for (int i = 0; i < 30; i++)
        if (n > 0 && n < 3 && names[i][0] != 'C' && strncmp(names[i], name, n) == 0) set |= AG_CAT_BIT(i);
    return set;
}

/* The characters that are of the categories but that this PCRE2, being of an older Unicode, does not know as such: ranges of a
 * class. Found by matching \P{name} against a text of all that should not match it. */
static void add_newer(ag_str *out, const char *name, size_t n, uint32_t set)
{
    const uint16_t *kinds = ag_unicode_kinds();
    unsigned char *all = malloc(AG_CODE_POINTS * 4);
    if (!all) ag_out_of_memory(AG_CODE_POINTS * 4);
    size_t n_all = 0, bytes;
    for (uint32_t c = 0; c < AG_CODE_POINTS; c++)
        if (ag_kind_in(kinds[c], set)) n_all += ag_utf8_put(all + n_all, c);
    char pattern[16];
    int code = 0;
    PCRE2_SIZE at = 0;
    snprintf(pattern, sizeof pattern, "\\P{%.*s}+", (int)n, name);
    pcre2_code *regex =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!regex || !data) ag_out_of_memory(sizeof pattern);
    for (at = 0; pcre2_match(regex, all, n_all, at, PCRE2_NO_UTF_CHECK, data, NULL) > 0;) {
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(data);
        uint32_t first = UINT32_MAX, last = 0;
        for (size_t k = bounds[0]; k < bounds[1]; k += bytes) {
            uint32_t c = ag_utf8_peek(all, k, &bytes);
            if (first != UINT32_MAX && c != last + 1) ag_str_printf(out, "\\x{%x}-\\x{%x}", first, last), first = c;
            if (first == UINT32_MAX) first = c;
            last = c;
        }
        if (first != UINT32_MAX) ag_str_printf(out, "\\x{%x}-\\x{%x}", first, last);
        at = bounds[1];
    }
    pcre2_match_data_free(data);
    pcre2_code_free(regex);
    free(all);
}

static void add_newer_once(translation *t, const char *name, size_t n, uint32_t set)
{
    int i = 0;
    while (i < t->n_sets && t->sets[i] != set) i++;
    if (i == MAX_SETS) {
        add_newer(t->out, name, n, set);
        return;
    }
    if (i == t->n_sets) {
        t->sets[t->n_sets++] = set;
        add_newer(&t->newer[i], name, n, set);
    }
    if (t->newer[i].n) ag_str_add_n(t->out, t->newer[i].text, t->newer[i].n);
}

/* \p{name} or \P{name}. Inside a class \P stays as PCRE2 has it. */
static void add_property(translation *t, const char *name, size_t n, bool negated, bool in_class)
{
    ag_str *out = t->out;
    uint32_t set = categories(name, n);
    if (set == 0 || (negated && in_class)) {
        ag_str_printf(out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)n, name);
        return;
    }
    if (!in_class) ag_str_add(out, negated ? "[^" : "[");
    ag_str_printf(out, "\\p{%.*s}", (int)n, name);
    add_newer_once(t, name, n, set);
    if (!in_class) ag_str_add_char(out, ']');
}

static void add_set(translation *t, unsigned flag, bool negated, bool in_class)
{
    if (!in_class) ag_str_add_char(t->out, '[');
    add_ranges(t->out, flag, negated);
    if (!in_class) ag_str_add_char(t->out, ']');
}

/* Behind a backslash, which is not yet written. */
static ag_status escape(translation *t, bool in_class)
{
    char c = *t->at;
    if (c == 0) return refuse(t, "a backslash at its end");
    t->at++;
    switch (c) {
    case 's': add_set(t, AG_CHAR_SPACE, false, in_class); return AG_OK;
    case 'S': add_set(t, AG_CHAR_SPACE, true, in_class); return AG_OK;
    case 'w': add_set(t, AG_CHAR_WORD, false, in_class); return AG_OK;
    case 'W': add_set(t, AG_CHAR_WORD, true, in_class); return AG_OK;
    case 'h': ag_str_add(t->out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"); return AG_OK;
    case 'H':
    case 'R':
    case 'X':
    case 'y':
    case 'Y':
    case 'K':
    case 'k':
    case 'g':
    case 'G':
    case 'b':
    case 'B':
    case 'C':
    case 'M':
    case 'c':
    case 'N':
    case 'O': {
        char what[] = "\\?";
        what[1] = c;
        return refuse(t, what);
    }
    default: break;
    }
    if ((c == 'p' || c == 'P') && *t->at == '{') {
        const char *close = strchr(t->at, '}');
        if (!close || close - t->at > 40) return refuse(t, "a \\p without an end");
        bool negated = (c == 'P') != (t->at[1] == '^');
        const char *name = t->at + 1 + (t->at[1] == '^');
        size_t n = (size_t)(close - name);
        t->at = close + 1;
        if (n == 3 && strncmp(name, "Han", 3) == 0)
            add_set(t, AG_CHAR_HAN, negated, in_class);
        else
            add_property(t, name, n, negated, in_class);
        return AG_OK;
    }
    ag_str_add_char(t->out, '\\');
    ag_str_add_char(t->out, c);
    return AG_OK;
}

/* [:name:] inside a class; the two differ in what most of them hold. */
static ag_status posix_name(translation *t)
{
    if (strncmp(t->at, "[:punct:]", 9) == 0) {
        add_property(t, "P", 1, false, true);
        add_property(t, "S", 1, false, true);
    } else if (strncmp(t->at, "[:space:]", 9) == 0) {
        add_ranges(t->out, AG_CHAR_SPACE, false);
    } else if (strncmp(t->at, "[:digit:]", 9) == 0) {
        add_property(t, "Nd", 2, false, true);
    } else {
        return refuse(t, "a POSIX class other than punct, space and digit");
    }
    t->at += 9;
    return AG_OK;
}

/* A class, at its '['. Intersections come in one form only, [X&&[^Y]]: it becomes (?:(?![Y])[X]). */
static ag_status bracket(translation *t)
{
    size_t start = t->out->n;
    ag_str_add_char(t->out, *t->at++);
    if (*t->at == '^') ag_str_add_char(t->out, *t->at++);
    if (*t->at == ']') ag_str_add(t->out, "\\]"), t->at++;
    while (*t->at && *t->at != ']') {
        if (t->at[0] == '&' && t->at[1] == '&') {
            if (strncmp(t->at, "&&[^", 4) != 0 || t->out->text[start + 1] == '^')
                return refuse(t, "an intersection of this form");
            t->at += 4;
            ag_str part = {0}, *whole = t->out;
            ag_str_add(&part, "(?:(?![");
            t->out = &part;
            ag_status status = AG_OK;
            while (!status && *t->at && *t->at != ']' && *t->at != '[') {
                if (*t->at == '\\')
                    t->at++, status = escape(t, true);
                else
                    ag_str_add_char(&part, *t->at++);
            }
            t->out = whole;
            if (!status && strncmp(t->at, "]]", 2) != 0) status = refuse(t, "an intersection of this form");
            if (!status) {
                t->at += 2;
                ag_str_add(&part, "])");
                ag_str_add_n(&part, whole->text + start, whole->n - start);
                ag_str_add(&part, "])");
                whole->n = start;
                ag_str_add_n(whole, part.text, part.n);
            }
            ag_str_free(&part);
            return status;
        }
        if (t->at[0] == '[' && t->at[1] == ':') {
            AG_TRY(posix_name(t));
        } else if (*t->at == '[') {
            return refuse(t, "a class inside a class");
        } else if (*t->at == '\\') {
            t->at++;
            AG_TRY(escape(t, true));
        } else {
            ag_str_add_char(t->out, *t->at++);
        }
    }
    if (*t->at != ']') return refuse(t, "a class without an end");
    ag_str_add_char(t->out, *t->at++);
    return AG_OK;
}

/* At "(?": option letters mean other things in Ruby: m there is s here. */
static ag_status group(translation *t)
{
    const char *p = t->at + 2;
    size_t n = strspn(p, "imx-");
    if (n > 0 && (p[n] == ')' || p[n] == ':')) {
        ag_str_add(t->out, "(?");
        for (size_t i = 0; i < n; i++) ag_str_add_char(t->out, p[i] == 'm' ? 's' : p[i]);
        t->at = p + n;
        return AG_OK;
    }
    if (*p != ':' && *p != '=' && *p != '!' && *p != '>' && strncmp(p, "<=", 2) != 0 && strncmp(p, "<!", 2) != 0)
        return refuse(t, "a group of this kind");
    ag_str_add(t->out, "(?");
    t->at = p;
    return AG_OK;
}

static ag_status translate(translation *t)
{
    while (*t->at) {
        if (*t->at == '\\') {
            t->at++;
            AG_TRY(escape(t, false));
        } else if (*t->at == '[') {
            AG_TRY(bracket(t));
        } else if (t->at[0] == '(' && t->at[1] == '?') {
            AG_TRY(group(t));
        } else if (t->at[0] == '(' && t->at[1] == '*') {
            return refuse(t, "(*");
        } else {
            ag_str_add_char(t->out, *t->at++);
        }
    }
    return AG_OK;
}

ag_status ag_regex_translate(const char *pattern, ag_str *out, const char *name, ag_err *err)
{
    translation t = {.at = pattern, .name = name, .whole = pattern, .out = out, .err = err};
    ag_status status = translate(&t);
    for (int i = 0; i < t.n_sets; i++) ag_str_free(&t.newer[i]);
    return status;
}
