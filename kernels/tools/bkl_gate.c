/* gpu-ci-gate and publish-gpu-validation: which change needs a GPU run, and the check that says how it went. Both read what a workflow of
 * GitHub gives: the event's JSON file and environment variables, each of which an option can replace. */
#define _GNU_SOURCE
#include "kernels/tools/bkl_command.h"
#include "kernels/tools/bkl_process.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "lab/gpu_gate.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIT_LIMIT_S = 120, NETWORK_LIMIT_S = 30 };

typedef struct {
    const char *mode, *event, *event_name, *repository, *ref, *sha, *output, *run_id, *result;
    bool dry_run, publish;
} gate_options;

static const char *value_or_env(const char *value, const char *name)
{
    if (value) return value;
    const char *found = getenv(name);
    return found ? found : "";
}

static void fill_from_environment(gate_options *o)
{
    o->event = value_or_env(o->event, "GITHUB_EVENT_PATH");
    o->event_name = value_or_env(o->event_name, "GITHUB_EVENT_NAME");
    o->repository = value_or_env(o->repository, "GITHUB_REPOSITORY");
    o->ref = value_or_env(o->ref, "GITHUB_REF");
    o->sha = value_or_env(o->sha, "GITHUB_SHA");
    o->output = value_or_env(o->output, "GITHUB_OUTPUT");
    o->run_id = value_or_env(o->run_id, "GITHUB_RUN_ID");
    o->result = value_or_env(o->result, "VALIDATION_RESULT");
}

/* "a.b.c" of nested objects; "" where it is not a text. */
static const char *text_at(const json_t *event, const char *path)
{
    while (*path && event) {
        const size_t n = strcspn(path, ".");
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        event = json_object_get(event, key);
        path += n + (path[n] == '.');
    }
    return json_is_string(event) ? json_string_value(event) : "";
}

/* What the event is about. Commits are checked; a text borrows from the event. */
typedef struct {
    bool is_pull, is_push, is_manual;
    const char *base, *head, *ref; /* of a pull request or a push */
    bool trusted;                  /* of this repository */
} change;

static ag_status read_commit(const char **out, const json_t *event, const char *path, ag_err *err)
{
    *out = text_at(event, path);
    return ag_gpu_gate_is_commit(*out) ? AG_OK : ag_fail(err, AG_E_FORMAT, "the event's %s is '%s', which is no commit id", path, *out);
}

static ag_status read_change(change *c, const gate_options *o, const json_t *event, ag_err *err)
{
    *c = (change){.trusted = true, .ref = o->ref};
    const char *repository = text_at(event, "repository.full_name");
    if (strcmp(repository, o->repository) != 0)
        return ag_fail(err, AG_E_VERIFY, "the event belongs to the repository '%s', expected '%s'", repository, o->repository);
    c->is_pull = strcmp(o->event_name, "pull_request") == 0 || strcmp(o->event_name, "pull_request_target") == 0;
    c->is_push = strcmp(o->event_name, "push") == 0;
    c->is_manual = strcmp(o->event_name, "workflow_dispatch") == 0;
    if (c->is_pull) {
        AG_TRY(read_commit(&c->base, event, "pull_request.base.sha", err));
        AG_TRY(read_commit(&c->head, event, "pull_request.head.sha", err));
        c->trusted = strcmp(text_at(event, "pull_request.head.repo.full_name"), o->repository) == 0;
        return AG_OK;
    }
    if (c->is_push) {
        AG_TRY(read_commit(&c->base, event, "before", err));
        AG_TRY(read_commit(&c->head, event, "after", err));
        if (*text_at(event, "ref")) c->ref = text_at(event, "ref");
        return AG_OK;
    }
    if (!c->is_manual) return ag_fail(err, AG_E_UNSUPPORTED, "events of the kind '%s' are not known", o->event_name);
    c->head = o->sha;
    return ag_gpu_gate_is_commit(c->head) ? AG_OK : ag_fail(err, AG_E_FORMAT, "GITHUB_SHA is '%s', which is no commit id", c->head);
}

/* ---- detect -------------------------------------------------------------------------------------------------------------- */
static ag_status changed_needs_gpu(bool *required, size_t *n, const change *c, ag_arena *arena, ag_err *err)
{
    const char *git = bkl_program_find("git", NULL, arena);
    if (!git) return ag_fail(err, AG_E_NOT_FOUND, "git is not on PATH");
    const char *const argv[] = {git, "diff", "--name-only", "-z", "--no-renames", ag_arena_printf(arena, "%s%s%s", c->base, c->is_pull ? "..." : "..", c->head), "--", NULL};
    ag_str names = {0};
    bkl_exit how;
    ag_status status = bkl_process_run(&how, &names, argv, NULL, GIT_LIMIT_S, err);
    if (!status && how.exit_code != 0) status = ag_fail(err, AG_E_IO, "git diff %s ended with %d; are both commits fetched?", argv[5], how.exit_code);
    *required = false;
    *n = 0;
    for (size_t at = 0; !status && at < names.n; at += strlen(names.text + at) + 1, ++*n)
        if (ag_gpu_gate_path(names.text + at)) *required = true;
    ag_str_free(&names);
    return status;
}

