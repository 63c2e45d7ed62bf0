/* Oniguruma's regular expressions (Ruby syntax, UTF-8) in the words of PCRE2. */
#include "text/pattern.h"
#include "text/unicode_class.h"

#include <string.h>

typedef struct {
    const char *at, *name, *whole;
    ag_str *out;
    ag_err *err;
} translation;

static ag_status refuse(const translation *t, const char *what)
{
    return ag_fail(t->err, AG_E_UNSUPPORTED, "%s: the pattern \"%.300s\" uses %s, which is not supported", t->name, t->whole, what);
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
        if (c - first == 1) ag_str_printf(out, "\\x{%x}", first);
        else ag_str_printf(out, "\\x{%x}-\\x{%x}", first, c - 1);
    }
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
    case 'H': case 'R': case 'X': case 'y': case 'Y': case 'K': case 'k': case 'g': case 'G': case 'b': case 'B': case 'C':
    case 'M': case 'c': case 'N': case 'O': {
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
        if (n == 3 && strncmp(name, "Han", 3) == 0) add_set(t, AG_CHAR_HAN, negated, in_class);
        else ag_str_printf(t->out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)n, name);
        return AG_OK;
    }
    ag_str_add_char(t->out, '\\');
    ag_str_add_char(t->out, c);
    return AG_OK;
}

/* A class, at its '['. Intersections come in one form only, [X&&[^Y]]: it becomes (?![Y])[X]. */
static ag_status bracket(translation *t)
{
    size_t start = t->out->n;
    ag_str_add_char(t->out, *t->at++);
    if (*t->at == '^') ag_str_add_char(t->out, *t->at++);
    if (*t->at == ']') ag_str_add(t->out, "\\]"), t->at++;
    while (*t->at && *t->at != ']') {
        if (t->at[0] == '&' && t->at[1] == '&') {
            if (strncmp(t->at, "&&[^", 4) != 0 || t->out->text[start + 1] == '^') return refuse(t, "an intersection of this form");
            t->at += 4;
            ag_str part = {0}, *whole = t->out;
            ag_str_add(&part, "(?![");
            t->out = &part;
            ag_status status = AG_OK;
            while (!status && *t->at && *t->at != ']' && *t->at != '[') {
                if (*t->at == '\\') t->at++, status = escape(t, true);
                else ag_str_add_char(&part, *t->at++);
            }
            t->out = whole;
            if (!status && strncmp(t->at, "]]", 2) != 0) status = refuse(t, "an intersection of this form");
            if (!status) {
                t->at += 2;
                ag_str_add(&part, "])");
                ag_str_add_n(&part, whole->text + start, whole->n - start);
                ag_str_add_char(&part, ']');
                whole->n = start;
                ag_str_add_n(whole, part.text, part.n);
            }
            ag_str_free(&part);
            return status;
        }
        if (t->at[0] == '[' && t->at[1] == ':') { /* a POSIX name: the same in both */
            const char *close = strstr(t->at, ":]");
            if (!close) return refuse(t, "a class without an end");
            ag_str_add_n(t->out, t->at, (size_t)(close + 2 - t->at));
            t->at = close + 2;
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

ag_status ag_regex_translate(const char *pattern, ag_str *out, const char *name, ag_err *err)
{
    translation t = {.at = pattern, .name = name, .whole = pattern, .out = out, .err = err};
    while (*t.at) {
        if (*t.at == '\\') {
            t.at++;
            AG_TRY(escape(&t, false));
        } else if (*t.at == '[') {
            AG_TRY(bracket(&t));
        } else if (t.at[0] == '(' && t.at[1] == '?') {
            AG_TRY(group(&t));
        } else if (t.at[0] == '(' && t.at[1] == '*') {
            return refuse(&t, "(*");
        } else {
            ag_str_add_char(out, *t.at++);
        }
    }
    return AG_OK;
}
