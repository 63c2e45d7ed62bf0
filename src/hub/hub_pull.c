/* A pull: the list of files, the head of each, the blobs that are missing, then the links, and the ref last. */
#define _GNU_SOURCE
#include "hub/hub_pull.h"

#include "base/log.h"
#include "hub/hub_names.h"
#include "hub/hub_transfer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_LISTING_BYTES = 64 << 20, SPARE_DISK_BYTES = 16 << 20 };

typedef struct {
    const char *name;
    char etag[65];
    uint64_t bytes;
    bool is_here;       /* its blob is there */
    struct pull *pull;
    ag_hub_blob blob;
    bool blob_is_open, was_told_to_wait;
    ag_lock lock;
} file;

typedef struct pull {
    ag_hub_job *job;
    ag_hub_client *client;
    file *files;
    size_t n_files, n_fetched;
    uint64_t total_bytes, fetched_bytes;
    ag_hub_transfer *gets;
    size_t n_gets;
} pull;

ag_status ag_hub_job_open(ag_hub_job *job, const ag_hub_options *options, const ag_hub_request *request, ag_arena *arena, ag_err *err)
{
    *job = (ag_hub_job){.options = options, .request = request, .revision = request->revision ? request->revision : "main"};
    AG_TRY(ag_hub_revision_check(job->revision, err));
    return ag_hub_store_open(&job->store, options->cache_dir, request->kind, request->id, arena, err);
}

static const char *what_of(const ag_hub_job *j, const char *name)
{
    return name ? ag_arena_printf(j->store.arena, "%s@%s, %s", j->request->id, j->revision, name)
                : ag_arena_printf(j->store.arena, "%s@%s", j->request->id, j->revision);
}

/* ---- the list ------------------------------------------------------------------------------------------------------------------ */
static ag_status begin_text(ag_hub_transfer *t, uint64_t offset, ag_err *err)
{
    (void)offset, (void)err;
    ag_str_clear(t->user);
    return AG_OK;
}

static ag_status add_text(ag_hub_transfer *t, const void *bytes, size_t n, ag_err *err)
{
    (void)err;
    ag_str_add_n(t->user, bytes, n);
    return AG_OK;
}

static ag_status fetch_listing(pull *p, ag_err *err)
{
    ag_hub_job *j = p->job;
    ag_str url = {0}, text = {0};
    ag_str_printf(&url, "%s/api/%s/%s/revision/", ag_hub_client_endpoint(p->client), j->request->kind == AG_HUB_DATASET ? "datasets" : "models",
                  j->request->id);
    ag_hub_url_add(&url, j->revision, false);
    ag_hub_transfer t = {.url = url.text, .what = what_of(j, NULL), .user = &text, .begin = begin_text, .write = add_text,
                         .expected = UINT64_MAX, .max_bytes = MOST_LISTING_BYTES, .is_text = true};
    ag_status status = ag_hub_transfers_run(p->client, &t, 1, NULL, NULL, err);
    if (!status) status = ag_hub_listing_parse(&j->listing, text.text ? text.text : "", text.n, t.what, j->store.arena, err);
    ag_hub_transfer_free(&t);
    ag_str_free(&url);
    ag_str_free(&text);
    if (!status && ag_hub_is_commit(j->revision) && strcmp(j->listing.commit, j->revision) != 0)
        status = ag_fail(err, AG_E_VERIFY, "%s: the server gives another commit, %s", what_of(j, NULL), j->listing.commit);
    return status;
}

/* ---- heads ------------------------------------------------------------------------------------------------------------------------ */
static const char *url_of(const pull *p, const char *name)
{
    const ag_hub_job *j = p->job;
    ag_str url = {0};
    ag_str_printf(&url, "%s/%s%s/resolve/%s/", ag_hub_client_endpoint(p->client), j->request->kind == AG_HUB_DATASET ? "datasets/" : "",
                  j->request->id, j->listing.commit);
    ag_hub_url_add(&url, name, true);
    const char *text = ag_arena_strdup(j->store.arena, url.text);
    ag_str_free(&url);
    return text;
}