static ag_status detect(const gate_options *o, ag_arena *arena, ag_err *err)
{
    json_t *event;
    AG_TRY(bkl_json_load(&event, o->event, err));
    change c;
    bool required = true, deleted = false;
    size_t n = 0;
    ag_status status = read_change(&c, o, event, err);
    if (!status && c.is_push && ag_gpu_gate_is_zero(c.head)) {
        deleted = true;
        required = false;
    } else if (!status && (c.is_pull || (c.is_push && !ag_gpu_gate_is_zero(c.base) && strcmp(c.ref, "refs/heads/main") == 0))) {
        status = changed_needs_gpu(&required, &n, &c, arena, err);
    }
    if (!status) {
        const char *lines = ag_arena_printf(arena, "required=%s\ntrusted=%s\ndeleted=%s\n", required ? "true" : "false", c.trusted ? "true" : "false", deleted ? "true" : "false");
        FILE *out = *o->output ? fopen(o->output, "a") : NULL;
        if (*o->output && (!out || fputs(lines, out) < 0 || fclose(out) != 0)) status = ag_fail(err, AG_E_IO, "%s: cannot be written", o->output);
        if (!status) printf("GPU validation: event=%s files=%zu required=%s trusted=%s deleted=%s\n", o->event_name, n, required ? "true" : "false", c.trusted ? "true" : "false", deleted ? "true" : "false");
    }
    ag_json_free(&event);
    return status;
}

static int run_gate(int argc, char **argv)
{
    gate_options o = {0};
    ag_err err;
    ag_arena arena = {0};
    bool helped = false;
    ag_status status = cli_parse(&bkl_gpu_ci_gate, &o, argc, argv, &helped, &err);
    if (helped) return 0;
    if (!status) {
        fill_from_environment(&o);
        const ag_gpu_verdict_input verdict = {getenv("DETECTION_RESULT"), getenv("GPU_REQUIRED"), getenv("GPU_TRUSTED"), getenv("GPU_RESULT")};
        if (strcmp(o.mode, "detect") == 0)
            status = detect(&o, &arena, &err);
        else if (strcmp(o.mode, "verify") == 0)
            status = ag_gpu_gate_verify(&verdict, &err);
        else
            status = ag_fail(&err, AG_E_CONFIG, "'%s' is neither detect nor verify", o.mode);
        if (!status && strcmp(o.mode, "verify") == 0) puts("GPU validation passed");
    }
    ag_arena_free(&arena);
    if (status) fprintf(stderr, "GPU validation failed: %s\n", err.text);
    return status ? 1 : 0;
}

static const cli_option gate_table[] = {
    CLI_POSITIONAL("detect|verify", gate_options, mode, "what to do", CLI_REQUIRED),
    CLI_STRING("event", gate_options, event, "F", "the event's JSON (GITHUB_EVENT_PATH)", 0),
    CLI_STRING("event-name", gate_options, event_name, "NAME", "its kind (GITHUB_EVENT_NAME)", 0),
    CLI_STRING("repository", gate_options, repository, "OWNER/NAME", "the repository expected (GITHUB_REPOSITORY)", 0),
    CLI_STRING("ref", gate_options, ref, "REF", "the ref (GITHUB_REF)", 0),
    CLI_STRING("sha", gate_options, sha, "ID", "the commit of a manual run (GITHUB_SHA)", 0),
    CLI_STRING("output", gate_options, output, "F", "detect adds its answers to this file (GITHUB_OUTPUT)", 0),
    CLI_END};
const cli_command bkl_gpu_ci_gate = {"gpu-ci-gate", NULL, "whether a change needs a GPU run, and whether it passed one",
                                     "verify reads DETECTION_RESULT, GPU_REQUIRED, GPU_TRUSTED and GPU_RESULT.", gate_table, run_gate};

/* ---- publish -------------------------------------------------------------------------------------------------------------- */
static ag_status make_payload(json_t **out, const gate_options *o, const json_t *event, ag_arena *arena, ag_err *err)
{
    change c;
    if (!ag_gpu_gate_is_repository(o->repository)) return ag_fail(err, AG_E_FORMAT, "'%s' is no repository name (owner/name)", o->repository);
    AG_TRY(read_change(&c, o, event, err));
    if (!*o->run_id || strspn(o->run_id, "0123456789") != strlen(o->run_id)) return ag_fail(err, AG_E_FORMAT, "the run id is '%s', which is no decimal number", o->run_id);
    const bool passed = strcmp(o->result, "success") == 0;
    const char *server = value_or_env(NULL, "GITHUB_SERVER_URL");
    *out = json_pack("{ss ss ss ss ss ss s{ss ss}}", "name", "GPU validation", "head_sha", c.head, "status", "completed", "conclusion",
                     passed ? "success" : "failure", "external_id", ag_arena_printf(arena, "gpu-validation:%s", o->run_id), "details_url",
                     ag_arena_printf(arena, "%s/%s/actions/runs/%s", *server ? server : "https://github.com", o->repository, o->run_id), "output",
                     "title", passed ? "GPU validation passed" : "GPU validation failed", "summary",
                     passed ? "Every GPU run that this change needs has passed, or it needs none." : "A GPU run that this change needs did not pass; the run's log says which.");
    return AG_OK;
}

