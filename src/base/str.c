#include "base/str.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64, LONGEST_NEAR_WORD = 128 };

static void str_reserve(ag_str *s, size_t more)
{
    size_t need;
    if (__builtin_add_overflow(s->n, more, &need) || need >= SIZE_MAX / 2) ag_out_of_memory(SIZE_MAX);
    if (need < s->room) return; /* one more than n stays free for the NUL */
    size_t room = s->room ? s->room : FIRST_ROOM;
    while (room <= need) room *= 2;
    char *text = realloc(s->text, room);
    if (!text) ag_out_of_memory(room);
    s->text = text;
    s->room = room;
}

void ag_str_add_n(ag_str *s, const char *bytes, size_t n)
{
    str_reserve(s, n);
    if (n) memcpy(s->text + s->n, bytes, n);
    s->n += n;
    s->text[s->n] = 0;
}

void ag_str_add(ag_str *s, const char *text) { ag_str_add_n(s, text, strlen(text)); }

void ag_str_add_char(ag_str *s, char c) { ag_str_add_n(s, &c, 1); }

void ag_str_add_code_point(ag_str *s, uint32_t c)
{
    AG_ASSERT(c <= 0x10ffff);
    char b[4];
    if (c < 0x80) {
        ag_str_add_char(s, (char)c);
    } else if (c < 0x800) {
        b[0] = (char)(0xc0 | c >> 6);
        b[1] = (char)(0x80 | (c & 0x3f));
        ag_str_add_n(s, b, 2);
    } else if (c < 0x10000) {
        b[0] = (char)(0xe0 | c >> 12);
        b[1] = (char)(0x80 | (c >> 6 & 0x3f));
        b[2] = (char)(0x80 | (c & 0x3f));
        ag_str_add_n(s, b, 3);
    } else {
        b[0] = (char)(0xf0 | c >> 18);
        b[1] = (char)(0x80 | (c >> 12 & 0x3f));
        b[2] = (char)(0x80 | (c >> 6 & 0x3f));
        b[3] = (char)(0x80 | (c & 0x3f));
        ag_str_add_n(s, b, 4);
    }
}

void ag_str_printf(ag_str *s, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    AG_ASSERT(n >= 0);
    str_reserve(s, (size_t)n);
    vsnprintf(s->text + s->n, (size_t)n + 1, format, again);
    va_end(again);
    s->n += (size_t)n;
}

void ag_str_clear(ag_str *s)
{
    s->n = 0;
    if (s->text) s->text[0] = 0;
}

void ag_str_free(ag_str *s)
{
    free(s->text);
    *s = (ag_str){0};
}

bool ag_str_starts(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

bool ag_str_ends(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

static int min3(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

/* Optimal string alignment: insert, delete, replace, and swap of two neighbours cost 1 each. Three rows of the table are kept. */
static int edit_distance(const char *a, int n_a, const char *b, int n_b)
{
    int rows[3][LONGEST_NEAR_WORD + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= n_b; j++) last[j] = j;
    for (int i = 1; i <= n_a; i++) {
        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        int *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[n_b];
}

const char *ag_str_nearest(const char *word, const char *const *known, size_t n_known)
{
    size_t n = strlen(word);
    if (n == 0 || n > LONGEST_NEAR_WORD) return NULL;
    int best_distance = (int)n / 3 + 2;
    const char *best = NULL;
    for (size_t i = 0; i < n_known; i++) {
        size_t n_i = strlen(known[i]);
        if (n_i > LONGEST_NEAR_WORD) continue;
        int distance = edit_distance(word, (int)n, known[i], (int)n_i);
        if (distance < best_distance) {
            best_distance = distance;
            best = known[i];
        }
    }
    return best;
}

/* How the second byte is bounded by the first: overlong forms, surrogates and code points over U+10FFFF are cut off there
 * (Unicode 15, table 3-7). */
typedef struct {
    int n_more;
    unsigned char second_min, second_max;
    uint32_t bits;
} utf8_lead;

static utf8_lead utf8_lead_of(unsigned char c)
{
    if (c >= 0xc2 && c <= 0xdf) return (utf8_lead){1, 0x80, 0xbf, c & 0x1fu};
    if (c >= 0xe0 && c <= 0xef) return (utf8_lead){2, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf, c & 0x0fu};
    if (c >= 0xf0 && c <= 0xf4) return (utf8_lead){3, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf, c & 0x07u};
    return (utf8_lead){0};
}

/* False for a malformed sequence; *at is then behind its maximal subpart. */
static bool utf8_decode(const unsigned char *text, size_t n, size_t *at, uint32_t *code_point)
{
    unsigned char first = text[(*at)++];
    *code_point = first;
    if (first < 0x80) return true;
    utf8_lead lead = utf8_lead_of(first);
    uint32_t c = lead.bits;
    for (int i = 0; i < lead.n_more; i++) {
        unsigned char low = i == 0 ? lead.second_min : 0x80, high = i == 0 ? lead.second_max : 0xbf;
        if (*at >= n || text[*at] < low || text[*at] > high) return false;
        c = c << 6 | (text[(*at)++] & 0x3fu);
    }
    *code_point = c;
    return lead.n_more > 0;
}

uint32_t ag_utf8_next(const char *text, size_t n, size_t *at)
{
    AG_ASSERT(*at < n);
    uint32_t c;
    return utf8_decode((const unsigned char *)text, n, at, &c) ? c : 0xfffd;
}

bool ag_utf8_valid(const char *text, size_t n)
{
    uint32_t c;
    for (size_t at = 0; at < n;)
        if (!utf8_decode((const unsigned char *)text, n, &at, &c)) return false;
    return true;
}

size_t ag_utf8_count(const char *text, size_t n)
{
    size_t count = 0;
    uint32_t c;
    for (size_t at = 0; at < n; count++) (void)utf8_decode((const unsigned char *)text, n, &at, &c);
    return count;
}
