/* The device that a command was asked to compute on, and where its library lies. */
#ifndef AGOGE_CLI_DEVICE_ACCESS_H
#define AGOGE_CLI_DEVICE_ACCESS_H

#include "device/bkl_device.h"

/* `device` NULL or "cpu": *out is NULL, AG_OK. "cuda": the GPU, by libbkl.so; "emu": the same kernels emulated, by libbkl_emu.so. Never the CPU where
 * a GPU was asked for. The library is AGOGE_BKL_LIBRARY, or lies beside the program, in ../lib, or in the build's folders. */
AG_MUST_USE ag_status cli_device_open(ag_device **out, const char *device, ag_err *err);
/* For a plan: the library of the device, or, on a machine that could not build it, the emulator's, whose kernels need as much. */
AG_MUST_USE ag_status cli_device_open_for_sizes(ag_device **out, const char *device, ag_err *err);

#endif
