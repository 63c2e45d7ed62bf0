/* A profile window as it is asked for in one text, on the command line or in AGOGE_PROFILE_WINDOW:
 *
 *     train:1-2      train/3..5      train:4:4                                compact: phase, first step, last step
 *     phase=train,start_step=2,end_step=3,backend=torch,enabled=true          keys in any order; from/start, to/end are aliases
 */
#ifndef AG_PROFILE_REQUEST_H
#define AG_PROFILE_REQUEST_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    bool enabled;               /* unless enabled=false stands there */
    int64_t start_step, end_step;
    char backend[64];           /* "torch" where none stands there */
} ag_profile_request;

/* AG_E_CONFIG names `where` ("--profile-window") and what is wrong: an unknown, empty or repeated field, no integer, a phase other than
 * train, a step below 1, an end before the start. */
AG_MUST_USE ag_status ag_profile_request_parse(ag_profile_request *out, const char *text, const char *where, ag_err *err);

/* "<run_id>:train:<start>-<end>" */
enum { AG_PROFILE_ID_MAX = 512 };
void ag_profile_window_id(char out[AG_PROFILE_ID_MAX], const char *run_id, int64_t start_step, int64_t end_step);

#endif