static ag_status take_head(pull *p, file *f, const ag_hub_transfer *t, ag_err *err)
{
    const ag_hub_head *h = &t->answer;
    const ag_hub_job *j = p->job;
    if (!h->commit[0])
        return ag_fail(err, AG_E_FORMAT, "%s: the server names no commit (X-Repo-Commit); is HF_ENDPOINT the address of a hub?", t->what);
    if (strcmp(h->commit, j->listing.commit) != 0)
        return ag_fail(err, AG_E_VERIFY, "%s: commit %s was asked for, the server gives %s", t->what, j->listing.commit, h->commit);
    if (!h->etag[0])
        return ag_fail(err, AG_E_FORMAT, "%s: the server names neither a SHA-256 nor a git id (X-Linked-Etag, ETag), so what it sends could not "
                       "be checked", t->what);
    if (h->size < 0) return ag_fail(err, AG_E_FORMAT, "%s: the server does not say how long it is (X-Linked-Size, Content-Length)", t->what);
    memcpy(f->etag, h->etag, sizeof f->etag);
    f->bytes = (uint64_t)h->size;
    return ag_hub_blob_check(&f->is_here, &j->store, f->etag, f->bytes, j->options->verify, err);
}

/* A file of this commit that a snapshot links to already needs no question. */
static ag_status look_at_snapshot(pull *p, file *f, bool *is_known, ag_err *err)
{
    const ag_hub_job *j = p->job;
    const char *path;
    *is_known = false;
    AG_TRY(ag_hub_snapshot_file(&path, &f->bytes, &j->store, j->listing.commit, f->name, err));
    ag_hub_snapshot_blob(f->etag, &j->store, j->listing.commit, f->name);
    if (!path || !f->etag[0]) return AG_OK;
    AG_TRY(ag_hub_blob_check(&f->is_here, &j->store, f->etag, f->bytes, j->options->verify, err));
    *is_known = f->is_here;
    return AG_OK;
}

static ag_status ask_for_heads(pull *p, ag_err *err)
{
    const ag_hub_job *j = p->job;
    ag_hub_transfer *heads = ag_arena_array(j->store.arena, p->n_files + 1, sizeof *heads);
    size_t n = 0;
    for (size_t i = 0; i < p->n_files; i++) {
        bool is_known;
        AG_TRY(look_at_snapshot(p, &p->files[i], &is_known, err));
        if (!is_known)
            heads[n++] = (ag_hub_transfer){.url = url_of(p, p->files[i].name), .what = what_of(j, p->files[i].name), .head = true,
                                           .user = &p->files[i], .expected = UINT64_MAX};
    }
    ag_status status = ag_hub_transfers_run(p->client, heads, n, NULL, NULL, err);
    for (size_t i = 0; i < n; i++) {
        if (!status) status = take_head(p, heads[i].user, &heads[i], err);
        if (status && heads[i].is_missing_entry)
            ag_hub_mark_missing(&j->store, j->listing.commit, ((file *)heads[i].user)->name);
        ag_hub_transfer_free(&heads[i]);
    }
    return status;
}

/* ---- blobs -------------------------------------------------------------------------------------------------------------------------- */
static void release(file *f)
{
    if (f->blob_is_open) ag_hub_blob_close(&f->blob);
    f->blob_is_open = false;
    ag_lock_release(&f->lock);
}

