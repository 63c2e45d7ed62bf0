/* The hub's client against a server on this machine: the cache as huggingface_hub lays it out, and every way in which a server or a
 * network can misbehave. */
#define _GNU_SOURCE
#include "support/hub_server.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "hub/hub.h"
#include "hub/hub_names.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { N_LARGE = 60000 };
static char large[N_LARGE];
static const char config[] = "{\"model_type\": \"llama\"}\n", tokenizer[] = "{\"version\": \"1.0\"}";
static hub_file files[] = {{"config.json", config, sizeof config - 1, false},
                           {"model.safetensors", large, N_LARGE, true},
                           {"sub/dir/copy of config.json", config, sizeof config - 1, false},
                           {"tokenizer.json", tokenizer, sizeof tokenizer - 1, false},
                           {"README.md", "", 0, false}};
enum { N_FILES = sizeof files / sizeof *files };

static hub_server *server;
static ag_arena arena;
static ag_err err;
static ag_hub_options options;
static ag_hub_request request;
static ag_hub_snapshot snapshot;
static char etag[65];
static const char *last_words; /* of the log */

static void on_log(void *user, ag_log_level level, const char *text)
{
    (void)user, (void)level;
    last_words = ag_arena_strdup(&arena, text);
}

static void begin(hub_hook *hook, void *user)
{
    options = (ag_hub_options){.first_wait_s = 0.01, .stall_s = 1, .n_attempts = 3};
    options.cache_dir = ag_arena_printf(&arena, "%s/hub", scratch_dir_create());
    server = hub_server_start(files, N_FILES, hook, user);
    options.endpoint = hub_server_url(server);
    request = (ag_hub_request){.id = "org/name"};
    last_words = "";
    ag_log_set_sink(on_log, NULL);
}

static void end(void)
{
    hub_server_stop(server);
    scratch_dir_remove();
    ag_arena_free(&arena);
}

static void pull(void) { must(ag_hub_pull(&snapshot, &options, &request, &arena, &err)); }

#define pull_fails(code, part) must_fail(code, part, ag_hub_pull(&snapshot, &options, &request, &arena, &err))

static const char *in_repo(const char *name) { return ag_arena_printf(&arena, "%s/models--org--name/%s", options.cache_dir, name); }
static const char *in_snapshot(const char *name) { return ag_arena_printf(&arena, "%s/%s", in_repo("snapshots/" HUB_COMMIT), name); }

static void assert_holds(const char *path, const char *bytes, size_t n)
{
    char *text;
    size_t got;
    must(ag_file_read(&text, &got, path, 1 << 20, &arena, &err));
    assert_int_equal(got, n);
    assert_memory_equal(text, bytes, n);
}

static void assert_links_to(const char *file, const char *target)
{
    char link[512];
    const ssize_t n = readlink(in_snapshot(file), link, sizeof link - 1);
    assert_true(n > 0);
    link[n] = 0;
    assert_string_equal(link, target);
}

static int count_of(const char *folder)
{
    char **names;
    size_t n = 0;
    if (ag_path_is_dir(in_repo(folder))) must(ag_dir_list(&names, &n, in_repo(folder), &arena, &err));
    return (int)n;
}

/* No link, no ref, and no blob but whole ones of this repository: nothing wrong that a later run would trust. */
static void assert_nothing_to_trust(void)
{
    char **names;
    size_t n = 0;
    assert_int_equal(count_of("snapshots"), 0);
    assert_int_equal(count_of("refs"), 0);
    if (ag_path_is_dir(in_repo("blobs"))) must(ag_dir_list(&names, &n, in_repo("blobs"), &arena, &err));
    for (size_t i = 0; i < n; i++) {
        bool is_known = ag_str_ends(names[i], ".incomplete");
        for (int k = 0; k < N_FILES && !is_known; k++) {
            if (strcmp(names[i], hub_file_etag(&files[k], etag)) != 0) continue;
            assert_holds(in_repo(ag_arena_printf(&arena, "blobs/%s", etag)), files[k].bytes, files[k].n);
            is_known = true;
        }
        if (!is_known) fail_msg("blob %s is there", names[i]);
    }
}

