#define _GNU_SOURCE
#include "cli/device_access.h"

#include "base/arena.h"
#include "base/fs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_cpu(const char *device) { return !device || strcmp(device, "cpu") == 0; }

/* The library's path; its bare name, which the system's loader looks up, where it lies nowhere near the program. */
static const char *find(const char *device, ag_arena *arena)
{
    const char *given = getenv("AGOGE_BKL_LIBRARY"), *name = strcmp(device, "emu") == 0 ? "libbkl_emu.so" : "libbkl.so";
    if (given && *given) return given;
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    const char *dir = ag_path_dir(arena, self);
    static const char *const places[] = {".", "../lib", "../lib/agoge", "kernels/src", "kernels/emu"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = ag_arena_printf(arena, "%s/%s/%s", dir, places[i], name);
        if (ag_path_is_file(path)) return path;
    }
    return name;
}

ag_status cli_device_open(ag_device **out, const char *device, ag_err *err)
{
    *out = NULL;
    if (is_cpu(device)) return AG_OK;
    ag_arena arena = {0};
    ag_status status = ag_device_open(out, find(device, &arena), err);
    if (status) ag_err_prefix(err, "--device %s", device);
    ag_arena_free(&arena);
    return status;
}

ag_status cli_device_open_for_sizes(ag_device **out, const char *device, ag_err *err)
{
    *out = NULL;
    if (is_cpu(device)) return AG_OK;
    ag_arena arena = {0};
    ag_err first;
    ag_status status = ag_device_open(out, find(device, &arena), &first);
    if (status) status = ag_device_open_for_sizes(out, find(device, &arena), &first);
    if (status) status = ag_device_open_for_sizes(out, find("emu", &arena), err);
    if (status) *err = first;
    ag_arena_free(&arena);
    return status;
}
