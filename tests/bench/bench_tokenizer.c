#define _GNU_SOURCE
/* How fast a tokenizer is, in MB of text a second:
 *
 *     bench_tokenizer TOKENIZER.json TEXT.txt [ROUNDS]
 *
 * Text goes in lines' company, about 4,000 bytes at a time, as rows of a data set do; and all of it at once. The peer is
 * tools/conformance/bench_tokenizer.py, on the same files. Both count processor time of one thread, which neighbours disturb
 * less than the clock on the wall. */
#include "base/arena.h"
#include "base/fs.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW = 4000 };

static ag_err err;

static void need(ag_status status)
{
    if (!status) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One pass; the number of tokens. */
static size_t pass(const ag_tokenizer *t, ag_tokenizer_scratch *scratch, const char *text, size_t n, size_t row, bool ids_only,
                   ag_encoding *e)
{
    size_t tokens = 0;
    ag_encode_options options = {.ids_only = ids_only};
    for (size_t at = 0; at < n;) {
        size_t end = at + row < n ? at + row : n;
        const char *line_end = end < n ? memchr(text + end, '\n', n - end) : NULL;
        end = line_end ? (size_t)(line_end - text) + 1 : n;
        ag_encoding_clear(e);
        need(ag_tokenizer_encode(t, scratch, text + at, end - at, &options, e, &err));
        tokens += e->n;
        at = end;
    }
    return tokens;
}

static void measure(const ag_tokenizer *t, const ag_map *text, const char *what, size_t row, bool ids_only, int rounds)
{
    ag_encoding e = {0};
    double best = 1e30;
    size_t tokens = 0;
    for (int i = 0; i < rounds; i++) {
        ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create(); /* an empty cache each time */
        double start = now();
        tokens = pass(t, scratch, (const char *)text->bytes, text->n, row, ids_only, &e);
        double seconds = now() - start;
        if (seconds < best) best = seconds;
        ag_tokenizer_scratch_free(&scratch);
    }
    printf("%-32s %8.1f MB/s  %zu tokens, %.2f bytes each\n", what, (double)text->n / 1e6 / best, tokens,
           (double)text->n / (double)tokens);
    ag_encoding_free(&e);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER.json TEXT.txt [ROUNDS]\n");
        return 2;
    }
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    ag_map json, text;
    ag_tokenizer *t = NULL;
    need(ag_map_open(&json, argv[1], &err));
    need(ag_map_open(&text, argv[2], &err));
    double best = 1e30;
    for (int i = 0; i < rounds; i++) {
        ag_tokenizer_free(&t);
        double start = now();
        need(ag_tokenizer_from_json(
            &t, &(ag_tokenizer_files){.name = argv[1], .tokenizer = (const char *)json.bytes, .n_tokenizer = json.n}, &err));
        double ms = (now() - start) * 1e3;
        if (ms < best) best = ms;
    }
    printf("%-32s %8.1f ms    %.1f MB of JSON\n", "load", best, (double)json.n / 1e6);
    measure(t, &text, "rows, ids only", ROW, true, rounds);
    measure(t, &text, "rows, ids and offsets", ROW, false, rounds);
    measure(t, &text, "one text, ids and offsets", text.n, false, rounds);
    ag_tokenizer_free(&t);
    ag_map_close(&json);
    ag_map_close(&text);
    return 0;
}