/* ---- the cache ----------------------------------------------------------------------------------------------------------------- */
static void a_pull_lays_the_cache_out_as_huggingface_hub_does(void **state)
{
    (void)state;
    begin(NULL, NULL);
    pull();
    assert_string_equal(snapshot.path, in_repo("snapshots/" HUB_COMMIT));
    assert_string_equal(snapshot.commit, HUB_COMMIT);
    assert_int_equal(snapshot.n_files, N_FILES);
    assert_int_equal(snapshot.n_fetched, N_FILES - 1); /* two files are one blob */
    assert_int_equal(snapshot.bytes, 2 * (sizeof config - 1) + N_LARGE + sizeof tokenizer - 1);
    for (int i = 0; i < N_FILES; i++) {
        assert_holds(in_snapshot(files[i].name), files[i].bytes, files[i].n);
        assert_holds(in_repo(ag_arena_printf(&arena, "blobs/%s", hub_file_etag(&files[i], etag))), files[i].bytes, files[i].n);
    }
    assert_links_to("model.safetensors", ag_arena_printf(&arena, "../../blobs/%s", hub_file_etag(&files[1], etag)));
    assert_links_to("sub/dir/copy of config.json", ag_arena_printf(&arena, "../../../../blobs/%s", hub_file_etag(&files[0], etag)));
    assert_holds(in_repo("refs/main"), HUB_COMMIT, 40);
    assert_int_equal(count_of("blobs"), N_FILES - 1);
    assert_true(ag_path_is_file(ag_arena_printf(&arena, "%s/.locks/models--org--name/%s.lock", options.cache_dir, hub_file_etag(&files[1], etag))));
    assert_true(ag_path_is_file(ag_arena_printf(&arena, "%s/CACHEDIR.TAG", options.cache_dir)));
    end();
}

static void what_is_there_is_not_asked_for_again(void **state)
{
    (void)state;
    begin(NULL, NULL);
    pull();
    const int n = hub_server_count(server, "");
    pull();
    assert_int_equal(hub_server_count(server, ""), n + 1); /* the list */
    assert_int_equal(snapshot.n_fetched, 0);
    assert_int_equal(snapshot.n_files, N_FILES);
    end();
}

static void revisions_are_branches_tags_and_commits(void **state)
{
    (void)state;
    begin(NULL, NULL);
    request.revision = "v1/x";
    pull();
    assert_holds(in_repo("refs/v1/x"), HUB_COMMIT, 40);
    assert_int_equal(hub_server_count(server, "GET /api/models/org/name/revision/v1%2Fx"), 1);
    request.revision = HUB_COMMIT;
    pull();
    assert_int_equal(count_of("refs"), 1); /* a commit needs none */
    request.revision = "nope";
    pull_fails(AG_E_NOT_FOUND, "no such revision");
    request.revision = "../../x";
    pull_fails(AG_E_USAGE, "no revision");
    end();
}

static void patterns_choose_files(void **state)
{
    (void)state;
    begin(NULL, NULL);
    request.include = (const char *const[]){"*.json"};
    request.n_include = 1;
    pull();
    assert_int_equal(snapshot.n_files, 3);
    assert_false(ag_path_is_file(in_snapshot("model.safetensors")));
    request.include = (const char *const[]){"nothing.bin"};
    pull_fails(AG_E_NOT_FOUND, "'nothing.bin'");
    assert_true(ag_path_is_file(in_repo(".no_exist/" HUB_COMMIT "/nothing.bin")));
    end();
}

