/* The two ways in which Python formats texts: "%s" % x and "{}".format(x). */
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PRECISION = 400 };

typedef struct {
    uint32_t fill;
    char align; /* < > = ^, 0: the type's own */
    char sign;  /* + - or space */
    char group; /* , or _ */
    char type;  /* 0: none given */
    bool alternate;
    int64_t width, precision; /* precision -1: none */
} spec;

static const spec no_spec = {.fill = ' ', .sign = '-', .precision = -1};

static void put_fill(ag_trun *r, uint32_t fill, int64_t n)
{
    for (; n > 0; n--) {
        ag_trun_work(r, 1);
        ag_trun_put_char(r, fill);
    }
}

/* `head` is the sign and prefix, behind which '=' pads. */
static void put_padded(ag_trun *r, const spec *s, char align, ag_ttext head, ag_ttext body)
{
    int64_t n = (int64_t)(ag_ttext_count(r, head) + ag_ttext_count(r, body)), pad = s->width > n ? s->width - n : 0;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0, inside = align == '=' ? pad : 0;
    put_fill(r, s->fill, left);
    ag_trun_put_text(r, head);
    put_fill(r, s->fill, inside);
    ag_trun_put_text(r, body);
    put_fill(r, s->fill, pad - left - inside);
}

static void put_text_value(ag_trun *r, const spec *s, ag_ttext t)
{
    if (s->precision >= 0) t.n = ag_ttext_offset(t, (size_t)s->precision);
    put_padded(r, s, s->align ? s->align : '<', (ag_ttext){"", 0}, t);
}

/* Separators into the digits before the point, each `every` digits. */
static ag_ttext grouped(ag_trun *r, ag_ttext digits, char separator, size_t every)
{
    size_t whole = 0, at = r->out.n;
    while (whole < digits.n && isxdigit((unsigned char)digits.p[whole])) whole++;
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % every == 0) ag_trun_put(r, &separator, 1);
        ag_trun_put(r, digits.p + i, 1);
    }
    ag_trun_put(r, digits.p + whole, digits.n - whole);
    return ag_trun_cut(r, at).s;
}

static void put_number(ag_trun *r, const spec *s, bool negative, const char *prefix, ag_ttext digits)
{
    char head[8];
    int n = snprintf(head, sizeof head, "%s%s", negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "", prefix);
    bool decimal = !strchr("xXob", s->type) || !s->type;
    if (s->group) digits = grouped(r, digits, s->group, decimal ? 3 : 4);
    put_padded(r, s, s->align ? s->align : '>', (ag_ttext){head, (size_t)n}, digits);
}

