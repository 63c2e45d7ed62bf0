/* Operations on texts that filters and methods share: case, replacing, padding, dates. */
#define _GNU_SOURCE
#include "text/template_run.h"
#include "text/unicode_class.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

ag_tval ag_text_replace(ag_trun *r, ag_ttext t, ag_ttext from, ag_ttext to, int64_t count)
{
    size_t at = r->out.n;
    ag_trun_work(r, t.n / 64);
    if (!from.n) { /* between all code points, and at both ends */
        for (size_t i = 0, bytes; i <= t.n; i += bytes) {
            if (count != 0) ag_trun_put_text(r, to), count--;
            if (i == t.n) break;
            ag_utf8_peek((const unsigned char *)t.p, i, &bytes);
            ag_trun_work(r, 1);
            ag_trun_put(r, t.p + i, bytes);
        }
        return ag_trun_cut(r, at);
    }
    for (const char *found; count != 0 && (found = memmem(t.p, t.n, from.p, from.n)); count--) {
        ag_trun_work(r, 1);
        ag_trun_put(r, t.p, (size_t)(found - t.p));
        ag_trun_put_text(r, to);
        t.n -= (size_t)(found - t.p) + from.n;
        t.p = found + from.n;
    }
    if (r->out.n == at) return ag_tval_text(t.p, t.n); /* nothing to replace, or all that stood before became empty */
    ag_trun_put_text(r, t);
    return ag_trun_cut(r, at);
}

ag_ttext ag_text_strip_set(ag_ttext t, ag_ttext set, bool left, bool right)
{
    size_t bytes;
    if (!set.n) return t;
    while (left && t.n) {
        ag_utf8_peek((const unsigned char *)t.p, 0, &bytes);
        if (!memmem(set.p, set.n, t.p, bytes)) break;
        t.p += bytes, t.n -= bytes;
    }
    while (right && t.n) {
        ag_utf8_before((const unsigned char *)t.p, t.n, &bytes);
        if (!memmem(set.p, set.n, t.p + t.n - bytes, bytes)) break;
        t.n -= bytes;
    }
    return t;
}

ag_tval ag_text_center(ag_trun *r, ag_ttext t, int64_t width, uint32_t fill, int where)
{
    int64_t n = (int64_t)ag_ttext_count(r, t), pad = width > n ? width - n : 0;
    int64_t left = where < 0 ? 0 : where > 0 ? pad : pad / 2 + (pad & width & 1);
    size_t at = r->out.n;
    for (int64_t i = 0; i < left; i++) ag_trun_work(r, 1), ag_trun_put_char(r, fill);
    ag_trun_put_text(r, t);
    for (int64_t i = left; i < pad; i++) ag_trun_work(r, 1), ag_trun_put_char(r, fill);
    return ag_trun_cut(r, at);
}

/* ---- case
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static uint32_t category(uint32_t c) { return AG_CAT_BIT(ag_unicode_kinds()[c] & 31); }

static bool is_cased(uint32_t c)
{
    return category(c) & (AG_CAT_BIT(AG_CAT_LU) | AG_CAT_BIT(AG_CAT_LL) | AG_CAT_BIT(AG_CAT_LT));
}

/* The full folding of one code point; at most 4. */
static size_t fold(uint32_t c, int32_t out[4])
{
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, out, 4, UTF8PROC_CASEFOLD, &boundary);
    if (n > 0 && n <= 4) return (size_t)n;
    out[0] = (int32_t)c;
    return 1;
}

/* Unicode's full mappings. Where one code point becomes several, its folding has the same letters in lower case, which saves a
 * table; İ and ẞ are capitals already. */
static void put_upper(ag_trun *r, uint32_t c, bool title)
{
    int32_t folded[4];
    size_t n = category(c) & AG_CAT_BIT(AG_CAT_LU) ? 1 : fold(c, folded);
    uint32_t simple = (uint32_t)(title ? utf8proc_totitle((int32_t)c) : utf8proc_toupper((int32_t)c));
    if (n == 1 || (title && simple != c)) {
        ag_trun_put_char(r, simple);
        return;
    }
    bool done = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t f = (uint32_t)folded[i], up = (uint32_t)utf8proc_toupper(folded[i]);
        if (title && done) up = f == 0x3b9 && c >= 0x1f80 ? 0x345 : f;
        done |= up != f;
        ag_trun_put_char(r, up);
    }
}

/* Whether the sigma that stands at [at, end) ends its word. */
static bool final_sigma(ag_ttext t, size_t at, size_t end)
{
    const unsigned char *p = (const unsigned char *)t.p;
    size_t bytes;
    uint32_t c = 0;
    static const uint32_t skipped =
        AG_CAT_BIT(AG_CAT_MN) | AG_CAT_BIT(AG_CAT_ME) | AG_CAT_BIT(AG_CAT_CF) | AG_CAT_BIT(AG_CAT_LM) | AG_CAT_BIT(AG_CAT_SK);
    for (; at > 0; at -= bytes) {
        c = ag_utf8_before(p, at, &bytes);
        if (!(category(c) & skipped) && c != '\'' && c != '.' && c != ':' && c != 0xb7 && c != 0x2019) break;
    }
    if (at == 0 || !is_cased(c)) return false;
    for (; end < t.n; end += bytes) {
        c = ag_utf8_peek(p, end, &bytes);
        if (!(category(c) & skipped) && c != '\'' && c != '.' && c != ':' && c != 0xb7 && c != 0x2019) return !is_cased(c);
    }
    return true;
}