static ag_status start_blob(ag_hub_transfer *t, ag_hub_go *go, ag_err *err)
{
    file *f = t->user;
    const ag_hub_store *store = &f->pull->job->store;
    const ag_status status = ag_hub_blob_lock(&f->lock, store, f->etag, err);
    if (status == AG_E_BUSY) {
        if (!f->was_told_to_wait) ag_log(AG_LOG_INFO, "%s: another process fetches it; waiting for that", t->what);
        f->was_told_to_wait = true;
        *go = AG_HUB_LATER;
        return AG_OK;
    }
    AG_TRY(status);
    bool is_there;
    AG_TRY(ag_hub_blob_check(&is_there, store, f->etag, f->bytes, false, err));
    if (!is_there) {
        AG_TRY(ag_hub_blob_open(&f->blob, store, f->etag, f->bytes, err));
        f->blob_is_open = true;
        if (f->blob.at < f->bytes || f->bytes == 0) {
            t->from = t->from_at_failure = f->blob.at;
            return AG_OK;
        }
        if (ag_hub_blob_commit(&f->blob, NULL)) { /* an old piece of the right length that is not it */
            AG_TRY(ag_hub_blob_open(&f->blob, store, f->etag, f->bytes, err));
            return AG_OK;
        }
    }
    release(f);
    *go = AG_HUB_SKIP;
    return AG_OK;
}

static ag_status begin_blob(ag_hub_transfer *t, uint64_t offset, ag_err *err)
{
    file *f = t->user;
    if (offset == f->blob.at) return AG_OK;
    AG_ASSERT(offset == 0);
    return ag_hub_blob_restart(&f->blob, err);
}

static ag_status write_blob(ag_hub_transfer *t, const void *bytes, size_t n, ag_err *err)
{
    file *f = t->user;
    AG_TRY(ag_hub_blob_write(&f->blob, bytes, n, err));
    f->pull->fetched_bytes += n;
    return AG_OK;
}

static ag_status finish_blob(ag_hub_transfer *t, ag_err *err)
{
    file *f = t->user;
    const ag_status status = ag_hub_blob_commit(&f->blob, err);
    if (status == AG_E_VERIFY) {
        (void)ag_err_prefix(err, "%s: the server's digest or length does not fit", t->what);
        AG_TRY(ag_hub_blob_open(&f->blob, &f->pull->job->store, f->etag, f->bytes, err)); /* empty, for another try */
        return AG_E_VERIFY;
    }
    AG_TRY(status);
    f->pull->n_fetched++;
    release(f);
    return AG_OK;
}

static void tick(void *user)
{
    pull *p = user;
    const ag_hub_options *o = p->job->options;
    if (!o->progress) return;
    uint64_t done = p->total_bytes;
    size_t n_left = 0;
    for (size_t i = 0; i < p->n_gets; i++) {
        const ag_hub_transfer *t = &p->gets[i];
        if (t->is_done) continue;
        done -= t->expected - (t->from < t->expected ? t->from : t->expected);
        n_left++;
    }
    o->progress(o->progress_user, done, p->total_bytes, p->n_files - n_left, p->n_files);
}

/* What is already there of a blob that is to come. */
static uint64_t bytes_of_incomplete(const ag_hub_store *s, const file *f)
{
    struct stat info;
    const char *path = ag_arena_printf(s->arena, "%s/%s/blobs/%s.incomplete", s->root, s->repo, f->etag);
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || (uint64_t)info.st_size > f->bytes) return 0;
    return (uint64_t)info.st_size;
}

static ag_status check_disk(const pull *p, uint64_t needed, ag_err *err)
{
    uint64_t free_bytes;
    AG_TRY(ag_disk_free(&free_bytes, p->job->store.root, err));
    if (needed == 0 || (free_bytes >= SPARE_DISK_BYTES && free_bytes - SPARE_DISK_BYTES >= needed)) return AG_OK;
    return ag_fail(err, AG_E_NO_SPACE, "%s: %.1f MB are still to be fetched, %s has %.1f MB free; make room, or set HF_HUB_CACHE to a larger disk",
                   what_of(p->job, NULL), (double)needed * 1e-6, p->job->store.root, (double)free_bytes * 1e-6);
}

static int by_etag(const void *a, const void *b) { return strcmp((*(file *const *)a)->etag, (*(file *const *)b)->etag); }