static void put_float_value(ag_trun *r, const spec *s, double f)
{
    char body[1024], pattern[16];
    char type = s->type ? s->type : s->precision >= 0 ? 'g' : 'r';
    bool percent = type == '%', negative = signbit(f) && !isnan(f);
    double size = fabs(f) * (percent ? 100 : 1);
    if (s->precision > MAX_PRECISION) ag_trun_refuse(r, "a precision of that many digits in", "a format");
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (!isfinite(size)) {
        bool upper = isupper((unsigned char)type);
        snprintf(body, sizeof body, "%s", isnan(size) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    } else if (type == 'r') {
        size_t at = r->out.n;
        ag_tval_repr(r, ag_tval_float(size));
        ag_tval text = ag_trun_cut(r, at);
        snprintf(body, sizeof body, "%.*s", (int)text.s.n, text.s.p);
    } else {
        snprintf(pattern, sizeof pattern, "%%%s.*%c", s->alternate ? "#" : "", percent ? 'f' : type);
        snprintf(body, sizeof body - 4, pattern, precision, size);
        if (!s->type && !strpbrk(body, ".en")) strcat(body, ".0");
    }
    if (percent) strcat(body, "%");
    put_number(r, s, negative, "", (ag_ttext){body, strlen(body)});
}

static void put_int_value(ag_trun *r, const spec *s, ag_tint i)
{
    if (s->type && strchr("eEfFgG%", s->type)) {
        put_float_value(r, s, (double)i);
        return;
    }
    if (s->type && !strchr("dnboxX", s->type))
        ag_trun_fail(r, "ValueError", "Unknown format code '%c' for object of type 'int'", s->type);
    unsigned base = s->type == 'b' ? 2 : s->type == 'o' ? 8 : s->type == 'x' || s->type == 'X' ? 16 : 10;
    char digits[160];
    size_t at = r->out.n;
    ag_trun_put_int(r, i, base);
    ag_tval text = ag_trun_cut(r, at);
    bool negative = i < 0;
    int n = snprintf(digits, sizeof digits, "%.*s", (int)(text.s.n - negative), text.s.p + negative);
    if (s->type == 'X')
        for (char *c = digits; *c; c++) *c = (char)toupper((unsigned char)*c);
    const char *prefix = !s->alternate || base == 10 ? "" : base == 2 ? "0b" : base == 8 ? "0o" : s->type == 'X' ? "0X" : "0x";
    put_number(r, s, negative, prefix, (ag_ttext){digits, (size_t)n});
}

void ag_trun_put_fixed(ag_trun *r, double f, int digits)
{
    spec s = no_spec;
    s.type = 'f';
    s.precision = digits;
    put_float_value(r, &s, f);
}

/* ---- "%…" % values
 * ------------------------------------------------------------------------------------------------------------------------------
 */
typedef struct {
    ag_trun *r;
    ag_ttext format;
    size_t at;
    ag_tval values;
    size_t next; /* of a tuple, or of the single value */
    bool escapes;
} percent;

static char look(const percent *p) { return p->at < p->format.n ? p->format.p[p->at] : 0; }

static ag_tval next_value(percent *p)
{
    bool tuple = p->values.kind == AG_T_TUPLE;
    size_t n = tuple ? p->values.list->n : 1;
    if (p->next >= n) ag_trun_fail(p->r, "TypeError", "not enough arguments for format string");
    ag_tval v = tuple ? p->values.list->at[p->next] : p->values;
    p->next++;
    return v;
}

static ag_tval named_value(percent *p)
{
    size_t from = ++p->at, depth = 1;
    for (; p->at < p->format.n; p->at++) {
        depth += p->format.p[p->at] == '(';
        depth -= p->format.p[p->at] == ')';
        if (!depth) break;
    }
    if (p->at == p->format.n) ag_trun_fail(p->r, "ValueError", "incomplete format key");
    if (p->values.kind != AG_T_DICT) ag_trun_fail(p->r, "TypeError", "format requires a mapping");
    const ag_tval *v = ag_tdict_find_text(p->values.dict, (ag_ttext){p->format.p + from, p->at - from});
    if (!v) ag_trun_fail(p->r, "KeyError", "'%.*s'", (int)(p->at - from), p->format.p + from);
    p->at++;
    p->next = 1;
    return *v;
}

static int64_t read_count(percent *p)
{
    int64_t n = 0;
    if (look(p) == '*') {
        p->at++;
        return ag_targs_int(p->r, next_value(p), 0);
    }
    for (; isdigit((unsigned char)look(p)); p->at++) {
        n = n * 10 + (look(p) - '0');
        if (n > INT32_MAX) ag_trun_fail(p->r, "ValueError", "width too big");
    }
    return n;
}

static ag_tval as_text(percent *p, ag_tval v, char type)
{
    ag_trun *r = p->r;
    size_t at = r->out.n;
    if (type == 'r')
        ag_tval_repr(r, v);
    else
        ag_tval_print(r, v);
    ag_tval t = ag_trun_cut(r, at);
    if (!p->escapes || (v.kind == AG_T_STR && v.flags & AG_TF_SAFE)) return t;
    at = r->out.n;
    ag_trun_put_escaped(r, t.s);
    return ag_trun_cut(r, at);
}

static void put_percent_value(percent *p, spec *s, ag_tval v)
{
    ag_trun *r = p->r;
    char type = s->type == 'i' || s->type == 'u' ? 'd' : s->type;
    s->type = type;
    switch (type) {
    case 's':
    case 'r':
        if (s->align == '=') s->align = '>', s->fill = ' ';
        if (!s->align) s->align = '>';
        put_text_value(r, s, as_text(p, v, type).s);
        return;
    case 'd':
    case 'o':
    case 'x':
    case 'X':
        ag_tval_need_defined(r, v);
        if (type == 'd' && v.kind == AG_T_FLOAT && fabs(v.f) < 0x1p126) v = ag_tval_int((ag_tint)v.f);
        if (!ag_tval_is_integral(v))
            ag_trun_fail(r, "TypeError", "%%%c format: a real number is required, not %s", type, ag_tval_type(v));
        put_int_value(r, s, ag_tval_integer(v));
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        ag_tval_need_defined(r, v);
        if (!ag_tval_is_number(v)) ag_trun_fail(r, "TypeError", "must be real number, not %s", ag_tval_type(v));
        put_float_value(r, s, ag_tval_double(v));
        return;
    case 'c':
        if (v.kind == AG_T_STR && ag_ttext_count(r, v.s) == 1) {
            put_text_value(r, s, v.s);
        } else {
            ag_tint c = ag_tval_is_integral(v) ? ag_tval_integer(v) : -1;
            if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) ag_trun_fail(r, "TypeError", "%%c requires int or char");
            ag_trun_put_char(r, (uint32_t)c);
        }
        return;
    default: ag_trun_fail(r, "ValueError", "unsupported format character '%c'", isprint((unsigned char)type) ? type : '?');
    }
}