static void put_lower(ag_trun *r, ag_ttext t, size_t at, size_t bytes, uint32_t c)
{
    uint32_t lower[2];
    if (c == 0x3a3) {
        ag_trun_put_char(r, final_sigma(t, at, at + bytes) ? 0x3c2 : 0x3c3);
        return;
    }
    size_t n = ag_unicode_lower(c, lower);
    for (size_t i = 0; i < n; i++) ag_trun_put_char(r, lower[i]);
}

static void put_folded(ag_trun *r, uint32_t c)
{
    int32_t folded[4];
    size_t n = fold(c, folded);
    for (size_t i = 0; i < n; i++) ag_trun_put_char(r, (uint32_t)folded[i]);
}

typedef enum { TO_UPPER, TO_LOWER, TO_TITLE, TO_CAPITALIZED, TO_FOLDED, TO_SWAPPED } letters;

static ag_tval change_case(ag_trun *r, ag_ttext t, letters to)
{
    size_t start = r->out.n, bytes;
    bool after_cased = false;
    for (size_t at = 0; at < t.n; at += bytes) {
        uint32_t c = ag_utf8_peek((const unsigned char *)t.p, at, &bytes);
        ag_trun_work(r, (at & 15) == 0);
        if (to == TO_FOLDED)
            put_folded(r, c);
        else if (to == TO_UPPER || (to == TO_SWAPPED && (category(c) & AG_CAT_BIT(AG_CAT_LL))))
            put_upper(r, c, false);
        else if ((to == TO_TITLE && !after_cased) || (to == TO_CAPITALIZED && at == 0))
            put_upper(r, c, true);
        else if (to == TO_SWAPPED && !is_cased(c))
            ag_trun_put_char(r, c);
        else
            put_lower(r, t, at, bytes, c);
        after_cased = is_cased(c);
    }
    return ag_trun_cut(r, start);
}

ag_tval ag_text_upper(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_UPPER); }
ag_tval ag_text_lower(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_LOWER); }
ag_tval ag_text_title(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_TITLE); }
ag_tval ag_text_capitalize(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_CAPITALIZED); }
ag_tval ag_text_casefold(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_FOLDED); }
ag_tval ag_text_swapcase(ag_trun *r, ag_ttext t) { return change_case(r, t, TO_SWAPPED); }

bool ag_text_has_case(ag_trun *r, ag_ttext t, bool upper)
{
    bool found = false;
    ag_trun_work(r, t.n / 16);
    for (size_t at = 0, bytes; at < t.n; at += bytes) {
        uint32_t c = category(ag_utf8_peek((const unsigned char *)t.p, at, &bytes));
        if (c & (AG_CAT_BIT(AG_CAT_LT) | AG_CAT_BIT(upper ? AG_CAT_LL : AG_CAT_LU))) return false;
        found |= c & AG_CAT_BIT(upper ? AG_CAT_LU : AG_CAT_LL) ? true : false;
    }
    return found;
}

/* ---- dates
 * ------------------------------------------------------------------------------------------------------------------------------------
 */
static struct tm date_of(ag_trun *r, long *microseconds)
{
    struct tm date = {0};
    *microseconds = 0;
    if (!r->date) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        *microseconds = now.tv_nsec / 1000;
        localtime_r(&now.tv_sec, &date);
        return date;
    }
    int year, month, day, end = 0;
    if (sscanf(r->date, "%4d-%2d-%2d%n", &year, &month, &day, &end) != 3 || r->date[end] || month < 1 || month > 12 ||
        day < 1 || day > 31)
        ag_trun_fail(r, "ValueError", "the date '%.20s' must look like 2030-01-31", r->date);
    date = (struct tm){.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day};
    time_t seconds = timegm(&date);
    gmtime_r(&seconds, &date);
    return date;
}

ag_tval ag_text_strftime(ag_trun *r, ag_ttext format)
{
    long microseconds;
    struct tm date = date_of(r, &microseconds);
    size_t start = r->out.n;
    for (size_t at = 0; at < format.n;) {
        if (format.p[at] != '%' || at + 1 == format.n) {
            ag_trun_put(r, format.p + at++, 1);
            continue;
        }
        char directive[8] = "%", text[128];
        size_t n = 1, next = at + 1;
        while (next < format.n && n < 3 && strchr("-_0^#EO", format.p[next])) directive[n++] = format.p[next++];
        if (next == format.n) {
            ag_trun_put(r, format.p + at, next - at);
            break;
        }
        char kind = directive[n++] = format.p[next++];
        if (kind == 'f') {
            snprintf(text, sizeof text, "%06ld", microseconds);
            ag_trun_put_word(r, text);
        } else if (kind != 'z' && kind != 'Z') { /* which are empty without a time zone */
            if (kind && (unsigned char)kind < 0x80)
                ag_trun_put(r, text, strftime(text, sizeof text, directive, &date));
            else
                ag_trun_put(r, format.p + at, next - at);
        }
        at = next;
    }
    return ag_trun_cut(r, start);
}