static void datasets_have_their_own_place(void **state)
{
    (void)state;
    begin(NULL, NULL);
    request.kind = AG_HUB_DATASET;
    pull();
    assert_string_equal(snapshot.path, ag_arena_printf(&arena, "%s/datasets--org--name/snapshots/" HUB_COMMIT, options.cache_dir));
    assert_int_equal(hub_server_count(server, "GET /api/datasets/org/name/revision/main"), 1);
    assert_int_equal(hub_server_count(server, "GET /datasets/org/name/resolve/" HUB_COMMIT "/config.json"), 1);
    end();
}

static void offline_takes_what_is_there(void **state)
{
    (void)state;
    begin(NULL, NULL);
    options.offline = true;
    pull_fails(AG_E_NOT_FOUND, "HF_HUB_OFFLINE");
    options.offline = false;
    pull();
    const int n = hub_server_count(server, "");
    options.offline = true;
    pull();
    assert_int_equal(snapshot.n_files, N_FILES);
    assert_int_equal(hub_server_count(server, ""), n);
    end();
}

static void a_damaged_blob_is_fetched_again(void **state)
{
    (void)state;
    begin(NULL, NULL);
    pull();
    const char *blob = in_repo(ag_arena_printf(&arena, "blobs/%s", hub_file_etag(&files[1], etag)));
    char *bytes = ag_arena_alloc(&arena, N_LARGE);
    memcpy(bytes, large, N_LARGE);
    bytes[777]++;
    must(ag_file_publish(blob, bytes, N_LARGE, &err));
    pull(); /* the length is right: not looked at */
    assert_int_equal(snapshot.n_fetched, 0);
    options.verify = true;
    pull();
    assert_int_equal(snapshot.n_fetched, 1);
    assert_holds(blob, large, N_LARGE);
    options.verify = false;
    must(ag_file_publish(blob, bytes, 100, &err));
    must(ag_remove_tree(in_repo("snapshots"), &err)); /* the server has to be asked how long it is */
    pull();
    assert_int_equal(snapshot.n_fetched, 1);
    assert_holds(blob, large, N_LARGE);
    end();
}

static void two_processes_do_not_fetch_one_blob_twice(void **state)
{
    (void)state;
    begin(NULL, NULL);
    const char *folder = ag_arena_printf(&arena, "%s/.locks/models--org--name", options.cache_dir);
    must(ag_make_dirs(folder, &err));
    ag_lock lock;
    must(ag_lock_take(&lock, folder, ag_arena_printf(&arena, "%s.lock", hub_file_etag(&files[1], etag)), &err));
    if (fork() == 0) { /* has the lock, and brings the blob */
        usleep(300000);
        if (ag_make_dirs(in_repo("blobs"), &err) ||
            ag_file_publish(in_repo(ag_arena_printf(&arena, "blobs/%s", etag)), large, N_LARGE, &err)) _exit(1);
        _exit(0); /* which ends the lock, ours closed */
    }
    ag_lock_release(&lock);
    pull();
    assert_int_equal(hub_server_count(server, "GET /cdn/"), 0);
    assert_non_null(strstr(last_words, "another process"));
    assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
    end();
}

/* ---- faults of the network -------------------------------------------------------------------------------------------------------- */
static void cut_once(void *user, const hub_asked *asked, hub_reply *reply)
{
    (void)user;
    if (asked->is_store && asked->n_times == 1) reply->cut_after = 20000;
}

static void a_cut_connection_is_resumed(void **state)
{
    (void)state;
    begin(cut_once, NULL);
    pull();
    assert_int_equal(hub_server_count(server, "GET /cdn/"), 2);
    assert_string_equal(hub_server_asked(server, "GET /cdn/", 1)->range, "bytes=20000-");
    assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
    end();
}

static void cut_always(void *user, const hub_asked *asked, hub_reply *reply)
{
    if (asked->is_store) reply->cut_after = *(int *)user ? 0 : 20000;
}