static void put_directive(percent *p)
{
    ag_tval v = {.kind = AG_T_ABSENT};
    spec s = no_spec;
    if (look(p) == '(') v = named_value(p);
    for (bool flags = true; flags;) {
        switch (look(p)) {
        case '-': s.align = '<'; break;
        case '+': s.sign = '+'; break;
        case ' ': s.sign = s.sign == '+' ? '+' : ' '; break;
        case '#': s.alternate = true; break;
        case '0': s.fill = '0'; break;
        default: flags = false;
        }
        p->at += flags;
    }
    s.width = read_count(p);
    if (s.width < 0) s.align = '<', s.width = s.width < -INT32_MAX ? INT32_MAX : -s.width;
    if (look(p) == '.') p->at++, s.precision = read_count(p);
    while (look(p) == 'h' || look(p) == 'l' || look(p) == 'L') p->at++;
    if (p->at >= p->format.n) ag_trun_fail(p->r, "ValueError", "incomplete format");
    s.type = p->format.p[p->at++];
    if (s.align == '<')
        s.fill = ' ';
    else if (s.fill == '0')
        s.align = '=';
    if (s.type == '%')
        ag_trun_put_word(p->r, "%");
    else
        put_percent_value(p, &s, ag_tval_given(v) ? v : next_value(p));
}

ag_tval ag_text_percent(ag_trun *r, ag_tval format, ag_tval values)
{
    percent p = {.r = r, .format = format.s, .values = values, .escapes = format.flags & AG_TF_SAFE};
    size_t at = r->out.n;
    while (p.at < p.format.n) {
        const char *next = memchr(p.format.p + p.at, '%', p.format.n - p.at);
        size_t end = next ? (size_t)(next - p.format.p) : p.format.n;
        ag_trun_put(r, p.format.p + p.at, end - p.at);
        p.at = end + 1;
        if (!next) break;
        ag_trun_work(r, 1);
        put_directive(&p);
    }
    size_t n = values.kind == AG_T_TUPLE ? values.list->n : 1;
    /* Python does not count what has items. */
    bool may_be_left =
        values.kind == AG_T_DICT || values.kind == AG_T_LIST || values.kind == AG_T_RANGE || values.kind == AG_T_UNDEFINED;
    if (p.next < n && !may_be_left) ag_trun_fail(r, "TypeError", "not all arguments converted during string formatting");
    ag_tval text = ag_trun_cut(r, at);
    text.flags = format.flags;
    return text;
}

/* ---- "{…}".format(values)
 * -------------------------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_trun *r;
    const ag_targs *args;
    int64_t next; /* automatic number; -1 once numbers were given */
    bool counted; /* automatic numbers were used */
    int depth;
} formatter;

