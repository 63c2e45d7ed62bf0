#define _GNU_SOURCE
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

static ag_status open_into(ag_model *m, const char *path, const ag_model_options *options, ag_err *err)
{
    struct ag_model_owned *own = m->owned;
    char *checked, *absolute;
    ag_found_model found = {0};
    AG_TRY(ag_path_check(&checked, path, &own->arena, err));
    if (ag_path_is_dir(checked)) {
        AG_TRY(ag_path_existing_dir(&absolute, path, &own->arena, err));
        m->path = absolute;
        AG_TRY(ag_model_find_hf(m, &found, err));
    } else {
        AG_TRY(ag_path_existing_file(&absolute, path, &own->arena, err));
        m->path = absolute;
        if (ag_str_ends(absolute, ".safetensors"))
            return ag_fail(err, AG_E_FORMAT, "%s is one file of a model; name the folder that has its config.json", absolute);
        AG_TRY(ag_model_find_gguf(m, &found, err));
    }
    return ag_model_make(m, &found, options, err);
}

ag_status ag_model_open(ag_model **out, const char *path, const ag_model_options *options, ag_err *err)
{
    static const ag_model_options none = {0};
    *out = NULL;
    ag_model *m = calloc(1, sizeof *m);
    if (!m) ag_out_of_memory(sizeof *m);
    m->owned = calloc(1, sizeof *m->owned);
    if (!m->owned) ag_out_of_memory(sizeof *m->owned);
    ag_status status = open_into(m, path, options ? options : &none, err);
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
