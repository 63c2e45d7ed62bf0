#include "text/json_walk.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512, MAX_NUMBER = 64 };

static ag_status bad(ag_json_walk *w, const char *what)
{
    return ag_fail(w->err, AG_E_FORMAT, "%s: malformed JSON at byte %zu: %s; the file is damaged, download it again", w->name,
                   (size_t)(w->at - w->text), what);
}

char ag_json_walk_peek(ag_json_walk *w)
{
    while (w->at < w->end && (*w->at == ' ' || *w->at == '\n' || *w->at == '\r' || *w->at == '\t')) w->at++;
    return w->at < w->end ? *w->at : 0;
}

bool ag_json_walk_take(ag_json_walk *w, char c)
{
    if (ag_json_walk_peek(w) != c || w->at == w->end) return false;
    w->at++;
    return true;
}

ag_status ag_json_walk_byte(ag_json_walk *w, char c)
{
    char what[] = "expected '?'";
    what[10] = c;
    return ag_json_walk_take(w, c) ? AG_OK : bad(w, what);
}

static bool hex4(ag_json_walk *w, uint32_t *out)
{
    if (w->end - w->at < 4) return false;
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = w->at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    w->at += 4;
    return true;
}

static ag_status escape(ag_json_walk *w, ag_str *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (w->at == w->end) return bad(w, "the string does not end");
    char c = *w->at++;
    const char *plain = c ? strchr(from, c) : NULL;
    if (plain) return ag_str_add_char(out, to[plain - from]), AG_OK;
    uint32_t code, low;
    if (c != 'u' || !hex4(w, &code)) return bad(w, "unknown escape in a string");
    if (code >= 0xd800 && code < 0xe000) {
        if (code >= 0xdc00 || w->end - w->at < 6 || w->at[0] != '\\' || w->at[1] != 'u')
            return bad(w, "a surrogate stands alone");
        w->at += 2;
        if (!hex4(w, &low) || low < 0xdc00 || low >= 0xe000) return bad(w, "a surrogate stands alone");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    ag_str_add_code_point(out, code);
    return AG_OK;
}

ag_status ag_json_walk_string(ag_json_walk *w, ag_str *out)
{
    ag_str_clear(out);
    AG_TRY(ag_json_walk_byte(w, '"'));
    bool ascii = true;
    for (;;) {
        const char *start = w->at;
        while (w->at < w->end && *w->at != '"' && *w->at != '\\' && (unsigned char)*w->at >= 0x20) {
            ascii &= (unsigned char)*w->at < 0x80;
            w->at++;
        }
        if (w->at > start) ag_str_add_n(out, start, (size_t)(w->at - start));
        if (w->at == w->end) return bad(w, "the string does not end");
        char c = *w->at++;
        if (c == '"') break;
        if (c != '\\') return bad(w, "a control character stands in a string");
        AG_TRY(escape(w, out));
    }
    if (!ascii && !ag_utf8_valid(out->text, out->n)) return bad(w, "the string before is not UTF-8");
    return AG_OK;
}

static size_t number_bytes(const ag_json_walk *w)
{
    size_t n = 0, left = (size_t)(w->end - w->at);
    while (n < left && n < MAX_NUMBER && w->at[n] && strchr("+-.0123456789eE", w->at[n])) n++;
    return n;
}

ag_status ag_json_walk_int(ag_json_walk *w, int64_t *out)
{
    ag_json_walk_peek(w);
    bool negative = w->at < w->end && *w->at == '-';
    const char *p = w->at + negative, *first = p;
    int64_t value = 0;
    for (; p < w->end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
            return bad(w, "number too large");
    if (p == first || (p < w->end && (*p == '.' || *p == 'e' || *p == 'E'))) return bad(w, "expected an integer");
    w->at = p;
    *out = negative ? -value : value;
    return AG_OK;
}

ag_status ag_json_walk_double(ag_json_walk *w, double *out)
{
    ag_json_walk_peek(w);
    char copy[MAX_NUMBER + 1], *end;
    size_t n = number_bytes(w);
    memcpy(copy, w->at, n);
    copy[n] = 0;
    if (n == 0 || n == MAX_NUMBER || !(copy[0] == '-' || (copy[0] >= '0' && copy[0] <= '9')))
        return bad(w, "expected a number");
    *out = strtod(copy, &end);
    if (end != copy + n) return bad(w, "expected a number");
    w->at += n;
    return AG_OK;
}

/* Over a string without keeping it. */
static ag_status skip_string(ag_json_walk *w)
{
    w->at++;
    while (w->at < w->end && *w->at != '"') w->at += *w->at == '\\' && w->end - w->at > 1 ? 2 : 1;
    if (w->at == w->end) return bad(w, "the string does not end");
    w->at++;
    return AG_OK;
}

/* Only brackets and strings matter for where a value ends; whether the rest is JSON is found out by whoever reads it. */
ag_status ag_json_walk_skip(ag_json_walk *w)
{
    int depth = 0;
    do {
        char c = ag_json_walk_peek(w);
        if (c == 0) return bad(w, "the value does not end");
        if (c == '"') {
            AG_TRY(skip_string(w));
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_DEPTH) return bad(w, "nested too deep");
            w->at++;
        } else if (c == '}' || c == ']') {
            if (--depth < 0) return bad(w, "expected a value");
            w->at++;
        } else if ((c == ',' || c == ':') && depth > 0) {
            w->at++;
        } else {
            const char *start = w->at;
            while (w->at < w->end && !strchr(" \n\r\t\",:{}[]", *w->at)) w->at++;
            if (w->at == start) return bad(w, "expected a value");
        }
    } while (depth > 0);
    return AG_OK;
}
