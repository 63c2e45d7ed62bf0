#define _GNU_SOURCE
#include "serve/answer_text.h"

#include <string.h>

void ag_answer_text_init(ag_answer_text *a, const ag_tokenizer *tokenizer, bool skip_special, const char *const *stops, int n_stops)
{
    *a = (ag_answer_text){.stream = {.tokenizer = tokenizer, .skip_special = skip_special}, .stops = stops, .n_stops = n_stops};
}

size_t ag_text_held_back(const char *text, size_t n, const char *word)
{
    const size_t n_word = strlen(word);
    for (size_t k = n_word > 0 ? n_word - 1 : 0; k > 0; k--)
        if (k <= n && memcmp(text + n - k, word, k) == 0) return k;
    return 0;
}

/* `from`: where the text was new; a stop text may have begun before it. */
static void look_for_stops(ag_answer_text *a, size_t from)
{
    char *first = NULL;
    for (int i = 0; i < a->n_stops; i++) {
        const size_t n_stop = strlen(a->stops[i]), start = from >= n_stop ? from - n_stop + 1 : 0;
        char *at = a->text.n > start ? memmem(a->text.text + start, a->text.n - start, a->stops[i], n_stop) : NULL;
        if (at && (!first || at < first)) first = at;
    }
    if (!first) return;
    a->text.n = (size_t)(first - a->text.text);
    *first = 0;
    a->stopped = true;
}

static void find_certain(ag_answer_text *a, bool is_last)
{
    size_t held = 0;
    for (int i = 0; i < a->n_stops && !is_last && !a->stopped; i++) {
        const size_t n = ag_text_held_back(a->text.text ? a->text.text : "", a->text.n, a->stops[i]);
        if (n > held) held = n;
    }
    if (a->text.n - held > a->certain) a->certain = a->text.n - held;
}

void ag_answer_text_add(ag_answer_text *a, int32_t id)
{
    const size_t from = a->text.n;
    ag_decode_stream_add(&a->stream, id, &a->text);
    look_for_stops(a, from);
    find_certain(a, false);
}

void ag_answer_text_end(ag_answer_text *a)
{
    const size_t from = a->text.n;
    const bool stopped = a->stopped;
    ag_decode_stream_end(&a->stream, &a->text);
    if (stopped) a->text.n = from;
    else look_for_stops(a, from);
    find_certain(a, true);
}

void ag_answer_text_free(ag_answer_text *a)
{
    ag_str rest = {0};
    ag_decode_stream_end(&a->stream, &rest); /* frees what it keeps */
    ag_str_free(&rest);
    ag_str_free(&a->text);
}
