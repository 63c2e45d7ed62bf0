#include "text/template_syntax.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *source; /* newlines are \n */
    size_t n, at;
    uint32_t line;
    size_t line_at;     /* where `line` was counted */
    bool line_starting; /* the last tag took a newline with it, or nothing came before */
    ag_ttoken *token;
    size_t n_tokens, room;
    char open[AG_TEMPLATE_MAX_HEIGHT]; /* closing brackets that are due */
    size_t n_open;
    ag_arena *arena;
    const char *name;
    ag_err *err;
} lexer;

static uint32_t line_of(lexer *l, size_t at)
{
    for (; l->line_at < at; l->line_at++) l->line += l->source[l->line_at] == '\n';
    return l->line;
}

static ag_ttoken *add(lexer *l, ag_ttoken_kind kind, size_t at)
{
    if (l->n_tokens == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        ag_ttoken *grown = ag_arena_array(l->arena, room, sizeof *grown);
        if (l->n_tokens) memcpy(grown, l->token, l->n_tokens * sizeof *grown);
        l->token = grown;
        l->room = room;
    }
    ag_ttoken *t = &l->token[l->n_tokens++];
    *t = (ag_ttoken){.kind = kind, .line = line_of(l, at)};
    return t;
}

static bool looks_at(const lexer *l, size_t at, const char *word)
{
    size_t n = strlen(word);
    return l->n - at >= n && memcmp(l->source + at, word, n) == 0;
}

static size_t skip_space(const lexer *l, size_t at)
{
    while (at < l->n) {
        size_t next = at;
        if (!ag_code_point_is_space(ag_utf8_next(l->source, l->n, &next))) break;
        at = next;
    }
    return at;
}

static ag_status syntax_error(lexer *l, size_t at, const char *sentence)
{
    return ag_fail(l->err, AG_E_FORMAT, "%s: line %u: TemplateSyntaxError: %s", l->name, line_of(l, at), sentence);
}

/* ---- template data
 * ---------------------------------------------------------------------------------------------------------------- */
/* The text from `start` up to the tag at `end`, stripped as the tag's sign says. `prints` is for {{, which does not strip
 * alone. */
static void add_data(lexer *l, size_t start, size_t end, char sign, bool prints)
{
    ag_ttext text = {l->source + start, end - start};
    if (sign == '-') {
        text = ag_ttext_strip(text, false, true);
    } else if (sign != '+' && !prints) {
        size_t from = text.n;
        while (from > 0 && text.p[from - 1] != '\n') from--;
        if ((from > 0 || l->line_starting) && ag_ttext_strip((ag_ttext){text.p + from, text.n - from}, true, false).n == 0)
            text.n = from;
    }
    if (text.n) add(l, AG_TT_DATA, start)->text = text;
}

/* The end of a closing tag "SIGN CLOSE" at `at`, with the white space that it takes; 0 where none stands there. */
static size_t tag_end(const lexer *l, size_t at, const char *close, bool trims)
{
    char sign = at < l->n ? l->source[at] : 0;
    if (sign == '-' && looks_at(l, at + 1, close)) return skip_space(l, at + 3);
    if (sign == '+' && trims && looks_at(l, at + 1, close)) return at + 3;
    if (!looks_at(l, at, close)) return 0;
    at += 2;
    return trims && at < l->n && l->source[at] == '\n' ? at + 1 : at;
}

static char sign_at(const lexer *l, size_t at)
{
    return at < l->n && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : 0;
}

/* Where a raw block's text begins when "{% raw %}" stands at `at`, else 0. */
static size_t raw_begin(const lexer *l, size_t at)
{
    at += 2;
    at = skip_space(l, at + (sign_at(l, at) != 0));
    if (!looks_at(l, at, "raw")) return 0;
    at = skip_space(l, at + 3);
    if (looks_at(l, at, "-%}")) return skip_space(l, at + 3);
    return looks_at(l, at, "%}") ? at + 2 : 0;
}