static void a_network_that_stays_cut_is_said_and_the_next_run_goes_on(void **state)
{
    (void)state;
    int nothing_comes = 1;
    begin(cut_always, &nothing_comes);
    pull_fails(AG_E_IO, "the connection was cut (tried 3 times)");
    assert_nothing_to_trust();
    must(ag_file_publish(in_repo(ag_arena_printf(&arena, "blobs/%s.incomplete", hub_file_etag(&files[1], etag))), large, 50000, &err));
    nothing_comes = 0;
    pull();
    assert_string_equal(hub_server_asked(server, "GET /cdn/", 3)->range, "bytes=50000-");
    assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
    end();
}

static void stall_once(void *user, const hub_asked *asked, hub_reply *reply)
{
    (void)user;
    if (asked->is_store && asked->n_times == 1) reply->stall_ms = 600;
}

static void a_stalled_connection_is_given_up_and_resumed(void **state)
{
    (void)state;
    begin(stall_once, NULL);
    options.stall_s = 0.2;
    pull();
    assert_int_equal(hub_server_count(server, "GET /cdn/"), 2);
    assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
    end();
}

static void no_ranges(void *user, const hub_asked *asked, hub_reply *reply)
{
    (void)user;
    if (!asked->is_store) return;
    if (asked->n_times == 1) reply->cut_after = 20000;
    if (asked->n_times > 1) { /* the whole again, as if no range had been asked for */
        reply->status = 200;
        reply->headers[0] = 0;
        memcpy(reply->body, large, reply->n = N_LARGE);
    }
}

static void a_server_without_ranges_sends_the_whole_again(void **state)
{
    (void)state;
    begin(no_ranges, NULL);
    pull();
    assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
    end();
}

static void a_wrong_beginning_is_thrown_away(void **state)
{
    (void)state;
    begin(NULL, NULL);
    char *wrong = ag_arena_alloc(&arena, N_LARGE);
    const char *incomplete = in_repo(ag_arena_printf(&arena, "blobs/%s.incomplete", hub_file_etag(&files[1], etag)));
    for (int n = 30000; n <= N_LARGE; n += 30000) { /* a piece, and one of the right length */
        must(ag_make_dirs(in_repo("blobs"), &err));
        must(ag_file_publish(incomplete, wrong, (size_t)n, &err));
        pull();
        assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
        must(ag_remove_tree(in_repo(""), &err));
    }
    end();
}

static void busy_twice(void *user, const hub_asked *asked, hub_reply *reply)
{
    const int status = *(int *)user;
    if (asked->n_times > 2 || (asked->is_store && status != 503)) return;
    reply->status = status;
    snprintf(reply->headers, sizeof reply->headers, "%s", asked->n_times == 1 && strncmp(asked->path, "/api/", 5) == 0 ? "Retry-After: 1\r\n" : "");
}

static void what_may_pass_is_tried_again(void **state)
{
    (void)state;
    for (int status = 429; status; status = status == 429 ? 503 : 0) {
        begin(busy_twice, &status);
        struct timespec t0, t1;
        options.n_attempts = 6;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        pull();
        clock_gettime(CLOCK_MONOTONIC, &t1);
        assert_true((double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec) >= 1);
        assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
        end();
    }
}

static void always(void *user, const hub_asked *asked, hub_reply *reply)
{
    (void)asked;
    *reply = *(const hub_reply *)user;
}

