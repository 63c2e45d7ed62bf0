#include "text/unicode_class.h"

#include <pthread.h>
#include <utf8proc.h>

static uint16_t kinds[AG_CODE_POINTS];
static uint64_t nfc_may_change[AG_CODE_POINTS / 64];
static pthread_once_t kinds_once = PTHREAD_ONCE_INIT, nfc_once = PTHREAD_ONCE_INIT;

static void fill_kinds(void)
{
    enum { N_RANGES = sizeof unicode_ranges / sizeof *unicode_ranges };
    for (size_t i = 0; i < N_RANGES; i++) {
        uint32_t end = i + 1 < N_RANGES ? unicode_ranges[i + 1] >> 8 : AG_CODE_POINTS;
        uint16_t kind = unicode_kinds[unicode_ranges[i] & 0xff];
        for (uint32_t c = unicode_ranges[i] >> 8; c < end; c++) kinds[c] = kind;
    }
}

const uint16_t *ag_unicode_kinds(void)
{
    pthread_once(&kinds_once, fill_kinds);
    return kinds;
}

/* A character may change when it has a decomposition that does not come back as itself, when its combining class is not 0, or
 * when it stands behind the first in any decomposition, for then it may be composed with what is in front of it. */
static void fill_nfc(void)
{
    for (uint32_t c = 0x80; c < AG_CODE_POINTS; c++) {
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
        bool jamo = (c >= 0x1160 && c <= 0x11ff) || (c >= 0xd7b0 && c <= 0xd7ff); /* composed by rule, not by table */
        bool changes = jamo || p->combining_class != 0;
        if (p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0) {
            utf8proc_int32_t buffer[32];
            int bound = 0;
            utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, buffer, 32, UTF8PROC_DECOMPOSE, &bound);
            for (utf8proc_ssize_t i = 1; i < n; i++) nfc_may_change[buffer[i] / 64] |= (uint64_t)1 << (buffer[i] % 64);
            if (n > 0) n = utf8proc_normalize_utf32(buffer, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
            changes |= n != 1 || buffer[0] != (utf8proc_int32_t)c;
        }
        if (changes) nfc_may_change[c / 64] |= (uint64_t)1 << (c % 64);
    }
}

bool ag_nfc_surely(const unsigned char *text, size_t n)
{
    size_t at = 0;
    while (at < n && text[at] < 0xcc) at++; /* below U+0300 nothing ever changes under NFC */
    if (at == n) return true;
    while (at > 0 && (text[at] & 0xc0) == 0x80) at--;
    pthread_once(&nfc_once, fill_nfc);
    while (at < n) {
        size_t bytes;
        uint32_t c = ag_utf8_peek(text, at, &bytes);
        if (nfc_may_change[c / 64] >> (c % 64) & 1) return false;
        at += bytes;
    }
    return true;
}

size_t ag_unicode_decompose(uint32_t c, bool compat, uint32_t out[32])
{
    if (c < 0x80) return out[0] = c, 1;
    utf8proc_int32_t buffer[32];
    int bound = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, buffer, 32,
                                                 compat ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE, &bound);
    if (n < 1 || n > 32) return out[0] = c, 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) out[i] = (uint32_t)buffer[i];
    return (size_t)n;
}

unsigned ag_unicode_combining_class(uint32_t c)
{
    return c < 0x300 ? 0 : (unsigned)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

uint32_t ag_unicode_compose(uint32_t a, uint32_t b)
{
    if (b < 0x300) return 0;
    utf8proc_int32_t pair[2] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 ? (uint32_t)pair[0] : 0;
}

size_t ag_unicode_lower(uint32_t c, uint32_t out[2])
{
    if (c == 0x130) return out[0] = 'i', out[1] = 0x307, 2;
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}