static ag_status lex_raw(lexer *l, size_t begin)
{
    l->line_starting = l->source[begin - 1] == '\n';
    for (size_t at = begin; at + 1 < l->n; at++) {
        if (!looks_at(l, at, "{%")) continue;
        char sign = sign_at(l, at + 2);
        size_t word = skip_space(l, at + 2 + (sign != 0));
        if (!looks_at(l, word, "endraw")) continue;
        size_t end = tag_end(l, skip_space(l, word + 6), "%}", true);
        if (!end) continue;
        add_data(l, begin, at, sign, false);
        l->at = end;
        l->line_starting = l->source[end - 1] == '\n';
        return AG_OK;
    }
    return syntax_error(l, begin, "Missing end of raw directive");
}

static ag_status lex_comment(lexer *l, size_t begin)
{
    for (size_t at = begin; at + 1 < l->n; at++) {
        size_t end = tag_end(l, at, "#}", true);
        if (!end) continue;
        l->at = end;
        l->line_starting = l->source[end - 1] == '\n';
        return AG_OK;
    }
    return syntax_error(l, begin, "Missing end of comment tag");
}

/* ---- inside tags
 * ---------------------------------------------------------------------------------------------------------------- */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits of a base with single underscores between them: where they end. */
static size_t digits_end(const lexer *l, size_t at, int base)
{
    size_t end = at;
    for (; at < l->n; at++) {
        char c = l->source[at] | 0x20;
        int digit = is_digit(l->source[at]) ? l->source[at] - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (digit < base)
            end = at + 1;
        else if (l->source[at] != '_' || end != at)
            break;
    }
    return end;
}

static ag_status lex_integer(lexer *l)
{
    size_t at = l->at, end;
    int base = 10;
    char kind = at + 1 < l->n && l->source[at] == '0' ? l->source[at + 1] | 0x20 : 0;
    if (kind == 'x' || kind == 'o' || kind == 'b') {
        int wanted = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
        size_t from = at + 2 + (at + 2 < l->n && l->source[at + 2] == '_');
        if (digits_end(l, from, wanted) > from) base = wanted, at = from;
    }
    end = digits_end(l, at, base);
    if (base == 10 && l->source[at] == '0')
        for (end = at + 1;
             end < l->n && (l->source[end] == '0' || (l->source[end] == '_' && end + 1 < l->n && l->source[end + 1] == '0'));)
            end++;
    ag_tint value = 0;
    for (size_t i = at; i < end; i++) {
        if (l->source[i] == '_') continue;
        int digit = is_digit(l->source[i]) ? l->source[i] - '0' : (l->source[i] | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, (ag_tint)base, &value) || __builtin_add_overflow(value, (ag_tint)digit, &value))
            return ag_fail(l->err, AG_E_UNSUPPORTED, "%s: line %u: an integer of more than 127 bits is not supported", l->name,
                           line_of(l, at));
    }
    add(l, AG_TT_INT, l->at)->value = ag_tval_int(value);
    l->at = end;
    return AG_OK;
}

/* A float's end, or 0 where the digits at l->at are none. */
static size_t float_end(const lexer *l)
{
    if (l->at > 0 && l->source[l->at - 1] == '.') return 0;
    size_t whole = digits_end(l, l->at, 10), end = 0, at = whole;
    if (at + 1 < l->n && l->source[at] == '.' && is_digit(l->source[at + 1])) at = end = digits_end(l, at + 1, 10);
    if (at < l->n && (l->source[at] | 0x20) == 'e') {
        size_t digits = at + 1 + (at + 1 < l->n && (l->source[at + 1] == '+' || l->source[at + 1] == '-'));
        if (digits < l->n && is_digit(l->source[digits])) end = digits_end(l, digits, 10);
    }
    return end;
}

static ag_status lex_number(lexer *l)
{
    size_t end = float_end(l);
    if (!end) return lex_integer(l);
    ag_str digits = {0};
    for (size_t i = l->at; i < end; i++)
        if (l->source[i] != '_') ag_str_add_char(&digits, l->source[i]);
    add(l, AG_TT_FLOAT, l->at)->value = ag_tval_float(strtod(digits.text, NULL));
    ag_str_free(&digits);
    l->at = end;
    return AG_OK;
}