static void read_spec(ag_trun *r, ag_ttext t, spec *s)
{
    size_t at = 0, bytes = 0;
    *s = no_spec;
    if (t.n) ag_utf8_peek((const unsigned char *)t.p, 0, &bytes);
    if (t.n > bytes && strchr("<>=^", t.p[bytes]) && t.p[bytes]) {
        s->fill = ag_utf8_peek((const unsigned char *)t.p, 0, &bytes);
        s->align = t.p[bytes];
        at = bytes + 1;
    } else if (t.n && strchr("<>=^", t.p[0]) && t.p[0]) {
        s->align = t.p[at++];
    }
    if (at < t.n && strchr("+- ", t.p[at]) && t.p[at]) s->sign = t.p[at++];
    if (at < t.n && t.p[at] == '#') s->alternate = true, at++;
    if (at < t.n && t.p[at] == '0') {
        if (!s->align) s->align = '=', s->fill = '0';
        at++;
    }
    for (; at < t.n && isdigit((unsigned char)t.p[at]) && s->width < INT32_MAX; at++)
        s->width = s->width * 10 + (t.p[at] - '0');
    if (at < t.n && (t.p[at] == ',' || t.p[at] == '_')) s->group = t.p[at++];
    if (at < t.n && t.p[at] == '.') {
        s->precision = 0;
        for (at++; at < t.n && isdigit((unsigned char)t.p[at]) && s->precision < INT32_MAX; at++)
            s->precision = s->precision * 10 + (t.p[at] - '0');
    }
    if (at < t.n) s->type = t.p[at++];
    if (at != t.n || (s->type && !isalpha((unsigned char)s->type) && s->type != '%'))
        ag_trun_fail(r, "ValueError", "Invalid format specifier");
}

static void put_formatted(formatter *f, ag_tval v, ag_ttext spec_text)
{
    ag_trun *r = f->r;
    spec s;
    if (!spec_text.n) {
        ag_tval_print(r, v);
        return;
    }
    read_spec(r, spec_text, &s);
    if (v.kind == AG_T_STR) {
        if (s.type && s.type != 's') ag_trun_fail(r, "ValueError", "Unknown format code '%c' for object of type 'str'", s.type);
        if (s.align == '=' && s.fill == '0') s.align = '<';
        if (s.align == '=') ag_trun_fail(r, "ValueError", "'=' alignment not allowed in string format specifier");
        put_text_value(r, &s, v.s);
    } else if (ag_tval_is_integral(v)) {
        put_int_value(r, &s, ag_tval_integer(v));
    } else if (v.kind == AG_T_FLOAT) {
        if (s.type && !strchr("eEfFgGn%", s.type))
            ag_trun_fail(r, "ValueError", "Unknown format code '%c' for object of type 'float'", s.type);
        if (s.type == 'n') s.type = 'g';
        put_float_value(r, &s, v.f);
    } else {
        ag_trun_fail(r, "TypeError", "unsupported format string passed to %s.__format__", ag_tval_type(v));
    }
}

static bool read_number(ag_ttext t, int64_t *n)
{
    *n = 0;
    for (size_t i = 0; i < t.n; i++) {
        if (!isdigit((unsigned char)t.p[i]) || *n > INT32_MAX) return false;
        *n = *n * 10 + (t.p[i] - '0');
    }
    return t.n > 0;
}

static ag_tval first_value(formatter *f, ag_ttext name)
{
    ag_trun *r = f->r;
    int64_t number;
    bool automatic = name.n == 0;
    if (!automatic && !read_number(name, &number)) {
        for (size_t i = 0; i < f->args->n_keyword; i++)
            if (ag_ttext_compare(f->args->keyword[i].name, name) == 0) return f->args->keyword[i].value;
        ag_trun_fail(r, "KeyError", "'%.*s'", (int)name.n, name.p);
    }
    if (automatic ? f->next < 0 : f->counted)
        ag_trun_fail(r, "ValueError", "cannot switch between manual field specification and automatic field numbering");
    if (automatic)
        number = f->next++, f->counted = true;
    else
        f->next = -1;
    if ((size_t)number >= f->args->n)
        ag_trun_fail(r, "IndexError", "Replacement index %lld out of range for positional args tuple", (long long)number);
    return f->args->at[number];
}