/* One transfer for each blob that is missing, however many files have it. */
static ag_status plan_blobs(pull *p, uint64_t *needed, ag_err *err)
{
    const ag_hub_job *j = p->job;
    file **sorted = ag_arena_array(j->store.arena, p->n_files + 1, sizeof *sorted);
    for (size_t i = 0; i < p->n_files; i++) {
        sorted[i] = &p->files[i];
        if (__builtin_add_overflow(p->total_bytes, p->files[i].bytes, &p->total_bytes))
            return ag_fail(err, AG_E_FORMAT, "%s: the lengths of the files have no sum", what_of(j, NULL));
    }
    qsort(sorted, p->n_files, sizeof *sorted, by_etag);
    p->gets = ag_arena_array(j->store.arena, p->n_files + 1, sizeof *p->gets);
    for (size_t i = 0; i < p->n_files; i++) {
        file *f = sorted[i];
        const bool is_twin = i > 0 && strcmp(sorted[i - 1]->etag, f->etag) == 0;
        if (is_twin && sorted[i - 1]->bytes != f->bytes)
            return ag_fail(err, AG_E_VERIFY, "%s and %s: the server gives one digest and two lengths", what_of(j, f->name), sorted[i - 1]->name);
        if (f->is_here || is_twin) continue;
        *needed += f->bytes - bytes_of_incomplete(&j->store, f);
        f->pull = p;
        f->lock.fd = -1;
        p->gets[p->n_gets++] = (ag_hub_transfer){.url = url_of(p, f->name), .what = what_of(j, f->name), .user = f, .start = start_blob,
            .begin = begin_blob, .write = write_blob, .finish = finish_blob, .expected = f->bytes};
    }
    return AG_OK;
}