static bool is_letter(uint32_t c)
{
    if (c < 0x80) return (c | 0x20) - 'a' < 26 || c == '_';
    return ag_kind_in(ag_unicode_kinds()[c], AG_CATS_LETTER | AG_CAT_BIT(AG_CAT_NL));
}

static bool lex_name(lexer *l)
{
    size_t at = l->at;
    while (at < l->n) {
        size_t next = at;
        uint32_t c = ag_utf8_next(l->source, l->n, &next);
        if (!is_letter(c) &&
            (at == l->at || !(c < 0x80 ? is_digit((char)c) : ag_kind_in(ag_unicode_kinds()[c], AG_CAT_BIT(AG_CAT_ND)))))
            break;
        at = next;
    }
    if (at == l->at) return false;
    add(l, AG_TT_NAME, l->at)->text = (ag_ttext){l->source + l->at, at - l->at};
    l->at = at;
    return true;
}

/* One escape behind the backslash at *at, as Python's "unicode-escape" reads it. False: malformed. */
static bool unescape(ag_str *out, const char *s, size_t n, size_t *at)
{
    static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
    char c = s[*at + 1];
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, i = *at + 2;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        ag_str_add_char(out, to[simple - from]);
    } else if (c == '\n') {
        /* a line that goes on */
    } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        for (i = *at + 1; i < n && i < *at + 4 && s[i] >= '0' && s[i] <= '7'; i++) value = value * 8 + (uint32_t)(s[i] - '0');
        ag_str_add_code_point(out, value);
    } else if (digits) {
        uint32_t value = 0;
        if (n - i < digits) return false;
        for (size_t end = i + digits; i < end; i++) {
            char d = s[i] | 0x20;
            if (!is_digit(s[i]) && !(d >= 'a' && d <= 'f')) return false;
            value = value << 4 | (uint32_t)(is_digit(s[i]) ? s[i] - '0' : d - 'a' + 10);
        }
        if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return false;
        ag_str_add_code_point(out, value);
    } else if (c == 'N') {
        return false;
    } else { /* unknown: the backslash stays, and what follows it is read again */
        ag_str_add_char(out, '\\');
        i = *at + 1;
    }
    *at = i;
    return true;
}

static ag_status lex_string(lexer *l)
{
    size_t begin = l->at + 1, end = begin;
    for (; end < l->n && l->source[end] != l->source[l->at]; end++) end += l->source[end] == '\\';
    if (end >= l->n) return syntax_error(l, l->at, "a string does not end");
    ag_str text = {0};
    for (size_t at = begin; at < end;) {
        if (l->source[at] != '\\') {
            ag_str_add_char(&text, l->source[at++]);
        } else if (!unescape(&text, l->source, end, &at)) {
            ag_str_free(&text);
            return syntax_error(
                l, l->at, "a string holds an escape that names no code point (\\N{…} and lone surrogates are not supported)");
        }
    }
    add(l, AG_TT_STRING, l->at)->text = (ag_ttext){ag_arena_strndup(l->arena, text.text ? text.text : "", text.n), text.n};
    ag_str_free(&text);
    l->at = end + 1;
    return AG_OK;
}

