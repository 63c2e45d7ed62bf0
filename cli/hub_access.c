#define _GNU_SOURCE
#include "cli/hub_access.h"

#include "agoge_version.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_TOKEN_BYTES = 4096 };

/* A variable that is set and not empty, or NULL. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_true(const char *value)
{
    return value && (strcmp(value, "1") == 0 || strcasecmp(value, "on") == 0 || strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0);
}

/* Without the white space around it; NULL where nothing is left. */
static const char *token_of(const char *text, ag_arena *arena)
{
    if (!text) return NULL;
    while (strchr(" \t\r\n", *text) && *text) text++;
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    return n > 0 ? ag_arena_strndup(arena, text, n) : NULL;
}

static ag_status find_token(const char **token, const char *home, ag_arena *arena, ag_err *err)
{
    *token = token_of(variable("HF_TOKEN"), arena);
    if (!*token) *token = token_of(variable("HUGGING_FACE_HUB_TOKEN"), arena);
    if (*token) return AG_OK;
    char *path, *text;
    size_t n;
    const char *named = variable("HF_TOKEN_PATH");
    AG_TRY(ag_path_check(&path, named ? named : ag_path_join(arena, home, "token"), arena, err));
    if (!ag_path_is_file(path)) return AG_OK;
    AG_TRY(ag_file_read(&text, &n, path, MOST_TOKEN_BYTES, arena, err));
    *token = token_of(text, arena);
    return AG_OK;
}

ag_status cli_hub_options(ag_hub_options *out, ag_arena *arena, ag_err *err)
{
    const char *home = variable("HF_HOME"), *caches = variable("XDG_CACHE_HOME"), *offline = variable("HF_HUB_OFFLINE");
    *out = (ag_hub_options){.endpoint = variable("HF_ENDPOINT"), .user_agent = "agoge/" AGOGE_VERSION,
                            .ca_file = variable("CURL_CA_BUNDLE") ? variable("CURL_CA_BUNDLE") : variable("SSL_CERT_FILE"),
                            .offline = is_true(offline ? offline : variable("TRANSFORMERS_OFFLINE"))};
    if (!home) home = ag_path_join(arena, caches ? caches : "~/.cache", "huggingface");
    out->cache_dir = variable("HF_HUB_CACHE");
    if (!out->cache_dir) out->cache_dir = variable("HUGGINGFACE_HUB_CACHE");
    if (!out->cache_dir) out->cache_dir = ag_path_join(arena, home, "hub");
    return find_token(&out->token, home, arena, err);
}

/* ---- progress -------------------------------------------------------------------------------------------------------------------- */
struct cli_hub_bar {
    cli_progress progress;
    bool is_begun;
};

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes, size_t done_files, size_t total_files)
{
    cli_hub_bar *bar = user;
    if (total_bytes == 0) return;
    const int64_t done_kb = (int64_t)(done_bytes / 1000), total_kb = (int64_t)((total_bytes + 999) / 1000);
    if (!bar->is_begun) cli_progress_begin(&bar->progress, "kB", total_kb, done_kb);
    bar->is_begun = true;
    char text[64];
    snprintf(text, sizeof text, "%zu of %zu files", done_files, total_files);
    cli_progress_update(&bar->progress, done_files == total_files ? total_kb : done_kb, text);
}

cli_hub_bar *cli_hub_bar_begin(ag_hub_options *options, ag_arena *arena)
{
    cli_hub_bar *bar = ag_arena_alloc(arena, sizeof *bar);
    options->progress = on_progress;
    options->progress_user = bar;
    return bar;
}

void cli_hub_bar_end(cli_hub_bar *bar)
{
    if (bar->is_begun) cli_progress_end(&bar->progress);
}

/* ---- models ------------------------------------------------------------------------------------------------------------------------ */
ag_status cli_find_model(const char **path, const char *model, const char *revision, ag_arena *arena, ag_err *err)
{
    *path = model;
    if (ag_path_is_dir(model) || ag_path_is_file(model)) return AG_OK;
    if (!ag_hub_names_model(model))
        return ag_fail(err, AG_E_NOT_FOUND, "%s: there is no such folder or file; a model is a folder, a .gguf file, or org/name on the hub", model);
    ag_hub_options options;
    AG_TRY(cli_hub_options(&options, arena, err));
    cli_hub_bar *bar = cli_hub_bar_begin(&options, arena);
    const ag_status status = ag_hub_model(path, &options, model, revision, arena, err);
    cli_hub_bar_end(bar);
    return status;
}

/* ---- disk ------------------------------------------------------------------------------------------------------------------- */
enum { CACHE_MAX_DEPTH = 16, CACHE_MAX_ENTRIES = 1 << 20 };

/* Links are not followed, so each blob counts once. */
static void add_sizes(uint64_t *bytes, size_t *n, const char *dir, int depth)
{
    ag_arena arena = {0};
    ag_err ignored; /* what cannot be listed is not counted */
    char **names;
    size_t n_names;
    if (depth <= CACHE_MAX_DEPTH && !ag_dir_list(&names, &n_names, dir, &arena, &ignored))
        for (size_t i = 0; i < n_names && *n < CACHE_MAX_ENTRIES; i++, (*n)++) {
            const char *path = ag_path_join(&arena, dir, names[i]);
            struct stat st;
            if (lstat(path, &st)) continue;
            if (S_ISREG(st.st_mode)) *bytes += (uint64_t)st.st_blocks * 512;
            if (S_ISDIR(st.st_mode)) add_sizes(bytes, n, path, depth + 1);
        }
    ag_arena_free(&arena);
}

void cli_tell_cache_size(void)
{
    ag_arena arena = {0};
    ag_err ignored;
    ag_hub_options options;
    uint64_t bytes = 0;
    size_t n = 0;
    if (!cli_hub_options(&options, &arena, &ignored) && ag_path_is_dir(options.cache_dir)) {
        add_sizes(&bytes, &n, options.cache_dir, 0);
        fprintf(stderr, "hub cache  %s in %s\n", cli_bytes(bytes), options.cache_dir);
    }
    ag_arena_free(&arena);
}