/* "0.name[key]" */
static ag_tval field_value(formatter *f, ag_ttext name)
{
    size_t at = 0;
    while (at < name.n && name.p[at] != '.' && name.p[at] != '[') at++;
    ag_tval v = first_value(f, (ag_ttext){name.p, at});
    while (at < name.n) {
        bool item = name.p[at] == '[';
        size_t from = ++at;
        while (at < name.n && (item ? name.p[at] != ']' : name.p[at] != '.' && name.p[at] != '[')) at++;
        ag_ttext part = {name.p + from, at - from};
        int64_t number;
        if (!part.n || (item && at == name.n)) ag_trun_fail(f->r, "ValueError", "Empty attribute in format string");
        if (item) at++;
        if (item && at < name.n && name.p[at] != '.' && name.p[at] != '[')
            ag_trun_fail(f->r, "ValueError", "Only '.' or '[' may follow ']' in format field specifier");
        if (!item)
            v = ag_tval_attr(f->r, v, part);
        else
            v = ag_tval_item(f->r, v, read_number(part, &number) ? ag_tval_int(number) : ag_tval_text(part.p, part.n));
    }
    return v;
}

static void put_template(formatter *f, ag_ttext t);

static void put_field(formatter *f, ag_ttext field)
{
    ag_trun *r = f->r;
    size_t at = 0, brackets = 0;
    for (; at < field.n; at++) {
        brackets += field.p[at] == '[';
        if (field.p[at] == ']' && brackets) brackets--;
        if (!brackets && (field.p[at] == '!' || field.p[at] == ':')) break;
    }
    ag_tval v = field_value(f, (ag_ttext){field.p, at});
    if (at < field.n && field.p[at] == '!') {
        char how = at + 1 < field.n ? field.p[at + 1] : 0;
        if (how != 's' && how != 'r') ag_trun_fail(r, "ValueError", "only the conversions !s and !r are supported");
        size_t start = r->out.n;
        if (how == 'r')
            ag_tval_repr(r, v);
        else
            ag_tval_print(r, v);
        v = ag_trun_cut(r, start);
        at += 2;
        if (at < field.n && field.p[at] != ':') ag_trun_fail(r, "ValueError", "expected ':' after conversion specifier");
    }
    ag_ttext spec_text = {"", 0};
    if (at < field.n) {
        size_t start = r->out.n;
        if (++f->depth > 2) ag_trun_fail(r, "ValueError", "Max string recursion exceeded");
        put_template(f, (ag_ttext){field.p + at + 1, field.n - at - 1});
        f->depth--;
        spec_text = ag_trun_cut(r, start).s;
    }
    put_formatted(f, v, spec_text);
}

static void put_template(formatter *f, ag_ttext t)
{
    for (size_t at = 0; at < t.n;) {
        char c = t.p[at];
        ag_trun_work(f->r, 1);
        if (c != '{' && c != '}') {
            size_t from = at;
            while (at < t.n && t.p[at] != '{' && t.p[at] != '}') at++;
            ag_trun_put(f->r, t.p + from, at - from);
        } else if (at + 1 < t.n && t.p[at + 1] == c) {
            ag_trun_put(f->r, &c, 1);
            at += 2;
        } else {
            if (c == '}') ag_trun_fail(f->r, "ValueError", "Single '}' encountered in format string");
            size_t end = at + 1, depth = 1;
            for (; end < t.n; end++) {
                depth += t.p[end] == '{';
                depth -= t.p[end] == '}';
                if (!depth) break;
            }
            if (end == t.n) ag_trun_fail(f->r, "ValueError", "expected '}' before end of string");
            put_field(f, (ag_ttext){t.p + at + 1, end - at - 1});
            at = end + 1;
        }
    }
}

ag_tval ag_text_format(ag_trun *r, ag_ttext format, const ag_targs *args)
{
    formatter f = {.r = r, .args = args};
    size_t at = r->out.n;
    put_template(&f, format);
    return ag_trun_cut(r, at);
}