static size_t collect(char *bytes, size_t size, size_t n, void *to)
{
    ag_str *out = to;
    if (out->n + size * n > 1 << 20) return 0; /* an answer this long is none of ours */
    ag_str_add_n(out, bytes, size * n);
    return size * n;
}

static ag_status check_answer(const json_t *payload, const ag_str *answer, long http, ag_err *err)
{
    json_t *root;
    if (http != 201) return ag_fail(err, AG_E_IO, "the check was answered with status %ld", http);
    AG_TRY(ag_json_parse(&root, answer->text ? answer->text : "", answer->n, "the answer to the check", err));
    const bool same = strcmp(text_at(root, "head_sha"), text_at(payload, "head_sha")) == 0 && strcmp(text_at(root, "name"), text_at(payload, "name")) == 0;
    ag_json_free(&root);
    return same ? AG_OK : ag_fail(err, AG_E_VERIFY, "the check that was made is for another commit or has another name");
}

static ag_status post(const gate_options *o, const json_t *payload, ag_arena *arena, ag_err *err)
{
    const char *token = value_or_env(NULL, "GITHUB_TOKEN"), *api = value_or_env(NULL, "GITHUB_API_URL");
    if (!*token) return ag_fail(err, AG_E_CONFIG, "GITHUB_TOKEN is not set; publishing needs it");
    CURL *curl = curl_easy_init();
    if (!curl) return ag_fail(err, AG_E_IO, "libcurl cannot start");
    ag_str body = {0}, answer = {0};
    ag_json_add_canonical(&body, payload);
    struct curl_slist *headers = curl_slist_append(NULL, "Accept: application/vnd.github+json");
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "User-Agent: bkl");
    headers = curl_slist_append(headers, ag_arena_printf(arena, "Authorization: Bearer %s", token));
    curl_easy_setopt(curl, CURLOPT_URL, ag_arena_printf(arena, "%s/repos/%s/check-runs", *api ? api : "https://api.github.com", o->repository));
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https,http");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.text);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)NETWORK_LIMIT_S);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    const CURLcode code = curl_easy_perform(curl);
    long http = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http);
    ag_status status = code ? ag_fail(err, AG_E_IO, "the check could not be published: %s", curl_easy_strerror(code)) : check_answer(payload, &answer, http, err);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    ag_str_free(&body);
    ag_str_free(&answer);
    return status;
}

static ag_status publish(const gate_options *o, ag_arena *arena, ag_err *err)
{
    if (o->dry_run == o->publish) return ag_fail(err, AG_E_CONFIG, "give either --dry-run or --publish");
    json_t *event, *payload = NULL;
    AG_TRY(bkl_json_load(&event, o->event, err));
    ag_status status = make_payload(&payload, o, event, arena, err);
    if (!status && o->dry_run) bkl_json_print(payload);
    if (!status && o->publish) status = post(o, payload, arena, err);
    json_decref(payload);
    ag_json_free(&event);
    return status;
}

static int run_publish(int argc, char **argv)
{
    gate_options o = {0};
    ag_err err;
    ag_arena arena = {0};
    bool helped = false;
    ag_status status = cli_parse(&bkl_publish_gpu_validation, &o, argc, argv, &helped, &err);
    if (helped) return 0;
    if (!status) {
        fill_from_environment(&o);
        status = publish(&o, &arena, &err);
    }
    ag_arena_free(&arena);
    if (status) fprintf(stderr, "bkl: %s\n", err.text);
    return status ? 1 : 0;
}

static const cli_option publish_table[] = {
    CLI_FLAG("dry-run", gate_options, dry_run, "print what would be sent"),
    CLI_FLAG("publish", gate_options, publish, "send it (GITHUB_TOKEN, GITHUB_API_URL)"),
    CLI_STRING("event", gate_options, event, "F", "the event's JSON (GITHUB_EVENT_PATH)", 0),
    CLI_STRING("event-name", gate_options, event_name, "NAME", "its kind (GITHUB_EVENT_NAME)", 0),
    CLI_STRING("repository", gate_options, repository, "OWNER/NAME", "the repository expected (GITHUB_REPOSITORY)", 0),
    CLI_STRING("sha", gate_options, sha, "ID", "the commit of a manual run (GITHUB_SHA)", 0),
    CLI_STRING("run-id", gate_options, run_id, "N", "the workflow run (GITHUB_RUN_ID)", 0),
    CLI_STRING("result", gate_options, result, "WORD", "how the validation ended (VALIDATION_RESULT)", 0),
    CLI_END};
const cli_command bkl_publish_gpu_validation = {"publish-gpu-validation", NULL, "make the check 'GPU validation' on the commit that was tried", NULL, publish_table, run_publish};
