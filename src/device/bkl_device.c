#define _GNU_SOURCE
#include "device/bkl_device.h"

#include "base/arena.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ag_status ag_device_check(const ag_device *device, bkl_status status, const char *what, ag_err *err)
{
    if (status == BKL_OK) return AG_OK;
    const char *sentence = device->context ? device->bkl->error(device->context) : "";
    const ag_status code = status == BKL_E_MEMORY ? AG_E_MEMORY : status == BKL_E_SHAPE ? AG_E_SHAPE : status == BKL_E_DEVICE ? AG_E_IO : AG_E_UNSUPPORTED;
    return ag_fail(err, code, "%s: %s", what, *sentence ? sentence : device->bkl->status_text(status));
}

static ag_status load(ag_device *device, const char *path, ag_err *err)
{
    device->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!device->library) return ag_fail(err, AG_E_NOT_FOUND, "the kernel library cannot be loaded: %s", dlerror());
    bkl_api_get_fn *get;
    *(void **)&get = dlsym(device->library, "bkl_api_get");
    if (!get) return ag_fail(err, AG_E_UNSUPPORTED, "%s: is no kernel library: it does not export bkl_api_get", path);
    char sentence[512] = "";
    device->bkl = get(BKL_ABI_VERSION, sentence, sizeof sentence);
    if (!device->bkl) return ag_fail(err, AG_E_UNSUPPORTED, "%s: %s", path, sentence);
    if (device->bkl->bytes != sizeof *device->bkl)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: its table has %u bytes, expected %zu; install the library that belongs to this program", path,
                       device->bkl->bytes, sizeof *device->bkl);
    return AG_OK;
}

static ag_status start(ag_device *device, ag_err *err)
{
    char sentence[512] = "";
    const bkl_status status = device->bkl->context_create(&device->context, 0, sentence, sizeof sentence);
    if (status) return ag_fail(err, AG_E_UNSUPPORTED, "no GPU can be used: %s", *sentence ? sentence : device->bkl->status_text(status));
    AG_TRY(ag_device_check(device, device->bkl->stream_create(device->context, &device->stream), "a stream", err));
    return ag_device_check(device, device->bkl->device_info(device->context, &device->info), "the device's description", err);
}

static ag_status open_device(ag_device **out, const char *library, bool only_sizes, ag_err *err)
{
    ag_device *device = calloc(1, sizeof *device);
    if (!device) ag_out_of_memory(sizeof *device);
    *out = device;
    ag_status status = load(device, library, err);
    if (!status && !only_sizes) status = start(device, err);
    if (status) ag_device_close(out);
    return status;
}

ag_status ag_device_open(ag_device **out, const char *library, ag_err *err) { return open_device(out, library, false, err); }
ag_status ag_device_open_for_sizes(ag_device **out, const char *library, ag_err *err) { return open_device(out, library, true, err); }

const char *ag_device_backend_name(const ag_device *device) { return device->info.emulated ? "bkl emulated" : "bkl cuda"; }

void ag_device_close(ag_device **device)
{
    ag_device *d = *device;
    if (!d) return;
    if (d->stream) d->bkl->stream_free(&d->stream);
    if (d->context) d->bkl->context_free(&d->context);
    if (d->library) dlclose(d->library);
    free(d);
    *device = NULL;
}