static ag_status lex_operator(lexer *l)
{
    static const struct {
        char text[3];
        uint8_t kind;
    } operators[] = {
        {"**", AG_TT_POW},      {"//", AG_TT_FLOORDIV}, {"==", AG_TT_EQ},      {"!=", AG_TT_NE},      {">=", AG_TT_GE},
        {"<=", AG_TT_LE},       {"+", AG_TT_ADD},       {"-", AG_TT_SUB},      {"/", AG_TT_DIV},      {"*", AG_TT_MUL},
        {"%", AG_TT_MOD},       {"~", AG_TT_TILDE},     {"[", AG_TT_LBRACKET}, {"]", AG_TT_RBRACKET}, {"(", AG_TT_LPAREN},
        {")", AG_TT_RPAREN},    {"{", AG_TT_LBRACE},    {"}", AG_TT_RBRACE},   {">", AG_TT_GT},       {"<", AG_TT_LT},
        {"=", AG_TT_ASSIGN},    {".", AG_TT_DOT},       {":", AG_TT_COLON},    {"|", AG_TT_PIPE},     {",", AG_TT_COMMA},
        {";", AG_TT_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!looks_at(l, l->at, operators[i].text)) continue;
        char c = l->source[l->at];
        if (c == '(' || c == '[' || c == '{') {
            if (l->n_open == sizeof l->open) return syntax_error(l, l->at, "brackets nest too deep");
            l->open[l->n_open++] = c == '(' ? ')' : (char)(c + 2);
        } else if (c == ')' || c == ']' || c == '}') {
            if (!l->n_open || l->open[--l->n_open] != c)
                return syntax_error(l, l->at, "a closing bracket that matches no opening one");
        }
        add(l, operators[i].kind, l->at);
        l->at += strlen(operators[i].text);
        return AG_OK;
    }
    size_t next = l->at;
    ag_utf8_next(l->source, l->n, &next);
    return ag_fail(l->err, AG_E_FORMAT, "%s: line %u: TemplateSyntaxError: unexpected character '%.*s'", l->name,
                   line_of(l, l->at), (int)(next - l->at), l->source + l->at);
}

/* From behind "{%" or "{{" to behind the closing tag. */
static ag_status lex_tag(lexer *l, bool prints)
{
    l->n_open = 0;
    for (;;) {
        size_t end = l->n_open ? 0 : tag_end(l, l->at, prints ? "}}" : "%}", !prints);
        if (end) {
            add(l, prints ? AG_TT_PRINT_END : AG_TT_BLOCK_END, l->at);
            l->at = end;
            l->line_starting = l->source[end - 1] == '\n';
            return AG_OK;
        }
        l->at = skip_space(l, l->at);
        if (l->at >= l->n) return AG_OK; /* the parser misses the end */
        if (!l->n_open && tag_end(l, l->at, prints ? "}}" : "%}", !prints)) continue;
        char c = l->source[l->at];
        if (is_digit(c))
            AG_TRY(lex_number(l));
        else if (c == '\'' || c == '"')
            AG_TRY(lex_string(l));
        else if (!lex_name(l))
            AG_TRY(lex_operator(l));
    }
}

static ag_status lex(lexer *l)
{
    l->line_starting = true;
    while (l->at < l->n) {
        size_t at = l->at;
        while (at < l->n && !(l->source[at] == '{' && at + 1 < l->n && strchr("%{#", l->source[at + 1]) && l->source[at + 1]))
            at++;
        if (at == l->n) {
            add_data(l, l->at, at, '+', true);
            l->at = at;
            break;
        }
        char kind = l->source[at + 1], sign = sign_at(l, at + 2);
        size_t raw = kind == '%' ? raw_begin(l, at) : 0;
        add_data(l, l->at, at, sign, kind == '{');
        size_t begin = at + 2 + (sign != 0);
        if (raw) {
            AG_TRY(lex_raw(l, raw));
        } else if (kind == '#') {
            AG_TRY(lex_comment(l, begin));
        } else {
            add(l, kind == '{' ? AG_TT_PRINT_BEGIN : AG_TT_BLOCK_BEGIN, at);
            l->at = begin;
            AG_TRY(lex_tag(l, kind == '{'));
        }
    }
    add(l, AG_TT_EOF, l->n);
    return AG_OK;
}

ag_status ag_template_lex(ag_ttoken **out, size_t *n, const char *source, size_t n_source, ag_arena *arena, const char *name,
                          ag_err *err)
{
    char *copy = ag_arena_alloc(arena, n_source + 1);
    size_t n_copy = 0;
    for (size_t i = 0; i < n_source; i++) {
        if (source[i] != '\r')
            copy[n_copy++] = source[i];
        else if (i + 1 == n_source || source[i + 1] != '\n')
            copy[n_copy++] = '\n';
    }
    if (n_copy && copy[n_copy - 1] == '\n') n_copy--;
    copy[n_copy] = 0;
    lexer l = {.source = copy, .n = n_copy, .line = 1, .arena = arena, .name = name, .err = err};
    AG_TRY(lex(&l));
    *out = l.token;
    *n = l.n_tokens;
    return AG_OK;
}