static ag_status fetch_blobs(pull *p, ag_err *err)
{
    uint64_t needed = 0;
    AG_TRY(plan_blobs(p, &needed, err));
    AG_TRY(check_disk(p, needed, err));
    const ag_status status = ag_hub_transfers_run(p->client, p->gets, p->n_gets, tick, p, err);
    for (size_t i = 0; i < p->n_gets; i++) {
        release(p->gets[i].user);
        ag_hub_transfer_free(&p->gets[i]);
    }
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------------------ */
static ag_status run(ag_hub_snapshot *out, pull *p, ag_err *err)
{
    ag_hub_job *j = p->job;
    size_t n = 0;
    AG_TRY(ag_hub_store_make(&j->store, err));
    AG_TRY(fetch_listing(p, err));
    const char **chosen = ag_arena_array(j->store.arena, j->listing.n_files + 1, sizeof *chosen);
    AG_TRY(j->choose(j->user, chosen, &n, &j->listing, err));
    p->files = ag_arena_array(j->store.arena, n + 1, sizeof *p->files);
    p->n_files = n;
    for (size_t i = 0; i < n; i++) p->files[i].name = chosen[i];
    AG_TRY(ask_for_heads(p, err));
    AG_TRY(fetch_blobs(p, err));
    for (size_t i = 0; i < n; i++) AG_TRY(ag_hub_link(&j->store, j->listing.commit, p->files[i].name, p->files[i].etag, err));
    AG_TRY(ag_hub_ref_write(&j->store, j->revision, j->listing.commit, err));
    *out = (ag_hub_snapshot){.path = ag_hub_store_snapshot(&j->store, j->listing.commit), .n_files = n, .bytes = p->total_bytes,
                             .n_fetched = p->n_fetched, .fetched_bytes = p->fetched_bytes};
    memcpy(out->commit, j->listing.commit, sizeof out->commit);
    return AG_OK;
}

ag_status ag_hub_job_run(ag_hub_snapshot *out, ag_hub_job *job, ag_err *err)
{
    pull p = {.job = job};
    *out = (ag_hub_snapshot){0};
    AG_TRY(ag_hub_client_create(&p.client, job->options, err));
    const ag_status status = run(out, &p, err);
    ag_hub_client_free(&p.client);
    return status;
}

/* ---- pull ------------------------------------------------------------------------------------------------------------------------------ */
static ag_status choose_by_patterns(void *user, const char **chosen, size_t *n, const ag_hub_listing *listing, ag_err *err)
{
    const ag_hub_job *j = user;
    const ag_hub_request *r = j->request;
    bool *has_match = ag_arena_array(j->store.arena, r->n_include + 1, sizeof *has_match);
    for (size_t i = 0; i < listing->n_files; i++) {
        bool is_wanted = r->n_include == 0;
        for (size_t k = 0; k < r->n_include; k++)
            if (ag_hub_glob_match(r->include[k], listing->files[i])) is_wanted = has_match[k] = true;
        if (is_wanted) chosen[(*n)++] = listing->files[i];
    }
    for (size_t k = 0; k < r->n_include; k++) {
        if (has_match[k]) continue;
        /* A name that the list does not have is known not to be there: so says the cache from now on. */
        if (!ag_hub_is_glob(r->include[k]) && !ag_hub_file_check(r->include[k], NULL))
            ag_hub_mark_missing(&j->store, listing->commit, r->include[k]);
        return ag_fail(err, AG_E_NOT_FOUND, "%s has no file that '%s' matches (%zu files, the first %s)", what_of(j, NULL), r->include[k],
                       listing->n_files, listing->n_files > 0 ? listing->files[0] : "is missing");
    }
    return AG_OK;
}

/* The snapshot as it lies in the cache. */
static ag_status find_in_cache(ag_hub_snapshot *out, const ag_hub_job *j, ag_err *err)
{
    *out = (ag_hub_snapshot){0};
    AG_TRY(ag_hub_ref_read(out->commit, &j->store, j->revision, err));
    const char *path = out->commit[0] ? ag_hub_store_snapshot(&j->store, out->commit) : NULL;
    if (!path || !ag_path_is_dir(path))
        return ag_fail(err, AG_E_NOT_FOUND, "%s is not in the cache %s, and nothing may be fetched (HF_HUB_OFFLINE); pull it once online",
                       what_of(j, NULL), j->store.root);
    out->path = path;
    return AG_OK;
}

/* Counts the files of a snapshot that the request asks for. */
static ag_status count_files(ag_hub_snapshot *out, const ag_hub_job *j, const char *folder, ag_err *err)
{
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, *folder ? ag_path_join(j->store.arena, out->path, folder) : out->path, j->store.arena, err));
    for (size_t i = 0; i < n; i++) {
        const char *name = ag_path_join(j->store.arena, folder, names[i]), *path;
        uint64_t bytes;
        if (ag_path_is_dir(ag_path_join(j->store.arena, out->path, name))) {
            AG_TRY(count_files(out, j, name, err));
            continue;
        }
        bool is_wanted = j->request->n_include == 0;
        for (size_t k = 0; k < j->request->n_include; k++) is_wanted |= ag_hub_glob_match(j->request->include[k], name);
        if (!is_wanted) continue;
        AG_TRY(ag_hub_snapshot_file(&path, &bytes, &j->store, out->commit, name, err));
        if (!path) return ag_fail(err, AG_E_NOT_FOUND, "%s: its content is missing in the cache; pull it again, online", what_of(j, name));
        out->n_files++;
        out->bytes += bytes;
    }
    return AG_OK;
}

ag_status ag_hub_pull(ag_hub_snapshot *out, const ag_hub_options *options, const ag_hub_request *request, ag_arena *arena, ag_err *err)
{
    ag_hub_job job;
    AG_TRY(ag_hub_job_open(&job, options, request, arena, err));
    if (!options->offline) {
        job.choose = choose_by_patterns;
        job.user = &job;
        return ag_hub_job_run(out, &job, err);
    }
    AG_TRY(find_in_cache(out, &job, err));
    return count_files(out, &job, "", err);
}