static void what_will_not_pass_is_a_sentence(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *headers;
        ag_status code;
        const char *part;
    } cases[] = {
        {500, "", AG_E_IO, "out of order (HTTP 500); try again later (tried 3 times)"},
        {429, "Retry-After: 4000\r\n", AG_E_IO, "asks to wait 4000 s"},
        {401, "X-Error-Code: GatedRepo\r\nX-Error-Message: Accept \033[31mthis\r\n", AG_E_CONFIG, "gated"},
        {403, "X-Error-Code: GatedRepo\r\n", AG_E_CONFIG, "gated"},
        {401, "", AG_E_CONFIG, "HF_TOKEN"},
        {404, "X-Error-Code: RepoNotFound\r\n", AG_E_NOT_FOUND, "no such repository"},
        {404, "X-Error-Code: RevisionNotFound\r\n", AG_E_NOT_FOUND, "no such revision"},
        {418, "X-Error-Message: teapot\r\n", AG_E_IO, "HTTP 418; the server says: teapot"},
        {302, "Location: file:///etc/passwd\r\n", AG_E_FORMAT, "no http(s)"},
        {302, "", AG_E_FORMAT, "sends us to an address that is none"},
        {302, "Location: /again\r\n", AG_E_IO, "on and on"},
        {200, "", AG_E_FORMAT, "org/name@main"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hub_reply *reply = ag_arena_alloc(&arena, sizeof *reply);
        *reply = (hub_reply){.status = cases[i].status, .length = -1, .cut_after = SIZE_MAX};
        snprintf(reply->headers, sizeof reply->headers, "%s", cases[i].headers);
        begin(always, reply);
        pull_fails(cases[i].code, cases[i].part);
        assert_null(strchr(err.text, '\033'));
        assert_nothing_to_trust();
        end();
    }
}

static void a_server_that_is_not_there_is_a_sentence(void **state)
{
    (void)state;
    begin(NULL, NULL);
    options.endpoint = "http://127.0.0.1:1";
    pull_fails(AG_E_IO, "(tried 3 times)");
    options.endpoint = "ftp://127.0.0.1";
    pull_fails(AG_E_CONFIG, "https://");
    end();
}

/* ---- a server that lies ---------------------------------------------------------------------------------------------------------------- */
typedef enum { LIE_BYTES, LIE_BYTES_ONCE, LIE_LONG, LIE_SHORT, LIE_LENGTH, LIE_COMMIT, LIE_NO_ETAG, LIE_NO_COMMIT, LIE_HUGE, LIE_RANGE } lie;

static void replace(hub_reply *reply, const char *old, const char *new_text)
{
    char *at = strcasestr(reply->headers, old), rest[4096];
    if (!at) return;
    snprintf(rest, sizeof rest, "%s", at + strcspn(at, "\n") + 1);
    strcpy(at, new_text);
    strcat(reply->headers, rest);
}

static void lies(void *user, const hub_asked *asked, hub_reply *reply)
{
    const lie what = *(lie *)user;
    const bool is_body = asked->is_store;
    if ((what == LIE_BYTES || (what == LIE_BYTES_ONCE && asked->n_times == 1)) && is_body) reply->body[reply->n / 2] ^= 1;
    if (what == LIE_LONG && is_body) reply->n += 5;
    if (what == LIE_SHORT && is_body && !asked->range[0]) reply->n -= 5;
    if (what == LIE_SHORT && is_body && asked->range[0]) reply->status = 200, reply->headers[0] = 0, memcpy(reply->body, large, reply->n = N_LARGE - 5);
    if (what == LIE_LENGTH && is_body) reply->length = N_LARGE + 9;
    if (what == LIE_COMMIT) replace(reply, "X-Repo-Commit", "X-Repo-Commit: 1111111111111111111111111111111111111111\r\n");
    if (what == LIE_NO_COMMIT) replace(reply, "X-Repo-Commit", "");
    if (what == LIE_NO_ETAG) replace(reply, "X-Linked-Etag", "X-Linked-Etag: \"../../../x\"\r\n");
    if (what == LIE_HUGE) replace(reply, "X-Linked-Size", "X-Linked-Size: 100000000000000000\r\n");
    if (what == LIE_RANGE && is_body && asked->n_times == 1) reply->cut_after = 20000;
    if (what == LIE_RANGE && is_body && asked->range[0]) replace(reply, "Content-Range", "Content-Range: bytes 20001-59999/60000\r\n");
}

