/* SentencePiece's precompiled character map: a double-array trie (darts-clone) from texts to places in a list of NUL-terminated
 * replacements. Layout, little-endian: u32 bytes of the trie, the trie's u32 units, then the replacements. */
#include "text/normalizer.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct ag_charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts; /* ends in NUL */
    size_t n_texts;
};

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static unsigned char *base64_decode(const char *text, size_t n, size_t *n_out)
{
    unsigned char *out = malloc(n / 4 * 3 + 4);
    if (!out) ag_out_of_memory(n);
    uint32_t bits = 0;
    int n_bits = 0;
    *n_out = 0;
    for (size_t i = 0; i < n && text[i] != '='; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0) return free(out), NULL;
        bits = bits << 6 | (uint32_t)digit;
        n_bits += 6;
        if (n_bits >= 8) out[(*n_out)++] = (unsigned char)(bits >> (n_bits -= 8));
    }
    return out;
}

ag_status ag_charsmap_create(struct ag_charsmap **out, const char *base64, size_t n, const char *name, ag_err *err)
{
    size_t n_bytes;
    *out = NULL;
    unsigned char *bytes = base64_decode(base64, n, &n_bytes);
    uint32_t trie_bytes = 0;
    if (bytes && n_bytes >= 4)
        trie_bytes = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    if (!bytes || n_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > n_bytes - 4) {
        free(bytes);
        return ag_fail(err, AG_E_FORMAT, "%s: 'precompiled_charsmap' is no character map of SentencePiece", name);
    }
    struct ag_charsmap *map = calloc(1, sizeof *map);
    if (!map) ag_out_of_memory(sizeof *map);
    map->n_units = trie_bytes / 4;
    map->units = malloc(trie_bytes);
    map->n_texts = n_bytes - 4 - trie_bytes;
    map->texts = malloc(map->n_texts + 1);
    if (!map->units || !map->texts) ag_out_of_memory(n_bytes);
    for (size_t i = 0; i < map->n_units; i++) {
        const unsigned char *u = bytes + 4 + i * 4;
        map->units[i] = u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
    }
    memcpy(map->texts, bytes + 4 + trie_bytes, map->n_texts);
    map->texts[map->n_texts] = 0;
    free(bytes);
    *out = map;
    return AG_OK;
}

void ag_charsmap_free(struct ag_charsmap **map)
{
    if (!*map) return;
    free((*map)->units);
    free((*map)->texts);
    free(*map);
    *map = NULL;
}

/* Units of darts-clone: bit 8 says that a leaf follows, bits 10… are the offset (shifted by 8 where bit 9 is set), the low byte
 * and bit 31 the label; a leaf's value is its low 31 bits. */
static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 0x200u) >> 6); }

/* The replacement of the shortest prefix of the text that has one; NULL: none. As the original, which takes the first result of
 * a common prefix search, this also serves texts that merely begin with a mapped one. */
static const char *replacement(const struct ag_charsmap *map, const unsigned char *text, size_t n)
{
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= text[i];
        if (at >= map->n_units) return NULL;
        uint32_t unit = map->units[at];
        if ((unit & 0x800000ffu) != text[i]) return NULL;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= map->n_units) return NULL;
        size_t value = map->units[at] & 0x7fffffffu;
        return value < map->n_texts && ag_utf8_valid(map->texts + value, strlen(map->texts + value)) ? map->texts + value
                                                                                                     : NULL;
    }
    return NULL;
}

static size_t count_chars(const unsigned char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (text[i] & 0xc0) != 0x80;
    return count;
}

/* What a piece becomes, before it is written: a later replacement may still change what the last character stands for. */
typedef struct {
    uint32_t c;
    int change;
} mapped_char;

typedef struct {
    mapped_char *chars;
    size_t n, room;
} mapped_text;

static void push_mapped(mapped_text *m, uint32_t c)
{
    if (m->n == m->room) {
        m->room = m->room ? m->room * 2 : 256;
        m->chars = realloc(m->chars, m->room * sizeof *m->chars);
        if (!m->chars) ag_out_of_memory(m->room * sizeof *m->chars);
    }
    m->chars[m->n++] = (mapped_char){c, 0};
}

/* Characters stand for one another in order; of more new ones the last are additions, of fewer the last takes the rest with it.
 */
static void push_replacement(mapped_text *m, const char *text, size_t old_chars)
{
    size_t n = strlen(text), new_chars = count_chars((const unsigned char *)text, n), bytes;
    for (size_t at = 0; at < n; at += bytes) push_mapped(m, ag_utf8_peek((const unsigned char *)text, at, &bytes));
    for (size_t k = old_chars; k < new_chars; k++) m->chars[m->n - 1 - (k - old_chars)].change = 1;
    if (new_chars < old_chars && m->n > 0) m->chars[m->n - 1].change -= (int)(old_chars - new_chars);
}

static size_t grapheme_end(const unsigned char *text, size_t n, size_t at)
{
    utf8proc_int32_t state = 0;
    size_t bytes;
    uint32_t c = ag_utf8_peek(text, at, &bytes);
    for (at += bytes; at < n; at += bytes) {
        uint32_t next = ag_utf8_peek(text, at, &bytes);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) break;
        c = next;
    }
    return at;
}

/* False where nothing of the text is mapped. */
static bool map_text(const struct ag_charsmap *map, mapped_text *m, const unsigned char *text, size_t n)
{
    bool any = false;
    size_t bytes;
    for (size_t at = 0, end; at < n; at = end) {
        end = grapheme_end(text, n, at);
        const char *to = end - at < 6 ? replacement(map, text + at, end - at) : NULL;
        any |= to != NULL;
        if (to) push_replacement(m, to, count_chars(text + at, end - at));
        for (size_t k = at; k < end && !to; k += bytes) {
            uint32_t c = ag_utf8_peek(text, k, &bytes);
            const char *one = replacement(map, text + k, bytes);
            any |= one != NULL;
            if (one)
                push_replacement(m, one, 1);
            else
                push_mapped(m, c);
        }
    }
    return any;
}

void ag_charsmap_apply(const struct ag_charsmap *map, ag_pieces *p)
{
    mapped_text m = {0};
    ag_rewrite_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (!ag_rewrite_piece(p, i)) continue;
        size_t n = p->source->end - p->source->start;
        m.n = 0;
        if (map_text(map, &m, ag_piece_text(p, p->source), n)) {
            for (size_t k = 0; k < m.n; k++) ag_rewrite_put(p, m.chars[k].c, m.chars[k].change);
        } else {
            ag_rewrite_keep(p, n);
        }
        ag_rewrite_piece_end(p);
    }
    ag_rewrite_end(p);
    free(m.chars);
}
