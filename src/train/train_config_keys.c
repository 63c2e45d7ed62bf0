#include "train/train_config_keys.h"

#include <stdio.h>
#include <string.h>

/* The table's members must have the types that reading and writing assume. */
#define MEMBER(m)                      (((ag_train_config *)0)->m)
#define IS(m, type)                    _Static_assert(_Generic(MEMBER(m), type : 1, default : 0), #m " must be a " #type)
#define TEXT(s, m, d, nullable, help)  IS(m, const char *);
#define FLAG(s, m, d, help)            IS(m, bool);
#define INT(s, m, d, lo, hi, help)     IS(m, int64_t);
#define COUNT(s, m, d, hi, help)       IS(m, int64_t);
#define REAL(s, m, d, lo, below, help) IS(m, double);
#define CHOICE(s, m, d, words, help)   _Static_assert(sizeof MEMBER(m) == sizeof(int), #m " must be an enum");
#define OPTION(s, m, lo, below, help)  IS(m, double);
#define LIST(s, m, d, help)            IS(m, ag_text_list);
#define NAMES(s, m, d, help)           IS(m, ag_text_list);
#define INTS(s, m, help)               IS(m, ag_int_list);
#define MAP(s, m, help)                IS(m, ag_lora_override_list);
AG_TRAIN_KEYS(TEXT, FLAG, INT, COUNT, REAL, OPTION, CHOICE, LIST, NAMES, INTS, MAP)
#undef TEXT
#undef FLAG
#undef INT
#undef COUNT
#undef REAL
#undef CHOICE
#undef OPTION
#undef LIST
#undef NAMES
#undef INTS
#undef MAP

#define ROW(k, s, m, h)                .kind = AG_CONFIG_##k, .section = AG_SECTION_##s, .key = #m, .help = h
#define AT(m)                          .offset = offsetof(ag_train_config, m)
#define TEXT(s, m, d, n, help)         {ROW(TEXT, s, m, help), AT(m), .text = d, .nullable = n},
#define FLAG(s, m, d, help)            {ROW(FLAG, s, m, help), AT(m), .flag = d},
#define INT(s, m, d, lo, hi, help)     {ROW(INT, s, m, help), AT(m), .whole = d, .min_whole = lo, .max_whole = hi},
#define COUNT(s, m, d, hi, help)       {ROW(COUNT, s, m, help), AT(m), .whole = d, .max_whole = hi, .nullable = true},
#define REAL(s, m, d, lo, below, help) {ROW(REAL, s, m, help), AT(m), .real = d, .min_real = lo, .below_real = below},
#define CHOICE(s, m, d, words, help)   {ROW(CHOICE, s, m, help), AT(m), .whole = d, .text = words},
#define OPTION(s, m, lo, below, help)  {ROW(OPTION, s, m, help), AT(m), .min_real = lo, .below_real = below, .nullable = true},
#define LIST(s, m, d, help)            {ROW(LIST, s, m, help), AT(m), .text = d, .nullable = true},
#define NAMES(s, m, d, help)           {ROW(NAMES, s, m, help), AT(m), .text = d, .nullable = true},
#define INTS(s, m, help)               {ROW(INTS, s, m, help), AT(m), .nullable = true},
#define MAP(s, m, help)                {ROW(MAP, s, m, help), AT(m), .nullable = true},
const ag_config_row ag_config_rows[] = {AG_TRAIN_KEYS(TEXT, FLAG, INT, COUNT, REAL, OPTION, CHOICE, LIST, NAMES, INTS, MAP)};
enum { N_ROWS = sizeof ag_config_rows / sizeof ag_config_rows[0] };
const size_t ag_n_config_rows = N_ROWS;

const char *const ag_config_sections[AG_N_SECTIONS] = {
    [AG_SECTION_TOP] = "",
    [AG_SECTION_QUANTIZATION] = "quantization",
    [AG_SECTION_TRAINING] = "training",
    [AG_SECTION_LORA] = "lora",
    [AG_SECTION_RUNTIME] = "runtime",
    [AG_SECTION_TELEMETRY] = "telemetry",
    [AG_SECTION_PROFILE] = "profile_window",
};

const char *ag_config_word(const char *words, size_t i, ag_arena *arena)
{
    for (; i > 0; i--) {
        words = strchr(words, '|');
        if (!words) return NULL;
        words++;
    }
    return ag_arena_strndup(arena, words, strcspn(words, "|"));
}