static void a_server_that_lies_leaves_nothing_to_trust(void **state)
{
    (void)state;
    static const struct {
        lie what;
        ag_status code;
        const char *part;
    } cases[] = {
        {LIE_BYTES, AG_E_VERIFY, "another digest"},
        {LIE_LONG, AG_E_VERIFY, "more than the 60000 bytes"},
        {LIE_SHORT, AG_E_VERIFY, "59995 of the 60000 bytes"},
        {LIE_COMMIT, AG_E_VERIFY, "the server gives 1111111111111111111111111111111111111111"},
        {LIE_NO_COMMIT, AG_E_FORMAT, "X-Repo-Commit"},
        {LIE_NO_ETAG, AG_E_FORMAT, "X-Linked-Etag"},
        {LIE_HUGE, AG_E_NO_SPACE, "make room"},
        {LIE_RANGE, AG_E_VERIFY, "does so elsewhere"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lie what = cases[i].what;
        begin(lies, &what);
        request.include = (const char *const[]){"model.safetensors"};
        request.n_include = 1;
        pull_fails(cases[i].code, cases[i].part);
        assert_nothing_to_trust();
        if (what == LIE_HUGE) assert_int_equal(hub_server_count(server, "GET /cdn/"), 0);
        end();
    }
    static const lie healed[] = {LIE_BYTES_ONCE, LIE_LENGTH}; /* fetched anew; the digest is right, whatever the server counts */
    for (size_t i = 0; i < sizeof healed / sizeof *healed; i++) {
        lie what = healed[i];
        begin(lies, &what);
        pull();
        assert_holds(in_snapshot("model.safetensors"), large, N_LARGE);
        end();
    }
}

static void names_that_lead_out_of_the_folder_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"../x", "/etc/x", "a//b", "a/../../b", "a/./b", "..", "a\\\\b", "a\\u0000b", "a\\u001bb", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hub_reply *reply = ag_arena_alloc(&arena, sizeof *reply);
        *reply = (hub_reply){.status = 200, .length = -1, .cut_after = SIZE_MAX};
        reply->n = (size_t)snprintf(reply->body, sizeof reply->body, "{\"sha\":\"" HUB_COMMIT "\",\"siblings\":[{\"rfilename\":\"%s\"}]}", names[i]);
        begin(always, reply);
        must_fail(AG_E_FORMAT, "", ag_hub_pull(&snapshot, &options, &request, &arena, &err));
        assert_nothing_to_trust();
        end();
    }
}

static void a_pinned_commit_must_come_back(void **state)
{
    (void)state;
    hub_reply *reply = ag_arena_alloc(&arena, sizeof *reply);
    *reply = (hub_reply){.status = 200, .length = -1, .cut_after = SIZE_MAX};
    reply->n = (size_t)snprintf(reply->body, sizeof reply->body, "{\"sha\":\"%040d\",\"siblings\":[]}", 7);
    begin(always, reply);
    request.revision = HUB_COMMIT;
    pull_fails(AG_E_VERIFY, "another commit");
    end();
}

static void the_token_goes_to_the_hub_alone(void **state)
{
    (void)state;
    begin(NULL, NULL);
    options.token = "hf_secret";
    pull();
    int n_hub = 0, n_store = 0;
    for (int i = 0; i < hub_server_count(server, ""); i++) {
        const hub_asked *asked = hub_server_asked(server, "", i);
        n_hub += !asked->is_store;
        n_store += asked->is_store;
        assert_string_equal(asked->token, asked->is_store ? "" : "hf_secret");
    }
    assert_true(n_hub > 5 && n_store == 1);
    options.token = "two\r\nlines";
    pull_fails(AG_E_CONFIG, "token");
    end();
}

static void moved(void *user, const hub_asked *asked, hub_reply *reply)
{
    (void)user;
    if (strstr(asked->path, "/old/name")) {
        const char *at = strstr(asked->path, "/old/name");
        reply->status = 307;
        snprintf(reply->headers, sizeof reply->headers, "Location: %.*s/org/name%s\r\n", (int)(at - asked->path), asked->path, at + 9);
    }
}

