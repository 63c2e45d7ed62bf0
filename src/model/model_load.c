#define _GNU_SOURCE
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

static ag_status find_all(ag_model *m, ag_found_model *found, const char *path, ag_err *err)
{
    struct ag_model_owned *own = m->owned;
    char *checked, *absolute;
    AG_TRY(ag_path_check(&checked, path, &own->arena, err));
    if (ag_path_is_dir(checked)) {
        AG_TRY(ag_path_existing_dir(&absolute, path, &own->arena, err));
        m->path = absolute;
        return ag_model_find_hf(m, found, err);
    }
    AG_TRY(ag_path_existing_file(&absolute, path, &own->arena, err));
    m->path = absolute;
    if (ag_str_ends(absolute, ".safetensors"))
        return ag_fail(err, AG_E_FORMAT, "%s is one file of a model; name the folder that has its config.json", absolute);
    return ag_model_find_gguf(m, found, err);
}

static ag_model *create(void)
{
    ag_model *m = calloc(1, sizeof *m);
    if (!m) ag_out_of_memory(sizeof *m);
    m->owned = calloc(1, sizeof *m->owned);
    if (!m->owned) ag_out_of_memory(sizeof *m->owned);
    return m;
}

ag_status ag_model_open(ag_model **out, const char *path, const ag_model_options *options, ag_err *err)
{
    static const ag_model_options none = {0};
    *out = NULL;
    ag_model *m = create();
    ag_found_model found = {0};
    ag_status status = find_all(m, &found, path, err);
    if (!status) status = ag_model_make(m, &found, options ? options : &none, err);
    if (status)
        ag_model_close(&m);
    else
        *out = m;
    return status;
}

void ag_model_close(ag_model **model)
{
    ag_model *m = *model;
    *model = NULL;
    if (!m) return;
    ag_st_folder_close(&m->owned->folder);
    ag_gguf_close(&m->owned->gguf);
    ag_pages_free(m->owned->made, m->owned->made_bytes);
    ag_arena_free(&m->owned->arena);
    free(m->owned);
    free(m);
}

ag_status ag_model_check(ag_description *d, const char *path, ag_arena *arena, ag_err *err)
{
    ag_model *m = create();
    ag_found_model found = {0};
    const ag_status status = find_all(m, &found, path, err);
    if (!status) {
        *d = m->d;
        d->model_type = ag_arena_strdup(arena, m->d.model_type);
        d->architecture = ag_arena_strdup(arena, m->d.architecture);
        d->rope_factors = NULL;
    }
    ag_model_close(&m);
    return status;
}