void ag_config_row_set_default(const ag_config_row *row, ag_train_config *config)
{
    void *member = (char *)config + row->offset;
    switch (row->kind) {
    case AG_CONFIG_TEXT: *(const char **)member = row->text; break;
    case AG_CONFIG_FLAG: *(bool *)member = row->flag; break;
    case AG_CONFIG_INT:
    case AG_CONFIG_COUNT: *(int64_t *)member = row->whole; break;
    case AG_CONFIG_REAL: *(double *)member = row->real; break;
    case AG_CONFIG_CHOICE: *(int *)member = (int)row->whole; break;
    case AG_CONFIG_LIST:
    case AG_CONFIG_NAMES: {
        ag_text_list *list = member;
        size_t n = 1;
        if (!row->text) break;
        for (const char *c = row->text; *c; c++) n += *c == '|';
        list->item = ag_arena_array(&config->arena, n, sizeof *list->item);
        list->n = n;
        for (size_t i = 0; i < n; i++) list->item[i] = ag_config_word(row->text, i, &config->arena);
        break;
    }
    case AG_CONFIG_OPTION:
    case AG_CONFIG_INTS:
    case AG_CONFIG_MAP: break; /* all zeros: null */
    }
}

/* "a|b" as "a, b" into out. */
static void spread_words(char *out, size_t room, const char *words)
{
    size_t at = 0;
    for (; *words && at + 3 < room; words++) {
        if (*words == '|') {
            out[at++] = ',';
            out[at++] = ' ';
        } else {
            out[at++] = *words;
        }
    }
    out[at] = '\0';
}

static void describe(const ag_config_row *row, ag_config_key_info *info, char fallback[64], char allowed[160])
{
    static const char *const types[] = {"string", "boolean", "integer", "integer", "number", "number", "string", "list of strings", "list of strings, string",
                                        "list of integers", "mapping of numbers"};
    *info = (ag_config_key_info){row->key, ag_config_sections[row->section], types[row->kind], fallback, allowed, row->help};
    fallback[0] = allowed[0] = '\0';
    switch (row->kind) {
    case AG_CONFIG_TEXT: snprintf(fallback, 64, "%s", row->text ? row->text : row->nullable ? "null" : ""); break;
    case AG_CONFIG_FLAG: snprintf(fallback, 64, "%s", row->flag ? "true" : "false"); break;
    case AG_CONFIG_INT:
        snprintf(fallback, 64, "%lld", (long long)row->whole);
        snprintf(allowed, 160, "%lld to %lld", (long long)row->min_whole, (long long)row->max_whole);
        break;
    case AG_CONFIG_COUNT:
        snprintf(fallback, 64, "%lld", (long long)row->whole);
        snprintf(allowed, 160, "null, 0 to %lld", (long long)row->max_whole);
        break;
    case AG_CONFIG_REAL:
        snprintf(fallback, 64, "%g", row->real);
        snprintf(allowed, 160, "from %g to below %g", row->min_real, row->below_real);
        break;
    case AG_CONFIG_CHOICE: {
        const char *word = row->text;
        for (int64_t i = 0; i < row->whole; i++) word = strchr(word, '|') + 1;
        snprintf(fallback, 64, "%.*s", (int)strcspn(word, "|"), word);
        spread_words(allowed, 160, row->text);
        break;
    }
    case AG_CONFIG_OPTION:
        snprintf(fallback, 64, "null");
        snprintf(allowed, 160, "null, from %g to below %g", row->min_real, row->below_real);
        break;
    case AG_CONFIG_LIST:
    case AG_CONFIG_NAMES:
        snprintf(fallback, 64, "null");
        if (!row->text) break;
        fallback[0] = '[';
        spread_words(fallback + 1, 62, row->text);
        strcat(fallback, "]");
        break;
    case AG_CONFIG_INTS:
    case AG_CONFIG_MAP: snprintf(fallback, 64, "null"); break;
    }
}

size_t ag_train_config_keys(const ag_config_key_info **info)
{
    static ag_config_key_info table[N_ROWS];
    static char fallback[N_ROWS][64], allowed[N_ROWS][160];
    for (size_t i = 0; i < N_ROWS; i++) describe(&ag_config_rows[i], &table[i], fallback[i], allowed[i]);
    *info = table;
    return N_ROWS;
}