static void a_renamed_repository_is_found(void **state)
{
    (void)state;
    begin(moved, NULL);
    options.token = "hf_secret";
    request.id = "old/name";
    pull();
    assert_holds(ag_arena_printf(&arena, "%s/model.safetensors", snapshot.path), large, N_LARGE);
    assert_non_null(strstr(snapshot.path, "models--old--name"));
    end();
}

/* ---- links ------------------------------------------------------------------------------------------------------------------------------ */
static void links_out_of_the_cache_are_refused(void **state)
{
    (void)state;
    begin(NULL, NULL);
    must(ag_make_dirs(scratch_path("elsewhere"), &err));
    must(ag_make_dirs(in_repo(""), &err));
    assert_int_equal(symlink(scratch_path("elsewhere"), in_repo("blobs")), 0);
    pull_fails(AG_E_VERIFY, "symbolic link");
    assert_int_equal(rmdir(scratch_path("elsewhere")), 0); /* nothing came there */
    assert_int_equal(unlink(in_repo("blobs")), 0);
    pull();
    assert_int_equal(unlink(in_snapshot("config.json")), 0);
    assert_int_equal(symlink("/etc/passwd", in_snapshot("config.json")), 0);
    pull_fails(AG_E_VERIFY, "leads out of the cache");
    const char *path;
    must_fail(AG_E_VERIFY, "leads out of the cache", ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    options.offline = true;
    pull_fails(AG_E_VERIFY, "leads out of the cache");
    end();
}

/* ---- models ------------------------------------------------------------------------------------------------------------------------------- */
static void a_model_is_fetched_once_and_then_found_without_asking(void **state)
{
    (void)state;
    const char *path;
    begin(NULL, NULL);
    must(ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_string_equal(path, in_repo("snapshots/" HUB_COMMIT));
    assert_false(ag_path_is_file(in_snapshot("README.md")));
    assert_true(ag_path_is_file(in_repo(".no_exist/" HUB_COMMIT "/chat_template.jinja")));
    const int n = hub_server_count(server, "");
    must(ag_hub_model(&path, &options, "org/name", "main", &arena, &err));
    must(ag_hub_model(&path, &options, "org/name", HUB_COMMIT, &arena, &err));
    assert_int_equal(hub_server_count(server, ""), n);
    /* Without what the cache knew of files that are not there: asked when the server is there, passed over when it is not. */
    must(ag_remove_tree(in_repo(".no_exist"), &err));
    must(ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_true(hub_server_count(server, "") > n);
    must(ag_remove_tree(in_repo(".no_exist"), &err));
    options.endpoint = "http://127.0.0.1:1";
    must(ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_non_null(strstr(last_words, "going on with what the cache has"));
    assert_int_equal(unlink(in_snapshot("model.safetensors")), 0);
    must_fail(AG_E_IO, "tried", ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    options.offline = true;
    must_fail(AG_E_NOT_FOUND, "HF_HUB_OFFLINE", ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    end();
}

static void repositories_that_hold_no_model_are_refused_before_they_are_fetched(void **state)
{
    (void)state;
    static const hub_file pickles[] = {{"config.json", config, sizeof config - 1, false}, {"pytorch_model.bin", large, N_LARGE, true}};
    static const hub_file ggufs[] = {{"a.gguf", large, N_LARGE, true}, {"b.gguf", large, 100, true}};
    const char *path;
    begin(NULL, NULL);
    hub_server_stop(server);
    server = hub_server_start(pickles, 2, NULL, NULL);
    options.endpoint = hub_server_url(server);
    must_fail(AG_E_UNSUPPORTED, "neither config.json", ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    hub_server_stop(server);
    server = hub_server_start(ggufs, 2, NULL, NULL);
    options.endpoint = hub_server_url(server);
    must_fail(AG_E_USAGE, "a.gguf, b.gguf", ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_nothing_to_trust();
    hub_server_stop(server);
    server = hub_server_start(ggufs, 1, NULL, NULL);
    options.endpoint = hub_server_url(server);
    must(ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_string_equal(path, in_snapshot("a.gguf"));
    const int n = hub_server_count(server, "");
    must(ag_hub_model(&path, &options, "org/name", NULL, &arena, &err));
    assert_int_equal(hub_server_count(server, ""), n);
    end();
}

/* ---- names ----------------------------------------------------------------------------------------------------------------------------------- */
static void names_and_patterns_are_read_as_huggingface_hub_reads_them(void **state)
{
    (void)state;
    static const char *const good[] = {"org/name", "a/b", "HuggingFaceTB/SmolLM2-135M-Instruct", "a.b_c/d-e"};
    static const char *const bad[] = {"name", "a/b/c", "/b", "a/", "-a/b", "a/b.", "a--b/c", "a/b..c", "a/b.git", "a b/c", "../x", "./x", "a/\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(ag_hub_is_id(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (ag_hub_is_id(bad[i])) fail_msg("%s counts as an id", bad[i]);
    static const struct {
        const char *pattern, *text;
        bool matches;
    } globs[] = {{"*.json", "a/b.json", true}, {"*.json", "a.json2", false}, {"a?c", "abc", true}, {"[ab]x", "bx", true}, {"[!ab]x", "bx", false},
                 {"[a-c]x", "bx", true}, {"[]]x", "]x", true}, {"[x", "[x", true}, {"sub/", "sub/a/b", true}, {"sub/", "subway", false},
                 {"*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false}, {"**", "x", true}, {"A", "a", false}, {"", "", true}};
    for (size_t i = 0; i < sizeof globs / sizeof *globs; i++)
        if (ag_hub_glob_match(globs[i].pattern, globs[i].text) != globs[i].matches) fail_msg("%s against %s", globs[i].pattern, globs[i].text);
}

int main(void)
{
    for (int i = 0; i < N_LARGE; i++) large[i] = (char)(i * 2654435761u >> 13);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_lays_the_cache_out_as_huggingface_hub_does),
        cmocka_unit_test(what_is_there_is_not_asked_for_again),
        cmocka_unit_test(revisions_are_branches_tags_and_commits),
        cmocka_unit_test(patterns_choose_files),
        cmocka_unit_test(datasets_have_their_own_place),
        cmocka_unit_test(offline_takes_what_is_there),
        cmocka_unit_test(a_damaged_blob_is_fetched_again),
        cmocka_unit_test(two_processes_do_not_fetch_one_blob_twice),
        cmocka_unit_test(a_cut_connection_is_resumed),
        cmocka_unit_test(a_network_that_stays_cut_is_said_and_the_next_run_goes_on),
        cmocka_unit_test(a_stalled_connection_is_given_up_and_resumed),
        cmocka_unit_test(a_server_without_ranges_sends_the_whole_again),
        cmocka_unit_test(a_wrong_beginning_is_thrown_away),
        cmocka_unit_test(what_may_pass_is_tried_again),
        cmocka_unit_test(what_will_not_pass_is_a_sentence),
        cmocka_unit_test(a_server_that_is_not_there_is_a_sentence),
        cmocka_unit_test(a_server_that_lies_leaves_nothing_to_trust),
        cmocka_unit_test(names_that_lead_out_of_the_folder_are_refused),
        cmocka_unit_test(a_pinned_commit_must_come_back),
        cmocka_unit_test(the_token_goes_to_the_hub_alone),
        cmocka_unit_test(a_renamed_repository_is_found),
        cmocka_unit_test(links_out_of_the_cache_are_refused),
        cmocka_unit_test(a_model_is_fetched_once_and_then_found_without_asking),
        cmocka_unit_test(repositories_that_hold_no_model_are_refused_before_they_are_fetched),
        cmocka_unit_test(names_and_patterns_are_read_as_huggingface_hub_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
